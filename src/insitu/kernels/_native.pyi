from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

# token_ids, positions, slot_mapping, block_table, query_start_loc, seq_lens, logit_rows
BatchTuple = tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32]
# temperature, top_k, top_p, min_p, seed, choice, position, num_logprobs
SamplingTuple = tuple[Float64, Int32, Float64, Float64, UInt64, UInt32, UInt32, Int32]
# token_ids, logprobs, top_ids, top_logprobs, finite
SampledTuple = tuple[Int32, Float32, Int32, Float32, Bools]
# num_layers, num_kv_heads, head_dim, block_size, is_f16
KvTuple = tuple[int, int, int, int, bool]
# max_num_tokens, max_num_logit_rows, max_num_seqs, num_blocks, max_blocks_per_seq
LimitsTuple = tuple[int, int, int, int, int]

def has_isa(isa: str) -> bool: ...
def quantized_bytes(isa: str, num_rows: int, k: int, group: int) -> int: ...
def packed_block_bytes(block_type: int, k: int) -> int: ...
def sizes(
    program: dict[str, Any], kv: KvTuple, limits: LimitsTuple, num_threads: int, isa: str
) -> dict[str, int]: ...
def sample(
    isa: str, logits: Float32, sampling: SamplingTuple, out: SampledTuple, num_threads: int
) -> None: ...

class Executor:
    def __init__(
        self,
        program: dict[str, Any],
        kv: KvTuple,
        limits: LimitsTuple,
        num_threads: int,
        isa: str,
    ) -> None: ...
    def close(self) -> None: ...
    def forward(self, batch: BatchTuple, logits: Float32) -> None: ...
    def step(self, batch: BatchTuple, sampling: SamplingTuple, out: SampledTuple) -> None: ...
    def sizes(self) -> dict[str, int]: ...
    def start_profile(self) -> None: ...
    def profile(self) -> list[int]: ...
    def copy_block(self, source: int, target: int) -> None: ...
    def wipe_block(self, block: int) -> None: ...
    def packed(self, linear: int, segment: int) -> bytes: ...

from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]

# token_ids, positions, slot_mapping, block_table, query_start_loc, seq_lens, logit_rows
BatchTuple = tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32]
# temperature, top_k, top_p, min_p, seed, choice, position, num_logprobs
SamplingTuple = tuple[Float64, Int32, Float64, Float64, UInt64, UInt32, UInt32, Int32]
# row_start, token_id, count, value, before, repetition, presence, frequency
EditTuple = tuple[Int32, Int32, Int32, Float64, Float32, Float64, Float64, Float64]
# of_row, bits
MaskTuple = tuple[Int32, UInt32]
WantedTuple = tuple[SamplingTuple, EditTuple, MaskTuple]
# token_ids, logprobs, top_ids, top_logprobs, status
SampledTuple = tuple[Int32, Float32, Int32, Float32, UInt8]
# num_layers, num_kv_heads, head_dim, block_size, dtype
KvTuple = tuple[int, int, int, int, str]
# max_num_tokens, max_num_logit_rows, max_num_seqs, num_blocks, max_blocks_per_seq
LimitsTuple = tuple[int, int, int, int, int]

def has_isa(isa: str) -> bool: ...
def quantized_bytes(isa: str, num_rows: int, k: int, group: int) -> int: ...
def packed_block_bytes(block_type: int, k: int) -> int: ...
def sizes(
    program: dict[str, Any], kv: KvTuple, limits: LimitsTuple, num_threads: int, isa: str
) -> dict[str, int]: ...
def sample(
    isa: str, logits: Float32, wanted: WantedTuple, out: SampledTuple, num_threads: int
) -> None: ...

class Executor:
    def __init__(
        self,
        program: dict[str, Any],
        kv: KvTuple,
        limits: LimitsTuple,
        num_threads: int,
        isa: str,
        spin: bool,
        pin: bool,
    ) -> None: ...
    def close(self) -> None: ...
    def forward(self, batch: BatchTuple, logits: Float32) -> None: ...
    def step(self, batch: BatchTuple, wanted: WantedTuple, out: SampledTuple) -> None: ...
    def sizes(self) -> dict[str, int]: ...
    def start_profile(self) -> None: ...
    def stop_profile(self) -> None: ...
    def profile(self) -> list[int]: ...
    def copy_block(self, source: int, target: int) -> None: ...
    def wipe_block(self, block: int) -> None: ...
    def ceilings(self, num_bytes: int) -> Ceilings: ...
    def packed(self, linear: int, segment: int) -> bytes: ...

class Ceilings:
    def read_seconds(self, first: int, num_bytes: int) -> float: ...
    def peak_ops_per_second(self, kind: str, seconds: float) -> float: ...

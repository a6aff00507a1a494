"""What choosing a token takes of a decode step, by how it is chosen.

    python benchmarks/sampling.py qwen2.5-coder-0.5b-instruct.gguf --batch 1,16

Every step is one native call, forward and sampling; the operators' own clock says what sampling
took. Each row continues a text, this program's own, from another place in it. "even" logits are
those of the model at a temperature of 100: nearly all tokens are alike, which no truncation finds
easy.
Medians over the steps of each setting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.codec.tokenizer import load_tokenizer
from insitu.engine.machine import memory_limit
from insitu.engine.plan import Wanted, make_plan
from insitu.engine.start import make_native
from insitu.kernels.sampling import EditArrays, MaskArrays, SamplingArrays, num_mask_words
from insitu.models.batch import Batch
from insitu.models.load import load_model
from insitu.sampling_params import Order
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from insitu.kernels.native import Native
    from insitu.weights.source import TensorSource

Ids = np.ndarray[Any, np.dtype[np.int32]]

CONTEXT = 128
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "top_k 40, top_p 0.95": {"temperature": 1.0, "top_k": 40, "top_p": 0.95},
    "llama.cpp's": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "order": Order.LLAMA_CPP,
    },
    "typical_p 0.9": {"temperature": 1.0, "typical_p": 0.9},
    "top_n_sigma 1": {"temperature": 1.0, "top_n_sigma": 1.0},
    "temperature 1, 5 logprobs": {"temperature": 1.0, "num_logprobs": 5},
    "temperature 1, 1000 edits": {"temperature": 1.0},
    "temperature 1, mask": {"temperature": 1.0},
    "even, temperature alone": {"temperature": 100.0},
    "even, top_p 0.9": {"temperature": 100.0, "top_p": 0.9},
    "even, min_p 0.1": {"temperature": 100.0, "min_p": 0.1},
}  # fmt: skip


def batch_of(texts: list[Ids], first: int, block_size: int) -> Batch:
    """Of each sequence the tokens from ``first`` on; logits of its last."""
    rows, num = len(texts), len(texts[0]) - first
    num_blocks = len(texts[0]) // block_size + 1
    blocks = np.arange(rows * num_blocks, dtype=np.int32).reshape(rows, num_blocks)
    positions = np.arange(first, first + num, dtype=np.int32)
    slots = blocks[:, positions // block_size] * block_size + positions % block_size
    starts = np.arange(rows + 1, dtype=np.int32) * num
    return Batch(
        np.concatenate([ids[first:] for ids in texts]),
        np.tile(positions, rows),
        slots.ravel().astype(np.int32),
        blocks,
        starts,
        np.full(rows, first + num, np.int32),
        starts[1:] - 1,
    )


def texts_of(source: TensorSource, rows: int) -> list[Ids]:
    """As many pieces of this file, a context and the token after it."""
    tokenizer = load_tokenizer(source)
    text = Path(__file__).read_text()
    encoded = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    ids = np.array(encoded, np.int32)
    return [
        ids[at : at + CONTEXT + 1]
        for at in np.linspace(0, len(ids) - CONTEXT - 1, rows).astype(int)
    ]


def decode_batch(engine: Native, texts: list[Ids], block_size: int) -> Batch:
    """The last token of each text, those before it being in the cache."""
    for row in range(len(texts)):
        one = batch_of(texts, 0, block_size)
        tokens = slice(row * (CONTEXT + 1), row * (CONTEXT + 1) + CONTEXT)
        prompt = Batch(
            one.token_ids[tokens],
            one.positions[tokens],
            one.slot_mapping[tokens],
            one.block_table[row : row + 1],
            np.array([0, CONTEXT], np.int32),
            np.array([CONTEXT], np.int32),
            np.array([CONTEXT - 1], np.int32),
        )
        engine.forward(prompt)
    return batch_of(texts, CONTEXT, block_size)


def arrays_of(name: str, rows: int, vocab_size: int) -> SamplingArrays:
    """A setting for every row."""
    arrays = SamplingArrays.of(rows, **SETTINGS[name], seed=7, position=np.arange(rows))
    if "edits" in name:
        ids = np.tile(np.arange(0, 1000 * 97, 97, dtype=np.int32) % vocab_size, rows)
        starts = np.arange(rows + 1, dtype=np.int32) * 1000
        counts, values = np.ones(len(ids), np.int32), np.zeros(len(ids))
        half = np.full(rows, 0.5)
        return replace(arrays, edits=EditArrays(starts, ids, counts, values, half + 1, half, half))
    if "mask" in name:
        bits = np.random.default_rng(2).integers(
            2**32, size=(rows, num_mask_words(vocab_size)), dtype=np.uint32
        )
        return replace(arrays, masks=MaskArrays(np.arange(rows, dtype=np.int32), bits))
    return arrays


def measure(
    engine: Native, batch: Batch, arrays: SamplingArrays, steps: int
) -> tuple[float, float]:
    """Median microseconds of a step, and of sampling in it."""
    whole, sampling = [], []
    for _ in range(steps):
        engine.start_profile()
        start = time.perf_counter()
        engine.step(batch, arrays)
        whole.append((time.perf_counter() - start) * 1e6)
        sampling.append(engine.profile()[-1].time_ns / 1e3)
    return statistics.median(whole), statistics.median(sampling)


def main() -> None:
    """Measure every setting at every batch, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    batches = [int(one) for one in given.batch.split(",")]
    source = open_source(given.model)
    model = load_model(source)
    wanted = Wanted(threads=given.threads, max_model_len=256, max_num_seqs=max(batches))
    plan = make_plan(model, wanted, memory_limit())
    engine = make_native(model, plan)
    print(f"{engine.isa}, {engine.num_threads} threads, {engine.vocab_size:,} tokens")
    for rows in batches:
        batch = decode_batch(engine, texts_of(source, rows), plan.block_size)
        measure(engine, batch, arrays_of("greedy", rows, engine.vocab_size), 5)
        for name in SETTINGS:
            arrays = arrays_of(name, rows, engine.vocab_size)
            whole, part = measure(engine, batch, arrays, given.steps)
            print(
                f"batch {rows:>3}  {name:<28}{part:>9.0f} us of {whole:>8.0f}  {part / whole:.1%}"
            )
    engine.close()


if __name__ == "__main__":
    main()

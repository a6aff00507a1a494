"""How far each type of the KV cache moves a model's log-probabilities from those of float32.

    python benchmarks/kv_dtypes.py MODEL_FILE --text docs/walk.md --tokens 1000

Every position of the text is scored in steps of 64 tokens. Printed for each type: bytes a token,
mean KL divergence from the float32 cache's, the mean and worst change of the likeliest five
log-probabilities, and how often the likeliest token changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from insitu.codec.tokenizer import load_tokenizer
from insitu.kernels.kv_layout import KV_DTYPES, KVLayout
from insitu.kernels.native import Limits, Native
from insitu.kernels.passes import lower
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

STEP = 64
BLOCK_SIZE = 32


def logits_of(path: Path, ids: np.ndarray, dtype: str) -> tuple[np.ndarray, KVLayout]:
    """[tokens, vocab_size], every key and value stored in ``dtype``."""
    source = open_source(path)
    model = load_model(source)
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype=dtype)
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    native = Native(
        lower(model.program),
        kv=kv,
        limits=Limits(STEP, STEP, 1, num_blocks, num_blocks),
        num_threads=2,
    )
    source.close()
    table = np.arange(num_blocks, dtype=np.int32)[None]
    rows = []
    for start in range(0, len(ids), STEP):
        stop = min(start + STEP, len(ids))
        at = np.arange(start, stop, dtype=np.int32)
        one = np.array([0, stop - start], np.int32)
        batch = Batch(ids[start:stop], at, at, table, one, np.array([stop], np.int32), at - start)
        rows.append(native.forward(batch))
    native.close()
    return np.concatenate(rows), kv


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main() -> None:
    """One line a type."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1000)
    given = parser.parse_args()
    path = Path(given.model)
    source = open_source(path)
    encoded = load_tokenizer(source).encode(
        given.text.read_text(), add_special_tokens=True, parse_special=False
    )
    ids = np.array(encoded[: given.tokens], np.int32)
    source.close()
    truth = log_softmax(logits_of(path, ids, "f32")[0])
    top = np.argsort(-truth, axis=1)[:, :5]
    print(f"{len(ids)} tokens of {given.text}")
    for dtype in KV_DTYPES:
        logits, kv = logits_of(path, ids, dtype)
        ours = log_softmax(logits)
        kl = (np.exp(truth) * (truth - ours)).sum(axis=1).mean()
        change = np.abs(np.take_along_axis(ours - truth, top, axis=1))
        changed = (ours.argmax(axis=1) != top[:, 0]).mean()
        print(
            f"{dtype:>5}: {kv.bytes_per_token:6} bytes a token, KL {kl:.2e}, top-5 change "
            f"mean {change.mean():.4f} worst {change.max():.3f}, "
            f"likeliest moved {100 * changed:.1f} %"
        )


if __name__ == "__main__":
    main()

"""Which linears' 8-bit inputs take a model how far from its definition in float32.

    python benchmarks/rounding.py MODEL_FILE [--tokens 1000]

A line for each kind of linear: the distance that is left when the inputs of those linears are not
rounded (their weights, unchanged, are held as float32), keys and values being float32 throughout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from insitu.evaluate.figures import Report
from insitu.evaluate.models import How, Native, Reference
from insitu.evaluate.run import DEFAULT_WINDOW, compare
from insitu.evaluate.text import SAMPLE, cut, read_text
from insitu.kernels.blocks import BlockType, decode
from insitu.models.load import LoadedModel, load_model
from insitu.weights.source import open_source

KINDS = {
    "none": (),
    "q, k, v": ("attn_q", "attn_k", "attn_v"),
    "attention output": ("attn_output",),
    "gate, up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
    "head": ("token_embd", "output."),
    "all but the head": ("blk.",),
}


def widen(model: LoadedModel, names: tuple[str, ...]) -> None:
    """Hold segments of such names as float32."""
    for segment in (segment for linear in model.linears for segment in linear.segments):
        if segment.name.startswith(names) or any(f".{name}." in segment.name for name in names):
            weights = decode(segment.block_type, segment.raw(), segment.n, segment.k)
            segment.data = weights.reshape(-1).view(np.uint8)
            segment.block_type = BlockType.F32


def main() -> None:
    """One line a kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1000)
    given = parser.parse_args()
    for kind, names in KINDS.items():
        print(f"{kind:>17}: {_line(given.model, names, given.tokens)}", flush=True)


def _line(path: Path, names: tuple[str, ...], num_tokens: int) -> str:
    source = open_source(path)
    windows = cut(source, read_text(SAMPLE), window=DEFAULT_WINDOW, max_num_tokens=num_tokens)
    reference = Reference(load_model(source), DEFAULT_WINDOW)
    model = load_model(source)
    widen(model, names)
    native = Native(model, How(DEFAULT_WINDOW, "f32"))
    report: Report = compare(native, reference, windows, lambda *_: None).report
    native.close()
    source.close()
    agreed = 100 * (report.top1_agreement or 0)
    return f"KL {report.kl_mean:.5f}, p99 {report.kl_p99:.4f}, top-1 {agreed:.2f} %"


if __name__ == "__main__":
    main()

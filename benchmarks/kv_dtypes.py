"""How far each type of the KV cache takes a model from its definition in float32.

    python benchmarks/kv_dtypes.py MODEL_FILE [--text FILE] [--tokens 1000]

A line for each type, as `insitu evaluate --against reference --kv-cache-dtype TYPE` gives it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from insitu.evaluate.models import How
from insitu.evaluate.run import DEFAULT_WINDOW, Wish, evaluate
from insitu.evaluate.text import SAMPLE
from insitu.kernels.kv_layout import KV_DTYPES


def main() -> None:
    """One line a type."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=SAMPLE)
    parser.add_argument("--tokens", type=int, default=1000)
    given = parser.parse_args()
    for dtype in KV_DTYPES:
        wish = Wish(
            given.model,
            How(DEFAULT_WINDOW, dtype),
            against_definition=True,
            text=given.text,
            max_num_tokens=given.tokens,
        )
        report = evaluate(wish, lambda *_: None).report
        print(
            f"{dtype:>5}: KL {report.kl_mean:.5f}, p99 {report.kl_p99:.4f}, "
            f"max {report.kl_max:.3f}, top-1 {100 * (report.top1_agreement or 0):.2f} %"
        )


if __name__ == "__main__":
    main()

"""KL divergence of insitu and of llama.cpp from one model's definition in float32, on the same ids.

    python benchmarks/peer_quality.py MODEL_FILE --peer PYTHON [--text FILE] [--windows 2]

PYTHON has llama-cpp-python. Both run the file as it is, keys and values in f16; the definition is
insitu's reference interpreter: float32 over the file's dequantised weights.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from insitu.evaluate.figures import Figures
from insitu.evaluate.models import ROWS, How, opened_native, opened_reference
from insitu.evaluate.text import SAMPLE, cut, read_text
from insitu.weights.source import open_source

WINDOW = 512


def main() -> None:
    """Two lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--text", type=Path, default=SAMPLE)
    parser.add_argument("--windows", type=int, default=2)
    given = parser.parse_args()
    source = open_source(given.model)
    whole = cut(source, read_text(given.text), window=WINDOW, max_num_tokens=None)
    source.close()
    ids = np.array([part for part in whole.ids if len(part) == WINDOW][: given.windows])
    with tempfile.TemporaryDirectory() as folder:
        theirs = _peer(given.peer, given.model, ids, Path(folder))
        _report(given.model, ids, theirs)


def _peer(python: str, model: Path, ids: np.ndarray, folder: Path) -> np.ndarray:
    script = Path(__file__).parent / "peers" / "llama_cpp_logits.py"
    np.save(folder / "ids.npy", ids)
    command = [python, str(script), str(model), str(folder / "ids.npy"), str(folder / "l.npy")]
    subprocess.run(command, check=True)
    return np.load(folder / "l.npy", mmap_mode="r")


def _report(model: Path, ids: np.ndarray, theirs: np.ndarray) -> None:
    figures = {"insitu": Figures(), "llama.cpp": Figures()}
    with (
        opened_reference(model, WINDOW) as definition,
        opened_native(model, How(WINDOW)) as native,
    ):
        for window, peer in zip(ids, theirs, strict=True):
            pairs = zip(native.logits(window), definition.logits(window), strict=True)
            for at, (mine, truth) in zip(range(0, WINDOW, ROWS), pairs, strict=True):
                following = window[at + 1 : at + ROWS + 1]
                figures["insitu"].take(mine, truth, following)
                figures["llama.cpp"].take(peer[at : at + ROWS], truth, following)
    for name, taken in figures.items():
        report = taken.report(ids.size)
        agreed = 100 * (report.top1_agreement or 0)
        print(
            f"{name:>9}: KL {report.kl_mean:.5f}, p99 {report.kl_p99:.4f}, top-1 {agreed:.2f} %, "
            f"perplexity {report.perplexity:.3f} beside {report.against_perplexity:.3f}"
        )


if __name__ == "__main__":
    main()

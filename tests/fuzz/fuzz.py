"""Run one target under atheris (pip install atheris), which steers by coverage.

    PYTHONPATH=src:tests python -m fuzz.fuzz gguf -max_total_time=1800

Arguments after the target are libFuzzer's. Ends with a status other than 0 and the input in a file
``crash-...`` when a target raises what is no named error, or takes too long or too much memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["insitu", "json", "jinja2"]):
    from fuzz.seeds import seeds
    from fuzz.targets import TARGETS


def main() -> None:
    """Start from the target's seed."""
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "seed").write_bytes(seeds()[name])
        options = ["-timeout=20", "-rss_limit_mb=4096", "-max_len=65536"]
        atheris.Setup([sys.argv[0], *options, *sys.argv[1:], corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()

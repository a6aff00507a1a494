"""How long a vocabulary takes to load, and 100,000 characters to become ids.

    python benchmarks/vocabularies.py FILE.gguf ...

Least of seven, in processor time of this process: other work on the machine does not count.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = {
    "prose": "The quick brown fox jumps over the lazy dog. ",
    "one letter": "a",
    "blanks": " ",
    "without blanks": "日本語のテキストを処理する",
}
NUM_CHARS = 100_000


def least_s(work: Callable[[], object]) -> float:
    """Seconds of the quickest run."""
    times = []
    for _ in range(7):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def encode(tokenizer: Tokenizer, text: str) -> None:
    """Ids of a text."""
    tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def main() -> None:
    """Print a line for each file."""
    for name in sys.argv[1:]:
        path = Path(name)
        tokenizer = load_tokenizer(open_source(path))
        loading = least_s(lambda path=path: load_tokenizer(open_source(path)))
        parts = [f"{path.stem}: {tokenizer.vocab_size} tokens, loaded in {loading:.2f} s"]
        for kind, unit in TEXTS.items():
            text = (unit * NUM_CHARS)[:NUM_CHARS]
            took = least_s(lambda text=text, tokenizer=tokenizer: encode(tokenizer, text))
            parts.append(f"{kind} {1000 * took:.0f} ms")
        sys.stdout.write("; ".join(parts) + "\n")


if __name__ == "__main__":
    main()

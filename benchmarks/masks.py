"""What masks cost beside the steps that they are made in: 8 answers of one JSON schema at once.

    python benchmarks/masks.py MODEL_FILE

Masks are filled on a thread of their own while the step runs; a step waits for them only where they
take longer than it does.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from insitu.engine.token_masks import TokenMasks
from insitu.llm.front_door import LLM
from insitu.sampling_params import SamplingParams
from insitu.types import Guide

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "A person as JSON, with name, age and tags:\n"


def main() -> None:
    """Print seconds of steps with and without masks, and of filling them."""
    filled_s: list[float] = []
    fill = TokenMasks.fill

    def timed(self: TokenMasks, *given: Any) -> Any:
        started_s = time.perf_counter()
        try:
            return fill(self, *given)
        finally:
            filled_s.append(time.perf_counter() - started_s)

    TokenMasks.fill = timed  # type: ignore
    with LLM(sys.argv[1]) as llm:
        for name, guide in (
            ("warm", Guide("json_schema", SCHEMA)),
            ("free", None),
            ("guided", Guide("json_schema", SCHEMA)),
        ):
            filled_s.clear()
            before = llm._generator.stats()
            params = [
                SamplingParams(max_tokens=60, seed=n, ignore_eos=guide is None) for n in range(8)
            ]
            started_s = time.perf_counter()
            made = llm.generate([PROMPT] * 8, params, guide=guide)
            took_s = time.perf_counter() - started_s
            after = llm._generator.stats()
            steps = after.counters["steps"] - before.counters["steps"]
            tokens = sum(one.usage.completion_tokens for one in made)
            print(
                f"{name}: {steps} steps, {tokens} tokens in {took_s:.3f} s, "
                f"{took_s / steps * 1e3:.2f} ms a step; "
                f"masks {sum(filled_s):.4f} s, {sum(filled_s) / took_s:.1%} of it"
            )


if __name__ == "__main__":
    main()

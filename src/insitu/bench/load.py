"""Which requests a load is made of, and when they are sent.

Not here: sending. Always true: a seed gives the same prompts, lengths and times.

Lengths called ``sharegpt`` are drawn from log-normal distributions with the mean prompt (161) and
answer (338) of the ShareGPT conversations of Kwon et al., 2023 (PagedAttention, figure 11).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from
or had an they which one you were all her she there would their we him been has when who
will no more if out so up said what its about than into them can only other time new some
could these two may first then do any like my now over such our man me even most made
after also did many off before must well back through years where much your way down
should because long each just state people those too mr how little good world make very
year still see work life
"""
_WORDS = _TEXT.split()
_SIGMA = 1.0
_LEAST_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for. ``rate_per_s`` None: as soon as one of ``concurrency`` is free."""

    num_requests: int = 100
    input_tokens: int = 200
    output_tokens: int = 128
    lengths: str = "fixed"  # or "sharegpt", whose means are its own
    max_tokens: int = 2048  # a drawn length is cut to this
    rate_per_s: float | None = None
    concurrency: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it is sent (seconds from the start), its prompt, its longest answer."""

    at_s: float
    prompt: str
    output_tokens: int


def asks_of(load: Load) -> list[Ask]:
    """All requests of a load, in the order they are sent; prompts are about a word a token."""
    rng = random.Random(load.seed)  # noqa: S311 - lengths and words, not secrets
    asks, at_s = [], 0.0
    for _ in range(load.num_requests):
        if load.rate_per_s is not None:
            at_s += rng.expovariate(load.rate_per_s)
        num_words, num_tokens = load.input_tokens, load.output_tokens
        if load.lengths == "sharegpt":
            num_words, num_tokens = (_drawn(rng, mean, load.max_tokens) for mean in (161.3, 338.0))
        asks.append(Ask(at_s, " ".join(rng.choices(_WORDS, k=num_words)), num_tokens))
    return asks


def _drawn(rng: random.Random, mean: float, most: int) -> int:
    length = rng.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
    return min(max(round(length), _LEAST_TOKENS), most)

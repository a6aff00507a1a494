"""Of more choices than were asked for, the likeliest.

Not here: making them. Always true: every token that was made is counted, whoever sees it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from insitu.sampling_params import SamplingParams
    from insitu.types import Delta


def likeliest(deltas: list[Delta], sampling: SamplingParams) -> list[Delta]:
    """Those of the ``n`` choices whose tokens have the greatest mean log-probability.

    The first is the likeliest; of like ones, the one made first.
    """
    of_choice: dict[int, list[Delta]] = {}
    for delta in deltas:
        of_choice.setdefault(delta.index, []).append(delta)
    ranked = sorted(of_choice, key=lambda index: (-_mean(of_choice[index]), index))
    best = {index: rank for rank, index in enumerate(ranked[: sampling.n])}
    kept = [_shown(one, best[one.index], sampling) for one in deltas if one.index in best]
    dropped = [one.usage for one in deltas if one.index not in best and one.usage is not None]
    return _with_tokens(kept, sum(usage.completion_tokens for usage in dropped))


def _mean(deltas: list[Delta]) -> float:
    values = [one.logprob for delta in deltas for one in delta.logprobs]
    return sum(values) / len(values) if values else 0.0


def _shown(delta: Delta, index: int, sampling: SamplingParams) -> Delta:
    logprobs = () if sampling.logprobs is None else delta.logprobs
    return replace(delta, index=index, logprobs=logprobs)


def _with_tokens(deltas: list[Delta], num_more: int) -> list[Delta]:
    """With so many more tokens counted for the first choice that ends."""
    for place, delta in enumerate(deltas):
        if delta.usage is not None:
            counted = replace(
                delta.usage, completion_tokens=delta.usage.completion_tokens + num_more
            )
            deltas[place] = replace(delta, usage=counted)
            break
    return deltas

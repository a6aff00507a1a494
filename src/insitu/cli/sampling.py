"""The flags that choose tokens, and the ``SamplingParams`` they make.

Not here: checking (``SamplingParams`` refuses by name) and sampling itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from insitu.sampling_params import PRESETS, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.llm.text_generator import TextGenerator

CHAT_TEMPERATURE = 0.7

# Field of SamplingParams -> (type, what it does)
FLAGS: dict[str, tuple[Any, str]] = {
    "max_tokens": (int, "Most tokens to generate [default: to the end of the context]."),
    "min_tokens": (int, "So many tokens before an end id [default: 0]."),
    "temperature": (float, "0 takes the likeliest token every time [default: the model's, or 1]."),
    "top_p": (float, "Keep the likeliest tokens of this share [default: the model's, or 1]."),
    "top_k": (int, "Keep so many of the likeliest; 0: all [default: the model's, or 0]."),
    "min_p": (
        float,
        "Drop tokens below this share of the likeliest's [default: the model's, or 0].",
    ),
    "typical_p": (float, "Keep the least surprising tokens of this share [default: 1]."),
    "top_n_sigma": (float, "Drop logits so many deviations below the highest [default: 0]."),
    "xtc_probability": (float, "How often all but the last of the likely go [default: 0]."),
    "xtc_threshold": (float, "From which share a token is likely, for that [default: 0.1]."),
    "repetition_penalty": (float, "Divides the logits of what occurred [default: 1]."),
    "presence_penalty": (float, "Taken off the logits of what was said [default: 0]."),
    "frequency_penalty": (float, "Taken off for every time it was said [default: 0]."),
    "penalty_last_n": (int, "Penalties look at so many of the last tokens [default: all]."),
    "dry_multiplier": (float, "Taken off what would repeat a sequence [default: 0]."),
    "dry_base": (float, "By what that grows with every token repeated [default: 1.75]."),
    "dry_allowed_length": (int, "From how many repeated tokens on [default: 2]."),
    "dry_last_n": (int, "Looked for in so many of the last tokens [default: all]."),
    "sampling_preset": (
        click.Choice(tuple(PRESETS)),
        "Whose order and unasked values [default: insitu].",
    ),
    "seed": (int, "Seed of the noise; the same seed gives the same text [default: drawn]."),
}
# Repeatable ones -> (the flag, what it takes, what it does)
LISTS: dict[str, tuple[str, str, str]] = {
    "stop": ("--stop", "TEXT", "End before this text (repeatable)."),
    "bad_words": ("--bad-word", "TEXT", "Never spell this text (repeatable)."),
    "dry_sequence_breakers": ("--dry-breaker", "TEXT", "Nothing repeats across this (repeatable)."),
    "logit_bias": ("--logit-bias", "ID=BIAS", "Add to a token's logit; -100 bans (repeatable)."),
}


def sampling_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one flag for each entry of the tables."""
    for name, (flag, metavar, text) in reversed(LISTS.items()):
        option = click.option(flag, name, multiple=True, metavar=metavar, help=text)
        command = option(command)
    for name, (kind, text) in reversed(FLAGS.items()):
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, name, type=kind, default=None, help=text)(command)
    return command


def sampling_of(values: dict[str, Any]) -> SamplingParams:
    """Take the flags' values out of a command's; what was not given is left to the model."""
    given = {name: values.pop(name) for name in (*FLAGS, *LISTS)}
    given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
    return SamplingParams(**{name: one for name, one in given.items() if one not in (None, ())})


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise click.UsageError(f"--logit-bias: ID=BIAS is wanted, not {text!r}.") from None


def for_a_chat(sampling: SamplingParams, generator: TextGenerator) -> SamplingParams:
    """With ``CHAT_TEMPERATURE`` where neither user, model's file nor preset gives one."""
    others = (generator.plan.sampling_defaults, sampling.preset.defaults)
    if sampling.temperature is not None or any("temperature" in one for one in others):
        return sampling
    return replace(sampling, temperature=CHAT_TEMPERATURE)

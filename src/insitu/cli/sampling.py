"""The flags that choose tokens, and the ``SamplingParams`` they make.

Not here: checking (``SamplingParams`` refuses by name) and sampling itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.llm.text_generator import TextGenerator

CHAT_TEMPERATURE = 0.7

# Field of SamplingParams -> (type, what it does)
FLAGS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "Most tokens to generate [default: to the end of the context]."),
    "temperature": (float, "0 takes the likeliest token every time [default: the model's, or 1]."),
    "top_p": (float, "Keep the likeliest tokens of this share [default: the model's, or 1]."),
    "top_k": (int, "Keep so many of the likeliest; 0: all [default: the model's, or 0]."),
    "min_p": (
        float,
        "Drop tokens below this share of the likeliest's [default: the model's, or 0].",
    ),
    "seed": (int, "Seed of the noise; the same seed gives the same text [default: drawn]."),
}


def sampling_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one flag for each entry of the table, and ``--stop``."""
    for name, (kind, text) in reversed(FLAGS.items()):
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, name, type=kind, default=None, help=text)(command)
    return click.option(
        "--stop", multiple=True, metavar="TEXT", help="End before this text (repeatable)."
    )(command)


def sampling_of(values: dict[str, Any]) -> SamplingParams:
    """Take the flags' values out of a command's; what was not given is left to the model."""
    return SamplingParams(**{name: values.pop(name) for name in (*FLAGS, "stop")})


def for_a_chat(sampling: SamplingParams, generator: TextGenerator) -> SamplingParams:
    """With ``CHAT_TEMPERATURE`` where neither the user nor the model's file gives one."""
    if sampling.temperature is not None or "temperature" in generator.plan.sampling_defaults:
        return sampling
    return replace(sampling, temperature=CHAT_TEMPERATURE)

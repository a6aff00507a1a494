"""Fields that say how the next token is chosen: truncation, penalties, values of single tokens.

Not here: what they do, and in which order (docs/sampling.md).

Always true: what is accepted here is honoured; an id is checked against the vocabulary later.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.sampling_params import PRESETS, SamplingParams
from insitu.server.schema import MAX_ID, Neutral, Wire

_WHEN_ABSENT = "When absent: the model's, where GET /v1/models shows one, else the preset's, else"
_MAX_BIAS = SamplingParams.MAX_BIAS
_FRACTION = Annotated[float, Field(gt=0, le=1)]
_SHARE = Annotated[float, Field(ge=0, le=1)]
_PENALTY = Annotated[float, Field(ge=-2, le=2)]
_COUNT = Annotated[int, Field(ge=0, le=MAX_ID)]
Word = Annotated[str, Field(min_length=1, max_length=SamplingParams.MAX_WORD_CHARS)]
Words = Annotated[list[Word], Field(max_length=SamplingParams.MAX_WORDS, fail_fast=True)]
Breakers = Annotated[list[Word], Field(max_length=SamplingParams.MAX_STOP, fail_fast=True)]


def _check_bias(bias: dict[str, float]) -> dict[str, float]:
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_ID))):
            raise PydanticCustomError("bias_key", "its keys must be token ids")
    if len({int(key) for key in bias}) < len(bias):
        raise PydanticCustomError("bias_key", "it has a token id twice")
    return bias


def _check_preset(name: str) -> str:
    if name not in PRESETS:
        known = {"known": ", ".join(PRESETS)}
        raise PydanticCustomError("preset", "must be one of {known}", known)
    return name


PresetName = Annotated[
    str,
    AfterValidator(_check_preset),
    WithJsonSchema({"type": "string", "enum": list(PRESETS)}),
]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-_MAX_BIAS, le=_MAX_BIAS)]],
    Field(max_length=SamplingParams.MAX_BIASES),
    AfterValidator(_check_bias),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {
                "type": "number", "minimum": -_MAX_BIAS, "maximum": _MAX_BIAS,
            },
            "maxProperties": SamplingParams.MAX_BIASES,
        }
    ),
]  # fmt: skip


class ChoosingFields(Wire):
    """How the next token is chosen."""

    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description=f"0 is greedy. {_WHEN_ABSENT} 1."
    )
    top_p: _FRACTION | None = Field(None, description=f"1 is no limit. {_WHEN_ABSENT} 1.")
    top_k: _COUNT | None = Field(None, description=f"0 is no limit. {_WHEN_ABSENT} 0.")
    min_p: _SHARE | None = Field(None, description=f"0 is no limit. {_WHEN_ABSENT} 0.")
    typical_p: _FRACTION | None = Field(None, description=f"1 is no limit. {_WHEN_ABSENT} 1.")
    top_n_sigma: Annotated[float, Field(ge=0)] | None = Field(
        None, description=f"0 is no limit. {_WHEN_ABSENT} 0."
    )
    xtc_probability: _SHARE | None = Field(None, description=f"0 is off. {_WHEN_ABSENT} 0.")
    xtc_threshold: _FRACTION | None = Field(
        None, description=f"Above 0.5 is off. {_WHEN_ABSENT} 0.1."
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description=f"1 is off. {_WHEN_ABSENT} 1."
    )
    presence_penalty: _PENALTY | None = Field(None, description=f"0 is off. {_WHEN_ABSENT} 0.")
    frequency_penalty: _PENALTY | None = Field(None, description=f"0 is off. {_WHEN_ABSENT} 0.")
    penalty_last_n: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None, description="The penalties count in the last so many tokens of prompt and answer."
    )
    dry_multiplier: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        None, description="0 is off."
    )
    dry_base: Annotated[float, Field(ge=1, le=1000)] | None = Field(
        None, description="1.75 when absent."
    )
    dry_allowed_length: Annotated[int, Field(ge=1, le=MAX_ID)] | None = Field(
        None, description="2 when absent."
    )
    dry_last_n: _COUNT | None = Field(None, description="0, or absent: all tokens.")
    dry_sequence_breakers: Breakers | None = Field(
        None, description="A line's end, `:`, `\"` and `*` when absent."
    )
    logit_bias: LogitBias | None = Field(
        None, description="What is added to the logits of token ids; -100 bans."
    )
    bad_words: Words | None = Field(None, description="Texts that the answer may not spell.")
    min_tokens: _COUNT | None = Field(None, description="So many tokens before an end id.")
    sampling_preset: PresetName | None = Field(
        None, description="Whose order and unasked values; insitu's when absent."
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None, description="Of the model's own logits, or of what a token was chosen among."
    )
    mirostat: Annotated[Annotated[int, Field(ge=0, le=0)] | None, Neutral("0")] = None
    mirostat_tau: Annotated[None, Neutral("null")] = None
    mirostat_eta: Annotated[None, Neutral("null")] = None

    def choosing_words(self) -> dict[str, Any]:
        """The fields of ``SamplingParams`` that these fill; absent ones are left to the model."""
        bias = {int(key): value for key, value in (self.logit_bias or {}).items()}
        given = {name: getattr(self, name) for name in _SAME if getattr(self, name) is not None}
        return {**given, "logit_bias": bias} if bias else given


_SAME = frozenset(ChoosingFields.model_fields) - {
    "logit_bias", "mirostat", "mirostat_tau", "mirostat_eta",
}  # fmt: skip

"""What a request says of how tokens are chosen, in the engine's terms: words become ids.

Not here: which values are in range (``sampling_params``), or what they do (``docs/sampling.md``).

Always true: an id that is not of the vocabulary is refused; what needs the whole vocabulary is
worked out once for the same words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from insitu.engine.shaping import Dry, Shaping
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.codec.tokenizer import Tokenizer
    from insitu.sampling_params import SamplingParams

_BAN = float("-inf")


class Chooser:
    """Knows the vocabulary, and what the model's file says of sampling."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, defaults: Mapping[str, float]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._defaults = defaults
        self._breakers = lru_cache(maxsize=8)(self._find_breakers)

    def check(self, sampling: SamplingParams, max_tokens: int) -> None:
        """Refuse what this model cannot do; may take milliseconds."""
        for token_id in sampling.logit_bias:
            if not 0 <= token_id < self._vocab_size:
                raise Refusal(
                    f"logit_bias has token id {token_id}; the model's run from 0 to "
                    f"{self._vocab_size - 1}.",
                    param="logit_bias",
                    code="invalid_token_id",
                )
        if sampling.min_tokens > max_tokens:
            raise Refusal(
                f"min_tokens is {sampling.min_tokens}, but at most {max_tokens} tokens are made.",
                param="min_tokens",
                code="invalid_value",
            )
        self.words(sampling)  # worked out here, off the event loop, and known from then on

    def words(self, sampling: SamplingParams) -> Shaping:
        """The values of single tokens."""
        chosen = sampling.over(self._defaults)
        most = sampling.MAX_BIAS
        return Shaping(
            logit_bias=tuple(
                (int(token_id), _BAN if value == -most else float(value))
                for token_id, value in sampling.logit_bias.items()
            ),
            repetition=chosen["repetition_penalty"],
            presence=chosen["presence_penalty"],
            frequency=chosen["frequency_penalty"],
            last_n=int(chosen["penalty_last_n"]),
            dry=self._dry(chosen, sampling.dry_sequence_breakers),
            banned=self._banned(sampling.bad_words),
            min_tokens=sampling.min_tokens,
        )

    def prompt_fields(self, sampling: SamplingParams) -> dict[str, Any]:
        """The fields of a ``Prompt`` that say how its tokens are chosen."""
        chosen = sampling.over(self._defaults)
        return {
            "temperature": chosen["temperature"],
            "top_k": int(chosen["top_k"]) or None,
            "top_p": chosen["top_p"],
            "min_p": chosen["min_p"],
            "typical_p": chosen["typical_p"],
            "top_n_sigma": chosen["top_n_sigma"],
            "xtc_probability": chosen["xtc_probability"],
            "xtc_threshold": chosen["xtc_threshold"],
            "order": sampling.preset.order,
            "shaping": self.words(sampling),
            # The likeliest choices are found by what they are made of.
            "num_logprobs": sampling.logprobs
            or (0 if sampling.drops_choices else sampling.logprobs),
            "num_prompt_logprobs": sampling.prompt_logprobs,
            "has_processed_logprobs": sampling.logprobs_mode == "processed",
            "num_choices": sampling.num_choices,
        }

    def _dry(self, chosen: Mapping[str, float], breakers: Sequence[str]) -> Dry | None:
        if chosen["dry_multiplier"] == 0:
            return None
        return Dry(
            multiplier=chosen["dry_multiplier"],
            base=chosen["dry_base"],
            allowed_length=int(chosen["dry_allowed_length"]),
            last_n=int(chosen["dry_last_n"]),
            breakers=self._breakers(tuple(breakers)),
        )

    def _banned(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ids of each word as a text begins with it, and as one follows another."""
        spellings = [spelling for word in words for spelling in (word, f" {word}")]
        ids = [
            tuple(self._tokenizer.encode(one, add_special_tokens=False, parse_special=False))
            for one in spellings
        ]
        return tuple(dict.fromkeys(filter(None, ids)))

    def _find_breakers(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Every token in whose text one of these is."""
        spelled = [text.encode() for text in texts]
        return frozenset(
            token_id
            for token_id in range(self._vocab_size)
            if any(one in self._tokenizer.token_bytes(token_id) for one in spelled)
        )

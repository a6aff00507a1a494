"""From what the engine made of a prompt that is embedded to its one delta; and its limits.

Not here: making vectors (``engine``), their form on the wire (``server``). Always true: a vector
has length 1, whole or cut; that a prompt was cut is said.
"""

from __future__ import annotations

import math
import sys
from array import array
from typing import TYPE_CHECKING

from insitu.refusal import Refusal, RequestFailed
from insitu.types import Delta, Embedding, Prepared, Usage

if TYPE_CHECKING:
    from insitu.engine.sequence import Output
    from insitu.types import Request, Tokenized


def prepare_embedding(
    request: Request, tokenized: Tokenized, max_model_len: int, embedding_size: int
) -> Prepared:
    """A prompt that may fill the whole context: nothing follows it."""
    wanted = request.embedding
    assert wanted is not None
    if wanted.dimensions is not None and not 1 <= wanted.dimensions <= embedding_size:
        message = f"dimensions must be from 1 to {embedding_size}, which the model's vectors have."
        raise Refusal(message, param="dimensions", code="invalid_value")
    most = max_model_len if wanted.max_tokens is None else min(wanted.max_tokens, max_model_len)
    token_ids, warnings = tokenized.token_ids, tokenized.warnings
    if len(token_ids) > most:
        if not wanted.is_cut:
            raise Refusal(
                f"At most {most} tokens are embedded, but the prompt has {len(token_ids)}.",
                param="prompt",
                code="context_length_exceeded",
            )
        warnings += (f"The prompt was cut to its first {most} tokens.",)
    return Prepared(request, token_ids[:most], 0, 0, tokenized.prompt_text, warnings)


class EmbeddedAnswer:
    """Takes the one output of a prompt that is embedded."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self.is_finished = False

    def take(self, output: Output) -> Delta | None:
        """The delta of an output; raises the output's error."""
        if output.error is not None:
            raise output.error
        assert output.vector is not None
        self.is_finished = True
        prepared = self._prepared
        return Delta(
            finish_reason=output.finish_reason,
            usage=Usage(prepared.num_prompt_tokens, 0, output.num_cached_tokens),
            vector=_shown(output.vector, prepared.request.embedding or Embedding()),
        )


def _shown(vector: bytes, wanted: Embedding) -> bytes:
    numbers = array("f", vector)
    if wanted.dimensions is not None and wanted.dimensions < len(numbers):
        numbers = _unit(numbers[: wanted.dimensions])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unit(numbers: array[float]) -> array[float]:
    """The same direction, of length 1: sums without rounding, so that no machine gives others."""
    length = math.sqrt(math.fsum(one * one for one in numbers))
    if length == 0:
        message = f"The first {len(numbers)} numbers of the vector are 0: they have no direction."
        raise RequestFailed(message, param="dimensions")
    return array("f", [one / length for one in numbers])

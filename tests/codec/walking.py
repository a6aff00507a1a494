"""Constraints walked by hand: which texts they accept, and texts that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from codec.tiny_vocabulary import FakeSource

from insitu.codec.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from insitu.types import TokenConstraint


def tiny_tokenizer() -> Tokenizer:
    """The tests' vocabulary."""
    return load_tokenizer(FakeSource())  # type: ignore[arg-type]


def allowed(constraint: TokenConstraint, tokenizer: Tokenizer) -> list[int] | None:
    """The ids that may come next; None where all may."""
    bits = np.zeros(-(-tokenizer.vocab_size // 32) * 4, np.uint8)
    if not constraint.fill_mask(memoryview(bits.data)):
        return None
    ids = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    return [int(one) for one in ids if one < tokenizer.vocab_size]


def takes(constraint: TokenConstraint, tokenizer: Tokenizer, text: str | bytes) -> bool | None:
    """Whether a text is all there may be; None where it may only begin so.

    However it is spelt: where only one text can follow, a grammar allows one spelling of it.
    """
    raw = text.encode() if isinstance(text, str) else text
    ids = allowed(constraint, tokenizer)
    if not raw:
        return True if ids is None or tokenizer.end_ids & set(ids) else None
    spelt = {one: tokenizer.token_bytes(one) for one in ids or range(tokenizer.vocab_size)}
    fitting = [one for one, left in spelt.items() if left and raw.startswith(left)]
    for token_id in sorted(fitting, key=lambda one: -len(spelt[one])):
        if tokenizer.is_control(token_id):
            continue
        walked = constraint.fork()
        walked.advance(token_id)
        answer = takes(walked, tokenizer, raw[len(spelt[token_id]) :])
        if answer is not False:
            return answer
    return False


def spoken(
    constraint: TokenConstraint, tokenizer: Tokenizer, draw: Random, most: int = 400
) -> tuple[list[int], bool]:
    """A random walk's ids without the end id, and whether it ended."""
    walked, ids = constraint.fork(), list[int]()
    while len(ids) < most:
        choices = allowed(walked, tokenizer) or list(range(tokenizer.vocab_size))
        ends: Sequence[int] = [one for one in choices if one in tokenizer.end_ids]
        if ends and (len(ends) == len(choices) or draw.random() < 0.5):
            return ids, True
        token_id = draw.choice([one for one in choices if one not in ends])
        walked.advance(token_id)
        ids.append(token_id)
    return ids, False

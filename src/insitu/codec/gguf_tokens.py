"""What GGUF metadata lists of tokens: spellings, types, scores, ids by name.

Not here: what a kind of vocabulary makes of them (``gguf_encoders``).

Always true: types are as many as tokens, ids named are among them; a fault names its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from insitu.codec.vocabulary import TokenType
from insitu.weights.errors import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from insitu.weights.metadata import Metadata

KEY = "tokenizer.ggml."


@dataclass(frozen=True)
class GGUFTokens:
    """A file's tokens by id; ``named``: ids by key, such as ``eos_token_id``."""

    path: Path
    metadata: Metadata
    pieces: list[str]
    types: list[int]
    named: dict[str, int]

    @cached_property
    def _by_type(self) -> dict[int, list[int]]:
        types = np.array(self.types)
        return {kind: np.flatnonzero(types == kind).tolist() for kind in TokenType}

    def of(self, kind: TokenType) -> list[int]:
        """Ids of one type."""
        return self._by_type[kind]

    @cached_property
    def byte_of(self) -> dict[int, int]:
        """The byte that each token of that type stands for."""
        found = {}
        for token_id in self.of(TokenType.BYTE):
            piece = self.pieces[token_id]
            if len(piece) != 6 or not (piece.startswith("<0x") and piece.endswith(">")):
                raise self.fault(token_id, f"is {shown(piece)}, not a byte such as <0x0A>")
            try:
                found[token_id] = int(piece[3:5], 16)
            except ValueError as error:
                raise self.fault(token_id, f"is {shown(piece)}, not a byte") from error
        return found

    @cached_property
    def byte_ids(self) -> dict[int, int]:
        """The token of each byte that has one."""
        return {byte: token_id for token_id, byte in self.byte_of.items()}

    def fault(self, token_id: int, message: str) -> Exception:
        """The error to raise about a token."""
        return self.metadata.fault(f"{KEY}tokens[{token_id}]", message)

    def scores(self) -> list[float]:
        """A score for each token."""
        scores: list[float] = self.metadata.numbers(KEY + "scores")
        if len(scores) != len(self.pieces):
            message = f"has {len(scores)} entries for {len(self.pieces)} tokens"
            raise self.metadata.fault(KEY + "scores", message)
        return scores


def named_ids(metadata: Metadata, keys: Iterable[str], num_tokens: int) -> dict[str, int]:
    """Ids that keys name."""
    named = {}
    for key in keys:
        token_id = metadata.integer(KEY + key, None, minimum=0, maximum=num_tokens - 1)
        if token_id is not None:
            named[key] = token_id
    return named


def types_of(
    metadata: Metadata, num_tokens: int, named: dict[str, int], allowed: Collection[int]
) -> list[int]:
    """Each token's type; where the file has none, the ids it names are control tokens."""
    key = KEY + "token_type"
    types = metadata.integers(key, None)
    if types is None:
        control = set(named.values())
        return [TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(num_tokens)]
    if len(types) != num_tokens:
        message = f"has {len(types)} entries for {num_tokens} tokens"
        raise metadata.fault(key, message)
    unknown = set(types) - set(allowed)
    if unknown:
        kind = min(unknown)
        message = f"is {kind}, which this kind of vocabulary does not have"
        raise metadata.fault(f"{key}[{types.index(kind)}]", message)
    return types


def spellings(tokens: GGUFTokens, ids: list[int]) -> dict[str, int]:
    """Spelling to id; none is empty, no two are the same."""
    pieces = tokens.pieces
    found = {pieces[token_id]: token_id for token_id in ids}
    if len(found) != len(ids) or "" in found:
        for token_id in ids:
            piece = pieces[token_id]
            if not piece:
                raise tokens.fault(token_id, "is empty")
            if found[piece] != token_id:
                raise tokens.fault(token_id, f"is {shown(piece)}, as is token {found[piece]}")
    return found

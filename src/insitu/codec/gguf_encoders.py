"""How the kinds of vocabulary in GGUF files encode: one function a ``tokenizer.ggml.model``.

Not here: tokens matched as a whole, ids put around a text (``gguf_vocabulary``).

Always true: what merging or searching may give holds no control token and no marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from insitu.codec.byte_map import mapped_bytes, missing_bytes
from insitu.codec.gguf_tokens import KEY, spellings
from insitu.codec.piece_merger import SPACE, PieceMerger
from insitu.codec.pretokenizers import FAMILIES, Family, pre_tokenizer_of
from insitu.codec.vocabulary import MergeFault, TokenType, build_bpe, plain_encoder
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.gguf_tokens import GGUFTokens

_BYTE_LEVEL_TYPES = frozenset(set(TokenType) - {TokenType.BYTE})


@dataclass(frozen=True, slots=True)
class Encoder:
    """What a kind of vocabulary does with text; fields as in ``Vocabulary``.

    ``begin_key``, ``end_key``: the ids around a text; ``adds_begin``, ``adds_end``: whether they
    are put there where the file does not say.
    """

    encode_plain: Callable[[str, bool], list[int]]
    spell: Callable[[str], bytes]
    missing_bytes: bytes = b""
    dummy_space: Literal["never", "always"] = "never"
    is_lossy: bool = False
    begin_key: str = "bos_token_id"
    end_key: str = "eos_token_id"
    adds_begin: bool = False
    adds_end: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One ``tokenizer.ggml.model``; ``defaults``: ids that files of this kind need not name."""

    build: Callable[[GGUFTokens], Encoder]
    token_types: frozenset[int] = frozenset(TokenType)
    defaults: tuple[tuple[str, int], ...] = ()

    def default_ids(self, num_tokens: int) -> dict[str, int]:
        """Those of the defaults that there are."""
        return {key: token_id for key, token_id in self.defaults if token_id < num_tokens}


def _byte_level(tokens: GGUFTokens) -> Encoder:
    family = _family(tokens)
    normal = spellings(tokens, tokens.of(TokenType.NORMAL))
    if tokens.metadata.has(KEY + "scores"):
        # Merging by rank needs no scores; but a file that has wrong ones is a broken file.
        tokens.scores()
    tokenizer = _bpe(tokens, normal, ignore_merges=family.whole_words)
    tokenizer.pre_tokenizer = pre_tokenizer_of(family)
    return Encoder(
        plain_encoder(tokenizer),
        mapped_bytes,
        missing_bytes=missing_bytes(normal),
        adds_begin=family.adds_bos,
    )


def _family(tokens: GGUFTokens) -> Family:
    metadata = tokens.metadata
    pre = metadata.string(KEY + "pre", "default")
    if pre not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        message = f"pre-tokenizer {shown(pre)} is not supported; supported: {known}"
        raise UnsupportedModelError(tokens.path, f"key {KEY}pre", message)
    if metadata.boolean(KEY + "add_space_prefix", False):
        message = "a space before the text is not supported in a byte-level vocabulary"
        raise UnsupportedModelError(tokens.path, f"key {KEY}add_space_prefix", message)
    return FAMILIES[pre]


def _bpe(tokens: GGUFTokens, normal: dict[str, int], **options: Any) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

    key = KEY + "merges"
    lines: list[str] = tokens.metadata.strings(key)
    merges: list[Any] = [tuple(line.split(" ")) for line in lines]
    if not set(map(len, merges)) <= {2}:
        index = next(i for i, parts in enumerate(merges) if len(parts) != 2)
        message = f"is {shown(lines[index])}, not two parts with a space between"
        raise tokens.metadata.fault(f"{key}[{index}]", message)
    whole = [*tokens.of(TokenType.CONTROL), *tokens.of(TokenType.USER_DEFINED)]
    added = {tokens.pieces[token_id]: token_id for token_id in whole}
    try:
        return Tokenizer(build_bpe(normal, merges, added, **options))
    except MergeFault as fault:
        raise tokens.metadata.fault(f"{key}[{fault.index}]", fault.reason) from fault


def _sentencepiece(tokens: GGUFTokens) -> Encoder:
    normal = spellings(tokens, tokens.of(TokenType.NORMAL))
    merger = PieceMerger(normal, tokens.scores(), tokens.byte_ids)
    has_dummy_space = tokens.metadata.boolean(KEY + "add_space_prefix", True)

    def encode_plain(text: str, begins: bool) -> list[int]:
        return merger.encode(SPACE * begins + text.replace(" ", SPACE))

    return Encoder(
        encode_plain,
        spell_piece,
        # As the converters of these files have it: before each stretch between markers.
        dummy_space="always" if has_dummy_space else "never",
        adds_begin=True,
    )


def spell_piece(piece: str) -> bytes:
    """A SentencePiece token's bytes: its word marks are spaces."""
    return piece.replace(SPACE, " ").encode()


KINDS: dict[str, Kind] = {
    "gpt2": Kind(_byte_level, _BYTE_LEVEL_TYPES),
    "llama": Kind(
        _sentencepiece,
        defaults=(("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)),
    ),
}

"""How the kinds of vocabulary in GGUF files encode: one function a ``tokenizer.ggml.model``.

Not here: tokens matched as a whole, ids put around a text (``gguf_vocabulary``).

Always true: what merging or searching may give holds no control token and no marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from insitu.codec.byte_map import mapped_bytes, missing_bytes
from insitu.codec.chars_map import CharsMap, CharsMapFault
from insitu.codec.gguf_tokens import KEY, spellings
from insitu.codec.piece_merger import SPACE, PieceMerger, RankedMerger
from insitu.codec.pretokenizers import FAMILIES, Family, plain_encoder, word_encoder
from insitu.codec.vocabulary import MergeFault, TokenType, build_bpe
from insitu.refusal import Refusal
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from insitu.codec.gguf_tokens import GGUFTokens
    from insitu.weights.metadata import Metadata

MAX_PIECE_CHARS = 512  # of a piece that is searched for at every place of a text
_LINES = re.compile(r"[^\n]+|\n+")
_MERGES = KEY + "merges"
# Our own keys, in files that were made of a tokenizer.json with a normaliser, or with Metaspace,
# which puts a space before the first stretch of a prompt, or each, if none is there.
NORMALIZER, NFC = "insitu.tokenizer.normalizer", "NFC"
METASPACE = "insitu.tokenizer.metaspace"
# What no text can spell: a space never is part of a word.
_UNKNOWN = "[UNK] "
_ALL_BYTES = 256
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
    dummy_space: Literal["never", "first", "always"] = "never"
    is_normalized: bool = False
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
    is_normalized = _normalize(tokens, tokenizer)
    return Encoder(
        word_encoder(tokenizer, family),
        mapped_bytes,
        missing_bytes=missing_bytes(normal),
        is_normalized=is_normalized,
        adds_begin=family.adds_bos,
    )


def _normalize(tokens: GGUFTokens, tokenizer: Any) -> bool:
    """Whether text is put into a normal form first, of which the format's own keys say nothing."""
    from tokenizers import normalizers  # noqa: PLC0415 - slow to import

    form = tokens.metadata.string(NORMALIZER, "")
    if form not in {"", NFC}:
        message = f"{shown(form)} is not supported; supported: {NFC}"
        raise UnsupportedModelError(tokens.path, f"key {NORMALIZER}", message)
    if form:
        tokenizer.normalizer = normalizers.NFC()
    return bool(form)


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

    whole = [*tokens.of(TokenType.CONTROL), *tokens.of(TokenType.USER_DEFINED)]
    added = {tokens.pieces[token_id]: token_id for token_id in whole}
    try:
        return Tokenizer(build_bpe(normal, _Merges(tokens.metadata), added, **options))
    except MergeFault as fault:
        raise tokens.metadata.fault(f"{_MERGES}[{fault.index}]", fault.reason) from fault


class _Merges(Sequence[tuple[str, ...]]):
    """Both parts of each merge, made as the library goes through them; a list is 300 bytes each."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def __len__(self) -> int:
        return self._metadata.length(_MERGES)

    def __getitem__(self, index: Any) -> Any:  # what makes it a sequence to the library
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return map(tuple, map(str.split, self._metadata.each_string(_MERGES), repeat(" ")))


def _sentencepiece(tokens: GGUFTokens) -> Encoder:
    normal = spellings(tokens, tokens.of(TokenType.NORMAL))
    merger = PieceMerger(normal, tokens.scores(), tokens.byte_ids)
    scheme, is_metaspace = _space_prefix(tokens)

    def encode_plain(text: str, begins: bool) -> list[int]:
        return merger.encode(_marked(text, begins=begins, is_metaspace=is_metaspace))

    return Encoder(encode_plain, spell_piece, dummy_space=scheme, adds_begin=True)


def _marked(text: str, *, begins: bool, is_metaspace: bool) -> str:
    """A text, its spaces written as word marks, after another one if it begins with it."""
    marked = text.replace(" ", SPACE)
    has_one = is_metaspace and marked[:1] in {"", SPACE}
    return marked if has_one or not begins else SPACE + marked


def _space_prefix(tokens: GGUFTokens) -> tuple[Literal["never", "first", "always"], bool]:
    """When a space is put before a text, and whether only before one that has none."""
    scheme = tokens.metadata.string(METASPACE, None)
    if scheme is None:
        # As the converters of these files have it: before each stretch between markers.
        is_wanted = tokens.metadata.boolean(KEY + "add_space_prefix", True)
        return ("always" if is_wanted else "never"), False
    schemes: dict[str, Literal["first", "always"]] = {"first": "first", "always": "always"}
    if scheme not in schemes:
        message = f"{shown(scheme)} is not supported; supported: {', '.join(schemes)}"
        raise UnsupportedModelError(tokens.path, f"key {METASPACE}", message)
    return schemes[scheme], True


def _ranked(tokens: GGUFTokens) -> Encoder:
    """Gemma 4's: merges by rank over whole lines, spaces written as word marks."""
    normal = spellings(tokens, tokens.of(TokenType.NORMAL))
    ranks = {line: rank for rank, line in enumerate(tokens.metadata.each_string(_MERGES))}
    merger = RankedMerger(normal, ranks, tokens.byte_ids)

    def encode_plain(text: str, _: bool) -> list[int]:
        ids: list[int] = []
        for line in _LINES.findall(text.replace(" ", SPACE)):
            whole = normal.get(line) if line[0] == "\n" else None
            ids += merger.encode(line) if whole is None else [whole]
        return ids

    return Encoder(encode_plain, spell_piece, adds_begin=True)


def _unigram(tokens: GGUFTokens) -> Encoder:
    """T5's and XLM-RoBERTa's: the likeliest pieces; what has none is bytes, where each has a token,
    or the unknown token."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415 - slow to import

    metadata, scores = tokens.metadata, tokens.scores()
    unknown_id = tokens.named.get("unknown_token_id")
    if unknown_id is None:
        raise metadata.fault(KEY + "unknown_token_id", "is missing")
    has_bytes = len(tokens.byte_ids) == _ALL_BYTES
    # The library numbers pieces itself: ids of no control token are among those it can give.
    given = spellings(
        tokens, [*tokens.of(TokenType.NORMAL), *(tokens.byte_of if has_bytes else ())]
    )
    for piece, token_id in given.items():
        if len(piece) > MAX_PIECE_CHARS:
            raise tokens.fault(token_id, f"is longer than {MAX_PIECE_CHARS} characters")
    ids = [unknown_id, *given.values()]
    pieces = [(_UNKNOWN, 0.0), *zip(given, map(scores.__getitem__, given.values()), strict=True)]
    encode = plain_encoder(Tokenizer(models.Unigram(pieces, 0, has_bytes)))
    normalized = _chars_map(tokens)
    merges_spaces = metadata.boolean(KEY + "remove_extra_whitespaces", False)
    scheme, is_metaspace = _space_prefix(tokens)

    def encode_plain(text: str, begins: bool) -> list[int]:
        try:
            text = normalized(text)
        except CharsMapFault as fault:
            message = f"The model's normalisation table {fault}, so this text has no ids."
            raise Refusal(message, code="unencodable_text") from fault
        if merges_spaces:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        elif text:
            text = _marked(text, begins=begins, is_metaspace=is_metaspace)
        return [ids[index] for index in encode(text, False)] if text else []

    return Encoder(encode_plain, spell_piece, dummy_space=scheme, is_lossy=True, adds_end=True)


def _chars_map(tokens: GGUFTokens) -> Callable[[str], str]:
    key = KEY + "precompiled_charsmap"
    raw = tokens.metadata.integers(key, None, minimum=-128, maximum=255)
    if not raw:
        return str
    try:
        return CharsMap(bytes(byte & 0xFF for byte in raw)).normalized
    except CharsMapFault as fault:
        raise tokens.metadata.fault(key, str(fault)) from fault


def _word_piece(tokens: GGUFTokens) -> Encoder:
    """BERT's: words in small letters, cut into the longest pieces from the left."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers  # noqa: PLC0415

    metadata, unknown_id = tokens.metadata, tokens.named["unknown_token_id"]
    vocabulary = {_UNKNOWN: unknown_id}
    for token_id in tokens.of(TokenType.NORMAL):
        piece = tokens.pieces[token_id]
        vocabulary[piece[1:] if piece.startswith(SPACE) else f"##{piece}"] = token_id
    lowers = metadata.boolean(KEY + "normalizer.lowercase", True)
    strips = metadata.boolean(KEY + "normalizer.strip_accents", lowers)
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strips, lowercase=lowers
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Encoder(
        plain_encoder(tokenizer),
        spell_piece,
        dummy_space="always",
        is_lossy=True,
        begin_key="cls_token_id",
        end_key="seperator_token_id",
        adds_begin=True,
        adds_end=True,
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
    "gemma4": Kind(_ranked),
    "t5": Kind(
        _unigram,
        defaults=(("eos_token_id", 1), ("unknown_token_id", 2), ("padding_token_id", 0)),
    ),
    "bert": Kind(
        _word_piece,
        defaults=(
            ("cls_token_id", 101),
            ("seperator_token_id", 102),
            ("unknown_token_id", 100),
            ("padding_token_id", 0),
            ("mask_token_id", 103),
        ),
    ),
}

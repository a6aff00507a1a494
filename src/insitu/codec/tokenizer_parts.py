"""What a tokenizer.json says of cutting and normalising, given to the library part by part.

Not here: its tokens (``tokenizer_json``).

Always true: each part is understood or refused by name; what the library is given holds no added
token, so it can never recognise one. A space that a text begins with by rule is put there only
where the tokenizer asks for it: the parts that would do it are given twice, with it and without.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from insitu.codec.byte_map import mapped_bytes, missing_bytes
from insitu.codec.gguf_encoders import MAX_PIECE_CHARS, spell_piece
from insitu.codec.piece_merger import SPACE
from insitu.codec.pretokenizers import plain_encoder
from insitu.codec.tokenizer_steps import TokenizerFile, check_normalizers, check_word_mark
from insitu.codec.vocabulary import MergeFault, UnencodableText, build_bpe, is_panic
from insitu.refusal import Refusal
from insitu.weights.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_WORD_CHARS = 1_000
_UNKNOWN = "[UNK] "  # what no text can spell: a space never is part of a word
_TRIED = (*map(chr, range(32, 127)), "\n", "\t", "é", "日", "\u0301")
_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
_NORMALIZERS = frozenset(
    {
        "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend",
        "BertNormalizer", "Precompiled", "Nmt",
    }
)  # fmt: skip
_BYTE_LEVEL_NORMALIZERS = frozenset({"NFC"})
_BYTE_LEVEL_CUTS = frozenset({"ByteLevel", "Split", "Digits", "Punctuation"})
_CUTS = frozenset(
    {"Split", "Digits", "Punctuation", "Metaspace", "Whitespace", "WhitespaceSplit"}
    | {"BertPreTokenizer", "UnicodeScripts"}
)
_DECODERS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


@dataclass(frozen=True, slots=True)
class Engine:
    """How text becomes ids; fields as in ``Vocabulary``."""

    encode_plain: Callable[[str, bool], list[int]]
    spell: Callable[[str], bytes] = mapped_bytes
    byte_of: Mapping[int, int] = field(default_factory=dict)
    missing_bytes: bytes = b""
    dummy_space: Literal["never", "first", "always"] = "never"
    is_normalized: bool = False
    is_lossy: bool = False


def build_engine(file: TokenizerFile, normal: dict[str, int], added: dict[str, int]) -> Engine:
    """The engine of a file whose ``normal`` tokens are text and whose ``added`` ones are not."""
    model = file.values["model"]
    kind = file.model_kind()
    builders = {"BPE": _bpe, "Unigram": _unigram, "WordPiece": _word_piece}
    if not isinstance(kind, str) or kind not in builders:
        raise file.unsupported("model.type", kind)
    for key in ("dropout", "end_of_word_suffix"):
        if model.get(key):
            raise file.unsupported(f"model.{key}", model[key])
    return builders[kind](file, normal, added)


def is_byte_level(file: TokenizerFile) -> bool:
    """Whether pieces are spelt in characters that stand for bytes."""
    cuts = file.steps("pre_tokenizer", "pretokenizers")
    return bool(cuts) and cuts[-1].get("type") == "ByteLevel"


def _bpe(file: TokenizerFile, normal: dict[str, int], added: dict[str, int]) -> Engine:
    if is_byte_level(file):
        return _byte_level(file, normal, added)
    file.known_steps("decoder", "decoders", _DECODERS)
    model = file.values["model"]
    if model.get("continuing_subword_prefix"):
        raise file.unsupported(
            "model.continuing_subword_prefix", model["continuing_subword_prefix"]
        )
    if not any(piece.startswith(SPACE) for piece in normal):
        raise file.unsupported("pre_tokenizer", "one that neither maps bytes nor marks words")
    unknown = model.get("unk_token")
    unknown_id = added.get(unknown, normal.get(unknown)) if isinstance(unknown, str) else None
    tokens = dict(normal) if unknown_id is None else {**normal, _UNKNOWN: unknown_id}
    keys = ("byte_fallback", "fuse_unk", "ignore_merges")
    options: dict[str, Any] = {key: file.flag("model", model, key) for key in keys}
    options["unk_token"] = None if unknown_id is None else _UNKNOWN
    encode, dummy_space = _encoder(file, _merging(file, tokens, added, options))
    characters = frozenset("".join(normal))

    def encode_plain(text: str, begins: bool) -> list[int]:
        ids = encode(text, begins)
        if unknown_id in ids:
            missing = (c for c in text if c not in characters and c != " ")
            raise UnencodableText(next(missing, text[0]))
        return ids

    byte_of = _byte_tokens(normal) if options["byte_fallback"] else {}
    return Engine(
        encode if unknown_id is None else encode_plain,
        spell_piece,
        byte_of,
        dummy_space=dummy_space,
        is_lossy=_is_lossy(file),
    )


def _byte_level(file: TokenizerFile, normal: dict[str, int], added: dict[str, int]) -> Engine:
    file.known_steps("decoder", "decoders", frozenset({"ByteLevel"}))
    file.known_steps("normalizer", "normalizers", _BYTE_LEVEL_NORMALIZERS)
    steps = file.known_steps("pre_tokenizer", "pretokenizers", _BYTE_LEVEL_CUTS)
    model = file.values["model"]
    adds = [file.flag("pre_tokenizer", step, "add_prefix_space") for step in steps]
    if any(adds) or any(step.get("behavior") == "Removed" for step in steps):
        raise file.unsupported("pre_tokenizer", "one that adds or removes text")
    falls_back = file.flag("model", model, "byte_fallback")
    if falls_back or model.get("continuing_subword_prefix"):
        raise file.unsupported("model", "byte_fallback or a prefix beside ByteLevel")
    options = {"ignore_merges": file.flag("model", model, "ignore_merges")}
    encode, _ = _encoder(file, _merging(file, normal, added, options))
    return Engine(
        encode,
        missing_bytes=missing_bytes(normal),
        is_normalized=file.values.get("normalizer") is not None,
    )


def _merging(
    file: TokenizerFile, tokens: dict[str, int], added: dict[str, int], options: dict[str, Any]
) -> Any:
    lines = file.values["model"].get("merges")
    if not isinstance(lines, list):
        raise file.fault("model.merges", "is not an array")
    merges = []
    for index, line in enumerate(lines):
        parts = line.split(" ") if isinstance(line, str) else line
        if (
            not isinstance(parts, list)
            or len(parts) != 2
            or not all(isinstance(part, str) and part for part in parts)
        ):
            raise file.fault(f"model.merges[{index}]", "is not two parts")
        merges.append((parts[0], parts[1]))
    try:
        return build_bpe(tokens, merges, added, **options)
    except MergeFault as fault:
        raise file.fault(f"model.merges[{fault.index}]", fault.reason) from fault


def _unigram(file: TokenizerFile, normal: dict[str, int], added: dict[str, int]) -> Engine:
    from tokenizers import models  # noqa: PLC0415 - slow to import

    file.known_steps("decoder", "decoders", _DECODERS)
    steps = (
        *file.steps("normalizer", "normalizers"),
        *file.steps("pre_tokenizer", "pretokenizers"),
    )
    if not any(step.get("type") == "Metaspace" or _marks_words(step) for step in steps):
        raise file.unsupported("pre_tokenizer", "one without Metaspace")
    model = file.values["model"]
    unknown_id, listed = model.get("unk_id"), model["vocab"]
    if type(unknown_id) is not int or not 0 <= unknown_id < len(listed):
        raise file.fault("model.unk_id", "is not the id of a token")
    for index, (piece, _) in enumerate(listed):
        if len(piece) > MAX_PIECE_CHARS:
            raise file.fault(
                f"model.vocab[{index}]", f"is longer than {MAX_PIECE_CHARS} characters"
            )
    # Ids are places in the list: an added token keeps its place, spelt as no text can be.
    pieces = [(f" {piece}" if piece in added else piece, score) for piece, score in listed]
    has_bytes = file.flag("model", model, "byte_fallback")
    encode, dummy_space = _encoder(file, models.Unigram(pieces, unknown_id, has_bytes))
    byte_of = _byte_tokens(normal) if has_bytes else {}
    return Engine(encode, spell_piece, byte_of, dummy_space=dummy_space, is_lossy=True)


def _marks_words(step: dict[str, Any]) -> bool:
    is_replaced = step.get("type") == "Replace" and step.get("content") == SPACE
    return is_replaced and step.get("pattern") == {"String": " "}


def _word_piece(file: TokenizerFile, normal: dict[str, int], added: dict[str, int]) -> Engine:
    from tokenizers import models  # noqa: PLC0415 - slow to import

    file.known_steps("decoder", "decoders", frozenset({"WordPiece"}))
    model = file.values["model"]
    unknown, most = model.get("unk_token", "[UNK]"), model.get("max_input_chars_per_word", 100)
    is_text = isinstance(unknown, str)
    unknown_id = added.get(unknown, normal.get(unknown)) if is_text else None
    if unknown_id is None:
        raise file.fault("model.unk_token", f"{shown(str(unknown))} is not a token")
    if type(most) is not int or not 1 <= most <= MAX_WORD_CHARS:
        raise file.unsupported("model.max_input_chars_per_word", most)
    prefix = model.get("continuing_subword_prefix", "##")
    if not isinstance(prefix, str):
        raise file.fault("model.continuing_subword_prefix", "is not a text")
    tokens = {**normal, _UNKNOWN: unknown_id}
    words = models.WordPiece(
        vocab=tokens,
        unk_token=_UNKNOWN,
        max_input_chars_per_word=most,
        continuing_subword_prefix=prefix,
    )
    encode, _ = _encoder(file, words)

    def spell(piece: str) -> bytes:
        goes_on = prefix and piece.startswith(prefix)
        return (piece[len(prefix) :] if goes_on else f" {piece}").encode()

    return Engine(encode, spell, dummy_space="always", is_lossy=True)


def _is_lossy(file: TokenizerFile) -> bool:
    steps = file.steps("normalizer", "normalizers")
    return not all(step["type"] in {"Prepend", "Replace"} for step in steps)


def _byte_tokens(normal: dict[str, int]) -> dict[int, int]:
    found = ((_BYTE_PIECE.fullmatch(piece), token_id) for piece, token_id in normal.items())
    return {token_id: int(match.group(1), 16) for match, token_id in found if match}


def _encoder(
    file: TokenizerFile, model: Any
) -> tuple[Callable[[str, bool], list[int]], Literal["never", "first", "always"]]:
    """Ids by the library, and when the file puts a space before a text."""
    normalizers = file.known_steps("normalizer", "normalizers", _NORMALIZERS)
    check_normalizers(file, normalizers)
    cuts = file.known_steps("pre_tokenizer", "pretokenizers", _CUTS | {"ByteLevel"})
    for step in cuts:
        if step["type"] == "Metaspace":
            check_word_mark(file, step)
    schemes = [_scheme(step) for step in [*normalizers, *cuts]]
    scheme: Literal["never", "first", "always"] = (
        "always" if "always" in schemes else "first" if "first" in schemes else "never"
    )
    bare = plain_encoder(_tokenizer(file, model, _bare(normalizers), _bare(cuts)))
    _try_expressions(file, [*normalizers, *cuts], bare)
    if scheme == "never":
        return bare, scheme
    begun = plain_encoder(_tokenizer(file, model, normalizers, [_begun(step) for step in cuts]))

    def encode_plain(text: str, begins: bool) -> list[int]:
        return begun(text, True) if begins else bare(text, False)

    return encode_plain, scheme


def _try_expressions(
    file: TokenizerFile, steps: list[dict[str, Any]], encode: Callable[[str, bool], list[int]]
) -> None:
    """Refuse expressions whose steps double with each more of one character.

    The library gives up after so many steps, whatever the machine.
    """
    patterns = [step.get("pattern") for step in steps]
    if not any(isinstance(pattern, dict) and "Regex" in pattern for pattern in patterns):
        return
    for character in _TRIED:
        try:
            # What follows holds what an expression may look for first.
            encode(f"{character * 64}\0{''.join(_TRIED)}", False)
        except Refusal as refusal:
            message = f"holds an expression that never ends on a row of {shown(character)}"
            raise file.fault("normalizer or pre_tokenizer", message) from refusal


def _scheme(step: dict[str, Any]) -> str:
    if step["type"] == "Prepend":
        return "always"
    if step["type"] != "Metaspace":
        return "never"
    return str(
        step.get("prepend_scheme") or ("always" if step.get("add_prefix_space") else "never")
    )


def _bare(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps without what puts a space before a text."""
    kept = [step for step in steps if step["type"] != "Prepend"]
    return [_spaced(step, "never") if step["type"] == "Metaspace" else step for step in kept]


def _begun(step: dict[str, Any]) -> dict[str, Any]:
    is_wanted = step["type"] == "Metaspace" and _scheme(step) != "never"
    return _spaced(step, "always") if is_wanted else step


def _spaced(step: dict[str, Any], scheme: str) -> dict[str, Any]:
    return {**step, "prepend_scheme": scheme, "add_prefix_space": scheme == "always"}


def _tokenizer(file: TokenizerFile, model: Any, normalizers: list[Any], cuts: list[Any]) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

    shell = {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts} if cuts else None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        tokenizer = Tokenizer.from_str(json.dumps(shell))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        where = "normalizer or pre_tokenizer"
        raise file.fault(where, shown(str(error), 200)[1:-1]) from error
    tokenizer.model = model
    return tokenizer

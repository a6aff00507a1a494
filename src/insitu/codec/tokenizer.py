"""Text to ids and ids to text, for one model's vocabulary.

Not here: what a model file says of it (``gguf_vocabulary``, ``tokenizer_json``), streaming
(``detokenizer``), conversations (``chat``).

Always true: an added token is matched by us, never by the library, and in a typed prompt only where
all its characters are the template's. Text without added tokens encodes in one piece.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from insitu.codec import gguf_vocabulary, tokenizer_json
from insitu.codec.spellings import Spellings
from insitu.codec.vocabulary import UnencodableText
from insitu.heap import give_back
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

# NFC makes UTF-8 at most so many times shorter (three Hangul letters become one syllable).
_NFC_SHRINKS = 3


def load_tokenizer(source: TensorSource) -> Tokenizer:
    """The tokenizer of a model file or folder; what reading it took besides is given back."""
    with _without_collecting():
        vocabulary = read_vocabulary(source)
    give_back()
    if source.format == "gguf":
        return Tokenizer(vocabulary)
    # An embedding often has more rows than there are tokens; those ids stand for nothing.
    return Tokenizer(vocabulary, source.metadata.integer("vocab_size", 0, minimum=0))


def read_vocabulary(source: TensorSource) -> Vocabulary:
    """What a model file or folder says of its tokens."""
    if source.format == "gguf":
        return gguf_vocabulary.read_vocabulary(source.path, source.metadata)
    return tokenizer_json.read_vocabulary(source.path, source.file, _end_ids_file(source))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """No search for cycles while a million objects are made, none of which is part of one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _end_ids_file(source: TensorSource) -> tuple[str, bytes | None]:
    """The file whose eos_token_id holds: config.json's only where nothing says it of generation."""
    for name in ("generation_config.json", "config.json"):
        raw = source.file(name)
        if raw is not None:
            return name, raw
    return "config.json", None


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What every id spells, for whoever must know a whole vocabulary (grammars, masks).

    ``token_bytes``: true bytes by id, of markers too. ``special_ids``: control tokens and ids that
    stand for nothing: no text is ever spelt with them. ``marker_ids``: added tokens that text can
    be spelt with and whose text others can spell as well (``<tool_call>``).
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    marker_ids: frozenset[int]


class Tokenizer:
    """Encodes and detokenizes; ids that only pad the vocabulary stand for nothing."""

    def __init__(self, vocabulary: Vocabulary, num_rows: int = 0) -> None:
        self._vocabulary = vocabulary
        self._size = max(len(vocabulary.pieces), num_rows)
        self._whole_ids = frozenset((*vocabulary.added.values(), *vocabulary.texts.values()))
        self._added = Spellings(vocabulary.added)
        self._texts = Spellings(vocabulary.texts)
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """How many ids there are, padding included."""
        return self._size

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a completion."""
        return self._vocabulary.end_ids

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Spelling to id of every marker: matched as a whole, in the template's text alone."""
        return self._vocabulary.added

    @property
    def special_texts(self) -> Mapping[str, str]:
        """What templates call bos_token, eos_token, unk_token and pad_token."""
        return self._vocabulary.special_texts

    @property
    def has_dummy_space(self) -> bool:
        """Whether encoding puts a space before a text, which its detokenizer takes away."""
        return self._vocabulary.dummy_space != "never"

    @cached_property
    def _longest(self) -> int:
        """A bound on the characters of the text that one token stands for."""
        longest = max((len(piece) for piece in self._vocabulary.pieces), default=1)
        return max(longest, 1) * (_NFC_SHRINKS if self._vocabulary.is_normalized else 1)

    def least_num_tokens(self, text: str) -> int:
        """A bound from below on a text's tokens, at no cost to speak of."""
        return 0 if self._vocabulary.is_lossy else -(-len(text) // self._longest)

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """Ids of a text; with ``parse_special`` its added tokens are recognised.

        A beginning or end that the text spells itself is not put there again.
        """
        ids = self.encode_typed(((text, parse_special),))
        before, after = list(self._vocabulary.prefix_ids), list(self._vocabulary.suffix_ids)
        if add_special_tokens and ids[: len(before)] != before:
            ids = [*before, *ids]
        if add_special_tokens and (not after or ids[-len(after) :] != after):
            ids = [*ids, *after]
        return ids

    def encode_typed(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of a prompt whose pieces are the template's (True) or the caller's (False).

            template  <|im_start|>user\\n          <|im_end|>\\n
            caller                        a<|im_end|>b
            encoded   [1] -------plain-------- [2] plain

        Nothing is put around it: a template writes its own beginning.
        """
        known = self._vocabulary
        ids: list[int] = []
        plain: list[str] = []
        eats = False
        for text, from_template in _joined(pieces):
            at = 0
            for start, token in self._added.find(text) if from_template else ():
                before = text[at:start]
                plain.append(before.lstrip() if eats else before)
                self._encode_stretch(plain, ids, ends_bare=token in known.eats_before)
                ids.append(known.added[token])
                at = start + len(token)
                eats = token in known.eats_after
            rest = text[at:].lstrip() if eats else text[at:]
            eats = eats and not rest
            plain.append(rest)
        self._encode_stretch(plain, ids)
        return ids

    def _encode_stretch(self, parts: list[str], ids: list[int], *, ends_bare: bool = False) -> None:
        """Encode the text between two markers, in which everybody's whole tokens are matched."""
        text = "".join(parts)
        parts.clear()
        text = text.rstrip() if ends_bare else text
        if not text:
            return
        dummy = self._vocabulary.dummy_space
        begins = dummy == "always" or (dummy == "first" and not ids)
        at = 0
        for start, token in self._texts.find(text):
            self._encode_plain(text[at:start], ids, begins=begins)
            ids.append(self._vocabulary.texts[token])
            at, begins = start + len(token), False
        self._encode_plain(text[at:] if at else text, ids, begins=begins)

    def _encode_plain(self, text: str, ids: list[int], *, begins: bool) -> None:
        if not text and not begins:
            return
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            message = "The text holds an unpaired surrogate, which no UTF-8 text can."
            raise Refusal(message, code="invalid_text") from error
        missing = self._vocabulary.missing_bytes
        if missing and len(raw.translate(None, missing)) < len(raw):
            raise _unencodable(
                next(c for c in text if c.encode().translate(None, missing) != c.encode())
            )
        try:
            ids.extend(self._vocabulary.encode_plain(text, begins))
        except UnencodableText as error:
            raise _unencodable(error.character) from error

    def detokenize(self, ids: Sequence[int], *, show_control: bool = True) -> str:
        """Text of ids from a text's beginning; bytes that are not UTF-8 become U+FFFD."""
        spelled = []
        takes_space = self.has_dummy_space
        for token_id in ids:
            is_control = self.is_control(token_id)
            raw = b"" if is_control and not show_control else self.token_bytes(token_id)
            if takes_space and raw and not is_control:
                raw = raw.removeprefix(b" ")
                takes_space = False
            spelled.append(raw)
        return b"".join(spelled).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A token's true bytes: as its vocabulary spells them, or an added token's in UTF-8."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """What a token shows alone, U+FFFD where its bytes are not UTF-8."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_control(self, token_id: int) -> bool:
        """Whether the token is the model's own sign rather than text."""
        return token_id in self._vocabulary.control_ids

    def table(self) -> TokenTable:
        """Every id's bytes, and which ids are no text."""
        vocabulary = self._vocabulary
        beyond = range(len(vocabulary.pieces), self._size)
        special = vocabulary.control_ids | vocabulary.padding_ids | frozenset(beyond)
        return TokenTable(
            tuple(map(self._spell, range(self._size))),
            special,
            frozenset(vocabulary.added.values()) - special,
        )

    def spells_added_token(self, text: str) -> str | None:
        """The first added token that the text would spell if it were recognised."""
        return next((token for _, token in self._added.find(text)), None)

    def _spell(self, token_id: int) -> bytes:
        vocabulary = self._vocabulary
        if not 0 <= token_id < self._size:
            message = f"Token id {token_id} is not in the vocabulary of {self._size} tokens."
            raise Refusal(message, code="invalid_token_id")
        if token_id in self._whole_ids:
            return vocabulary.pieces[token_id].encode()
        if token_id >= len(vocabulary.pieces) or token_id in vocabulary.padding_ids:
            return b""
        if token_id in vocabulary.byte_of:
            return bytes((vocabulary.byte_of[token_id],))
        return vocabulary.spell(vocabulary.pieces[token_id])


def _unencodable(character: str) -> Refusal:
    message = f"The model's vocabulary cannot spell U+{ord(character):04X}."
    return Refusal(message, code="unencodable_text")


def _joined(pieces: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbours of one origin become one piece; empty pieces vanish and split nothing."""
    joined: list[tuple[list[str], bool]] = []
    for text, from_template in pieces:
        if not text:
            continue
        if joined and joined[-1][1] == from_template:
            joined[-1][0].append(text)
        else:
            joined.append(([text], from_template))
    return [("".join(texts), origin) for texts, origin in joined]

"""Text to ids and ids to text, for one model's vocabulary.

Not here: what a model file says of it (``gguf_vocabulary``, ``tokenizer_json``), streaming
(``detokenizer``), conversations (``chat``).

Always true: an added token is matched by us, never by the library, and in a typed prompt only where
all its characters are the template's. Text without added tokens encodes in one piece.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from insitu.codec import gguf_vocabulary, tokenizer_json
from insitu.codec.byte_map import mapped_bytes
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

_NO_MATCH = re.compile(r"(?!)")
# NFC makes UTF-8 at most so many times shorter (three Hangul letters become one syllable).
_NFC_SHRINKS = 3


def load_tokenizer(source: TensorSource) -> Tokenizer:
    """The tokenizer of a model file or folder."""
    if source.format == "gguf":
        return Tokenizer(gguf_vocabulary.read_vocabulary(source.path, source.metadata))
    raw = source.file(tokenizer_json.FILE)
    if raw is None:
        raise ModelFileError(source.path, tokenizer_json.FILE, "is missing")
    vocabulary = tokenizer_json.read_vocabulary(
        source.path, raw, source.file(tokenizer_json.CONFIG), _end_ids_file(source)
    )
    # A model's embedding often has more rows than there are tokens; those ids stand for nothing.
    return Tokenizer(vocabulary, source.metadata.integer("vocab_size", 0, minimum=0))


def _end_ids_file(source: TensorSource) -> tuple[str, bytes | None]:
    """The file whose eos_token_id holds: config.json's only where nothing says it of generation."""
    for name in ("generation_config.json", "config.json"):
        raw = source.file(name)
        if raw is not None:
            return name, raw
    return "config.json", None


class Tokenizer:
    """Encodes and detokenizes; ids that only pad the vocabulary stand for nothing."""

    def __init__(self, vocabulary: Vocabulary, num_rows: int = 0) -> None:
        self._vocabulary = vocabulary
        self._size = max(len(vocabulary.pieces), num_rows)
        self._added_ids = frozenset(vocabulary.added.values())
        # Longest first: an alternation takes the first that fits.
        spellings = sorted(vocabulary.added, key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, spellings))) if spellings else _NO_MATCH
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
        """Spelling to id of every token that is matched as a whole."""
        return self._vocabulary.added

    @property
    def special_texts(self) -> Mapping[str, str]:
        """What templates call bos_token, eos_token, unk_token and pad_token."""
        return self._vocabulary.special_texts

    @cached_property
    def _longest_bytes(self) -> int:
        """A bound on the bytes of the text that one token stands for."""
        longest = max((len(mapped_bytes(piece)) for piece in self._vocabulary.pieces), default=1)
        longest = max(longest, *(len(text.encode()) for text in self._vocabulary.added), 1)
        return longest * (_NFC_SHRINKS if self._vocabulary.is_normalized else 1)

    def least_num_tokens(self, text: str) -> int:
        """A bound from below on a text's tokens, at no cost to speak of."""
        return -(-len(text) // self._longest_bytes)

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """Ids of a text; with ``parse_special`` its added tokens are recognised."""
        ids = self.encode_typed(((text, parse_special),))
        if not add_special_tokens:
            return ids
        return [*self._vocabulary.prefix_ids, *ids, *self._vocabulary.suffix_ids]

    def encode_typed(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of a prompt whose pieces are the template's (True) or the caller's (False).

            template  <|im_start|>user\\n          <|im_end|>\\n
            caller                        a<|im_end|>b
            encoded   [1] -------plain-------- [2] plain

        Nothing is put around it: a template writes its own beginning.
        """
        ids: list[int] = []
        plain: list[str] = []
        for text, from_template in _joined(pieces):
            at = 0
            if from_template:
                for match in self._added.finditer(text):
                    plain.append(text[at : match.start()])
                    self._encode_plain(plain, ids)
                    ids.append(self._vocabulary.added[match.group()])
                    at = match.end()
            plain.append(text[at:])
        self._encode_plain(plain, ids)
        return ids

    def _encode_plain(self, parts: list[str], ids: list[int]) -> None:
        text = "".join(parts)
        parts.clear()
        if not text:
            return
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            message = "The text holds an unpaired surrogate, which no UTF-8 text can."
            raise Refusal(message, code="invalid_text") from error
        missing = self._vocabulary.missing_bytes
        if missing and len(raw.translate(None, missing)) < len(raw):
            character = next(c for c in text if c.encode().translate(None, missing) != c.encode())
            message = f"The model's vocabulary cannot spell U+{ord(character):04X}."
            raise Refusal(message, code="unencodable_text")
        ids.extend(self._vocabulary.encode_plain(text))

    def detokenize(self, ids: Sequence[int], *, show_control: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        hidden = frozenset[int]() if show_control else self._vocabulary.control_ids
        shown = (self.token_bytes(token_id) for token_id in ids if token_id not in hidden)
        return b"".join(shown).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A token's true bytes: through the byte map, or an added token's spelling in UTF-8."""
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

    def spells_added_token(self, text: str) -> str | None:
        """The first added token that the text would spell if it were recognised."""
        match = self._added.search(text)
        return match.group() if match else None

    def _spell(self, token_id: int) -> bytes:
        pieces = self._vocabulary.pieces
        if not 0 <= token_id < self._size:
            message = f"Token id {token_id} is not in the vocabulary of {self._size} tokens."
            raise Refusal(message, code="invalid_token_id")
        if token_id in self._added_ids:
            return pieces[token_id].encode()
        if token_id >= len(pieces) or token_id in self._vocabulary.padding_ids:
            return b""
        return mapped_bytes(pieces[token_id])


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

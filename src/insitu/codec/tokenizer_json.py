"""The vocabulary that a Hugging Face folder's files describe.

Not here: how text is cut and merged (``tokenizer_parts``). Read beside tokenizer.json, where they
are there: tokenizer_config.json, special_tokens_map.json and added_tokens.json.

Always true: a fault names the file and the place in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.codec.piece_merger import SPACE
from insitu.codec.pieces import Pieces
from insitu.codec.tokenizer_parts import build_engine, is_byte_level
from insitu.codec.tokenizer_steps import FILE, TokenizerFile
from insitu.codec.vocabulary import Vocabulary, texts_among
from insitu.weights.errors import ModelFileError, shown
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
MAX_VOCABULARY = 4_000_000
_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
# Classes that put these tokens around a text themselves, whatever tokenizer.json says.
_ADDING_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")


@dataclass(frozen=True, slots=True)
class _Added:
    """An added token."""

    content: str
    token_id: int
    is_special: bool
    eats_before: bool
    eats_after: bool


def read_vocabulary(
    path: Path, read: Callable[[str], bytes | None], ends: tuple[str, bytes | None]
) -> Vocabulary:
    """The vocabulary of a folder whose files ``read`` gives; ``ends`` is the end ids' file."""

    def values(name: str, raw: bytes | None) -> dict[str, Any]:
        return {} if raw is None else parse_object(path, name, raw)

    raw = read(FILE)
    if raw is None:
        raise ModelFileError(path, FILE, "is missing")
    where, ends_raw = ends
    told = (f"{where} eos_token_id", values(where, ends_raw).get("eos_token_id"))
    others = {name: values(name, read(name)) for name in (CONFIG, SPECIAL_MAP, ADDED)}
    return _Reader(TokenizerFile(path, parse_object(path, FILE, raw)), others).read(told)


class _Reader:
    def __init__(self, file: TokenizerFile, others: dict[str, dict[str, Any]]) -> None:
        self._file = file
        self._others = others
        self._config = others[CONFIG]

    def read(self, ends: tuple[str, Any]) -> Vocabulary:
        vocabulary = self._ids()
        found = [token for token in self._added() if not self._is_blank(token, vocabulary)]
        whole = {token.content: token.token_id for token in found}
        pieces = self._pieces(vocabulary, whole)
        normal = {token: i for token, i in vocabulary.items() if token not in whole}
        special = {token.content for token in found if token.is_special}
        in_text = texts_among(whole.keys() - special)
        added = {token: i for token, i in whole.items() if token not in in_text}
        texts = self._special_texts()
        engine = build_engine(self._file, normal, whole)
        prefix_ids, suffix_ids = self._around(whole, texts, len(pieces))
        return Vocabulary(
            pieces=Pieces(pieces),
            added=added,
            texts={token: whole[token] for token in in_text},
            control_ids=frozenset(whole[token] for token in special),
            padding_ids=frozenset(i for i, piece in enumerate(pieces) if not piece),
            end_ids=self._end_ids(ends, texts, {**normal, **whole}, len(pieces)),
            encode_plain=engine.encode_plain,
            spell=engine.spell,
            byte_of=engine.byte_of,
            eats_before=frozenset(token.content for token in found if token.eats_before),
            eats_after=frozenset(token.content for token in found if token.eats_after),
            missing_bytes=engine.missing_bytes,
            prefix_ids=prefix_ids,
            suffix_ids=suffix_ids,
            dummy_space=engine.dummy_space,
            is_normalized=engine.is_normalized,
            is_lossy=engine.is_lossy,
            special_texts=texts,
        )

    def _ids(self) -> dict[str, int]:
        model = self._file.values.get("model")
        if not isinstance(model, dict):
            raise self._fault("model", "is not an object")
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, list):
            vocabulary = self._listed(vocabulary)
        if not isinstance(vocabulary, dict) or not vocabulary:
            raise self._fault("model.vocab", "is not an object of tokens")
        self._require_text("model.vocab", "".join(vocabulary))
        for token, token_id in vocabulary.items():
            self._check_id(f"model.vocab.{shown(token)}", token_id)
        if len(set(vocabulary.values())) != len(vocabulary) or "" in vocabulary:
            raise self._fault("model.vocab", "gives one id to two tokens, or has an empty token")
        return vocabulary

    def _listed(self, entries: list[Any]) -> dict[str, int]:
        """A vocabulary of pieces with scores: ids are places in the list."""
        for index, entry in enumerate(entries):
            is_pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            if not is_pair or not is_score(entry[1]):
                raise self._fault(f"model.vocab[{index}]", "is not a token with its score")
        found = {entry[0]: index for index, entry in enumerate(entries)}
        if len(found) != len(entries):
            raise self._fault("model.vocab", "has a token twice")
        return found

    def _require_text(self, where: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self._fault(where, "holds an unpaired surrogate") from error

    def _check_id(self, where: str, token_id: object) -> None:
        if type(token_id) is not int or not 0 <= token_id < MAX_VOCABULARY:
            raise self._fault(where, f"must be an id from 0 to {MAX_VOCABULARY - 1}")

    def _added(self) -> list[_Added]:
        entries = self._file.values.get("added_tokens") or []
        if not isinstance(entries, list):
            raise self._fault("added_tokens", "is not an array")
        found: dict[str, _Added] = {}
        for index, entry in enumerate(entries):
            where = f"added_tokens[{index}]"
            token = self._added_token(
                where, entry, entry.get("id") if isinstance(entry, dict) else 0
            )
            if token.content in found:
                raise self._fault(where, f"{shown(token.content)} is there twice")
            found[token.content] = token
        ids = {token.token_id for token in found.values()}
        for token in self._added_elsewhere():
            if token.content not in found and token.token_id not in ids:
                found[token.content] = token
        also = self._also_special()
        return [
            token
            if token.content not in also
            else _Added(token.content, token.token_id, True, token.eats_before, token.eats_after)
            for token in found.values()
        ]

    def _is_blank(self, token: _Added, vocabulary: dict[str, int]) -> bool:
        """Whether it is a run of word marks, as Gemma's, which merging gives as any other piece."""
        is_run = not token.is_special and not token.content.strip(SPACE)
        return is_run and token.content in vocabulary and not is_byte_level(self._file)

    def _added_token(self, where: str, entry: Any, token_id: Any) -> _Added:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise self._fault(where, "is not an added token")
        self._check_id(f"{where}.id", token_id)
        if not entry["content"]:
            raise self._fault(where, "is empty")
        self._require_text(where, entry["content"])
        keys = ("single_word", "special", "lstrip", "rstrip")
        is_word, *flags = (self._file.flag(where, entry, key) for key in keys)
        if is_word:
            raise self._file.unsupported(f"{where}.single_word", True)
        return _Added(entry["content"], token_id, *flags)

    def _added_elsewhere(self) -> Iterator[_Added]:
        """Tokens that only the other files know of."""
        by_id = self._config.get("added_tokens_decoder") or {}
        if not isinstance(by_id, dict):
            raise self._elsewhere(CONFIG, "added_tokens_decoder", "is not an object")
        for key, entry in by_id.items():
            if key.isdecimal() and len(key) < 10:
                yield self._added_token(f"({CONFIG}) added_tokens_decoder.{key}", entry, int(key))
        for content, token_id in self._others[ADDED].items():
            where = f"({ADDED}) {shown(content)}"
            yield self._added_token(where, {"content": content, "special": False}, token_id)

    def _also_special(self) -> set[str]:
        """Spellings that the other files call special."""
        found = set(self._special_texts().values()) - {""}
        for name in (CONFIG, SPECIAL_MAP):
            more = self._others[name].get("additional_special_tokens") or []
            if not isinstance(more, list):
                raise self._elsewhere(name, "additional_special_tokens", "is not an array")
            for token in more:
                content = token.get("content") if isinstance(token, dict) else token
                if isinstance(content, str):
                    found.add(content)
        return found

    def _pieces(self, vocabulary: dict[str, int], added: dict[str, int]) -> list[str]:
        pieces = [""] * (1 + max(*vocabulary.values(), *added.values(), 0))
        if len(pieces) > 2 * (len(vocabulary) + len(added)) + 1024:
            raise self._fault("model.vocab", "leaves most ids unused")
        for spellings in (vocabulary, added):
            for token, token_id in spellings.items():
                if pieces[token_id] not in {"", token}:
                    message = f"id {token_id} is {shown(token)} and {shown(pieces[token_id])}"
                    raise self._fault("added_tokens", message)
                pieces[token_id] = token
        return pieces

    def _around(
        self, added: dict[str, int], texts: dict[str, str], size: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        for step in self._file.steps("post_processor", "processors"):
            ids = self._around_one(step, added, size)
            before, after = (*ids[0], *before), (*after, *ids[1])
        named = self._config.get("tokenizer_class")
        if isinstance(named, str) and named.removesuffix("Fast") in _ADDING_CLASSES:
            before = self._asked("add_bos_token", added.get(texts.get("bos_token", "")), before)
            after = self._asked("add_eos_token", added.get(texts.get("eos_token", "")), after)
        return before, after

    def _asked(self, flag: str, token_id: int | None, found: tuple[int, ...]) -> tuple[int, ...]:
        is_wanted = self._config.get(flag)
        if is_wanted is not None and type(is_wanted) is not bool:
            raise self._elsewhere(CONFIG, flag, "must be true or false")
        if is_wanted is None or token_id is None:
            return found
        return (token_id,) if is_wanted else ()

    def _around_one(
        self, step: dict[str, Any], added: dict[str, int], size: int
    ) -> tuple[list[int], list[int]]:
        kind = step.get("type")
        if kind == "ByteLevel":
            return [], []
        if kind in ("BertProcessing", "RobertaProcessing"):
            return [self._named(step.get("cls"), added)], [self._named(step.get("sep"), added)]
        if kind != "TemplateProcessing":
            raise self._file.unsupported("post_processor.type", kind)
        ids: tuple[list[int], list[int]] = ([], [])
        has_text = 0
        single = step.get("single")
        for item in single if isinstance(single, list) else ():
            if isinstance(item, dict) and "Sequence" in item:
                has_text += 1
                continue
            token = item.get("SpecialToken") if isinstance(item, dict) else None
            name = token.get("id") if isinstance(token, dict) else None
            ids[has_text > 0].extend(self._spelt(step, name, added, size))
        if has_text != 1:
            raise self._fault("post_processor.single", "must hold the text once")
        return ids

    def _spelt(
        self, step: dict[str, Any], name: Any, added: dict[str, int], size: int
    ) -> list[int]:
        """The ids that a template's token stands for: its own list of them, or a token's."""
        told = step.get("special_tokens")
        entry = told.get(name) if isinstance(told, dict) and isinstance(name, str) else None
        ids = entry.get("ids") if isinstance(entry, dict) else None
        if ids is None:
            return [self._named([name], added)]
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            where = f"post_processor.special_tokens.{shown(name)[1:-1]}.ids"
            raise self._fault(where, f"must be ids from 0 to {size - 1}")
        return ids

    def _named(self, token: Any, added: dict[str, int]) -> int:
        text, *told = token if isinstance(token, list) and token else [None]
        if not isinstance(text, str) or text not in added:
            raise self._fault("post_processor", "names what is no added token")
        if told and told[0] != added[text]:
            raise self._fault("post_processor", f"gives {shown(text)} an id that is not its own")
        return added[text]

    def _special_texts(self) -> dict[str, str]:
        texts = {}
        for name, source in _both(_NAMES, (SPECIAL_MAP, CONFIG)):
            value = self._others[source].get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                texts[name] = value
            elif value is not None:
                raise self._elsewhere(source, name, "is not a token")
        return texts

    def _end_ids(
        self, told: tuple[str, Any], texts: dict[str, str], ids: dict[str, int], size: int
    ) -> frozenset[int]:
        where, ends = told
        path = self._file.path
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        for end in listed:
            if type(end) is not int or not 0 <= end < size:
                raise ModelFileError(path, where, f"must be ids from 0 to {size - 1}")
        named = texts.get("eos_token")
        if named is not None:
            if named not in ids:
                raise self._elsewhere(CONFIG, "eos_token", f"{shown(named)} is not a token")
            listed = [*listed, ids[named]]
        return frozenset(listed)

    def _fault(self, where: str, message: str) -> ModelFileError:
        return self._file.fault(where, message)

    def _elsewhere(self, file: str, key: str, message: str) -> ModelFileError:
        """A fault of one of the other files."""
        return ModelFileError(self._file.path, f"{file} {key}", message)


def is_score(value: object) -> bool:
    """Whether it is a number that is finite as a float."""
    is_number = type(value) is float or (type(value) is int and abs(value) < 1 << 53)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _both(names: Iterable[str], sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each name with each source: a later source's word stands."""
    listed = list(names)
    for source in sources:
        for name in listed:
            yield name, source

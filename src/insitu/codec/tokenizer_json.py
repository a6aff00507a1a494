"""The vocabulary that a Hugging Face folder's tokenizer.json describes.

Not here: tokenizer_config.json's classes. Only byte-level BPE is read: each part of the file is
understood or refused by name.

Always true: what the library is given holds no added token, so it can never recognise one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.codec.byte_map import missing_bytes
from insitu.codec.pretokenizers import plain_encoder
from insitu.codec.vocabulary import MergeFault, Vocabulary, build_bpe
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
MAX_VOCABULARY = 4_000_000
_NORMALIZERS = {"NFC"}
_PRE_TOKENIZERS = {"ByteLevel", "Split", "Digits", "Sequence", "Punctuation"}
_MODEL_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "type": ("BPE", None),
    "dropout": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False, None),
    "fuse_unk": (False, True, None),
}


def read_vocabulary(
    path: Path, raw: bytes, config: bytes | None, ends: tuple[str, bytes | None]
) -> Vocabulary:
    """The vocabulary of tokenizer.json and tokenizer_config.json; ``ends`` is the end ids' file."""
    where, ends_raw = ends
    return _Reader(path, parse_object(path, FILE, raw)).read(
        _object(path, CONFIG, config),
        (f"{where} eos_token_id", _object(path, where, ends_raw).get("eos_token_id")),
    )


def _object(path: Path, name: str, raw: bytes | None) -> dict[str, Any]:
    return {} if raw is None else parse_object(path, name, raw)


class _Reader:
    def __init__(self, path: Path, file: dict[str, Any]) -> None:
        self._path = path
        self._file = file

    def read(self, config: dict[str, Any], ends: tuple[str, Any]) -> Vocabulary:
        model = self._model()
        self._check_decoder()
        vocabulary = self._ids(model)
        added, control = self._added()
        pieces = self._pieces(vocabulary, added)
        normal = {token: i for token, i in vocabulary.items() if token not in added}
        prefix_ids, suffix_ids = self._around(added)
        texts = self._special_texts(config)
        holes = frozenset(i for i, piece in enumerate(pieces) if not piece)
        return Vocabulary(
            pieces=pieces,
            added=added,
            control_ids=control,
            padding_ids=holes,
            end_ids=self._end_ids(ends, texts, {**normal, **added}, len(pieces)),
            encode_plain=self._encoder(model, normal, added),
            missing_bytes=missing_bytes(normal),
            prefix_ids=prefix_ids,
            suffix_ids=suffix_ids,
            is_normalized=self._file.get("normalizer") is not None,
            special_texts=texts,
        )

    def _model(self) -> dict[str, Any]:
        model = self._file.get("model")
        if not isinstance(model, dict):
            raise self._fault("model", "is not an object")
        for key, allowed in _MODEL_DEFAULTS.items():
            if model.get(key) not in allowed:
                raise self._unsupported(f"model.{key}", model[key])
        return model

    def _check_decoder(self) -> None:
        for step in self._steps(self._file.get("decoder"), "decoder", "decoders"):
            if step.get("type") != "ByteLevel":
                raise self._unsupported("decoder.type", step.get("type"))

    def _ids(self, model: dict[str, Any]) -> dict[str, int]:
        vocabulary = model.get("vocab")
        if not isinstance(vocabulary, dict) or not vocabulary:
            raise self._fault("model.vocab", "is not an object of tokens")
        for token, token_id in vocabulary.items():
            self._check_id(f"model.vocab.{shown(token)}", token_id)
        if len(set(vocabulary.values())) != len(vocabulary) or "" in vocabulary:
            raise self._fault("model.vocab", "gives one id to two tokens, or has an empty token")
        return vocabulary

    def _check_id(self, where: str, token_id: object) -> None:
        if type(token_id) is not int or not 0 <= token_id < MAX_VOCABULARY:
            raise self._fault(where, f"must be an id from 0 to {MAX_VOCABULARY - 1}")

    def _added(self) -> tuple[dict[str, int], frozenset[int]]:
        entries = self._file.get("added_tokens") or []
        if not isinstance(entries, list):
            raise self._fault("added_tokens", "is not an array")
        added: dict[str, int] = {}
        control = set()
        for index, entry in enumerate(entries):
            where = f"added_tokens[{index}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
                raise self._fault(where, "is not an added token")
            content = entry["content"]
            self._check_id(f"{where}.id", entry.get("id"))
            if not content or content in added:
                raise self._fault(where, f"{shown(content)} is empty or there twice")
            for flag in ("single_word", "lstrip", "rstrip"):
                if entry.get(flag):
                    raise self._unsupported(f"{where}.{flag}", True)
            added[content] = entry["id"]
            if entry.get("special"):
                control.add(entry["id"])
        return added, frozenset(control)

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

    def _around(self, added: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        steps = self._steps(self._file.get("post_processor"), "post_processor", "processors")
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        for step in steps:
            if step.get("type") == "ByteLevel":
                continue
            if step.get("type") != "TemplateProcessing":
                raise self._unsupported("post_processor.type", step.get("type"))
            ids: list[list[int]] = [[], []]
            has_text = 0
            for item in step.get("single") or []:
                if isinstance(item, dict) and "Sequence" in item:
                    has_text += 1
                    continue
                token = item.get("SpecialToken") if isinstance(item, dict) else None
                text = token.get("id") if isinstance(token, dict) else None
                if not isinstance(text, str) or text not in added:
                    raise self._fault("post_processor.single", "names what is no added token")
                ids[has_text > 0].append(added[text])
            if has_text != 1:
                raise self._fault("post_processor.single", "must hold the text once")
            before, after = (*ids[0], *before), (*after, *ids[1])
        return before, after

    def _steps(self, part: Any, where: str, inner: str) -> list[dict[str, Any]]:
        if part is None:
            return []
        steps = (
            part.get(inner) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
        )
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise self._fault(where, "is not an object")
        return steps

    def _special_texts(self, config: dict[str, Any]) -> dict[str, str]:
        texts = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = config.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                texts[name] = value
            elif value is not None:
                raise ModelFileError(self._path, f"{CONFIG} {name}", "is not a token")
        return texts

    def _end_ids(
        self, told: tuple[str, Any], texts: dict[str, str], ids: dict[str, int], size: int
    ) -> frozenset[int]:
        where, ends = told
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        for end in listed:
            if type(end) is not int or not 0 <= end < size:
                raise ModelFileError(self._path, where, f"must be ids from 0 to {size - 1}")
        named = texts.get("eos_token")
        if named is not None:
            if named not in ids:
                where = f"{CONFIG} eos_token"
                raise ModelFileError(self._path, where, f"{shown(named)} is not a token")
            listed = [*listed, ids[named]]
        return frozenset(listed)

    def _encoder(
        self, model: dict[str, Any], normal: dict[str, int], added: dict[str, int]
    ) -> Callable[[str, bool], list[int]]:
        from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

        merges = self._merges(model)
        normalizer, pre_tokenizer = self._normalizer(), self._pre_tokenizer()
        shell = {
            "version": "1.0",
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        }
        try:
            tokenizer = Tokenizer.from_str(json.dumps(shell))
        except Exception as error:
            raise self._fault("pre_tokenizer", shown(str(error), 200)[1:-1]) from error
        whole_words = bool(model.get("ignore_merges"))
        try:
            tokenizer.model = build_bpe(normal, merges, added, ignore_merges=whole_words)
        except MergeFault as fault:
            raise self._fault(f"model.merges[{fault.index}]", fault.reason) from fault
        return plain_encoder(tokenizer)

    def _merges(self, model: dict[str, Any]) -> list[tuple[str, str]]:
        lines = model.get("merges")
        if not isinstance(lines, list):
            raise self._fault("model.merges", "is not an array")
        merges = []
        for index, line in enumerate(lines):
            parts = line.split(" ") if isinstance(line, str) else line
            if (
                not isinstance(parts, list)
                or len(parts) != 2
                or not all(isinstance(part, str) and part for part in parts)
            ):
                raise self._fault(f"model.merges[{index}]", "is not two parts")
            merges.append((parts[0], parts[1]))
        return merges

    def _normalizer(self) -> Any:
        declared = self._file.get("normalizer")
        for step in self._steps(declared, "normalizer", "normalizers"):
            if step.get("type") not in _NORMALIZERS:
                raise self._unsupported("normalizer.type", step.get("type"))
        return declared

    def _pre_tokenizer(self) -> Any:
        declared = self._file.get("pre_tokenizer")
        steps = self._steps(declared, "pre_tokenizer", "pretokenizers")
        if not steps or steps[-1].get("type") != "ByteLevel":
            raise self._unsupported("pre_tokenizer", "one that does not end with ByteLevel")
        for step in steps:
            if step.get("type") not in _PRE_TOKENIZERS:
                raise self._unsupported("pre_tokenizer.type", step.get("type"))
            if step.get("add_prefix_space") or step.get("behavior") == "Removed":
                raise self._unsupported("pre_tokenizer", "one that adds or removes text")
        return declared

    def _fault(self, where: str, message: str) -> ModelFileError:
        return ModelFileError(self._path, f"{FILE} {where}", message)

    def _unsupported(self, where: str, value: object) -> UnsupportedModelError:
        message = f"{shown(str(value))} is not supported"
        return UnsupportedModelError(self._path, f"{FILE} {where}", message)

"""Real vocabularies and templates: golden ids, ordinary conversations, forged control tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from codec.conversations import conversations, oracle
from codec.provenance import FIELDS, variants

from insitu.codec.chat import ChatTemplate, load_chat_template
from insitu.codec.detokenizer import Detokenizer
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.refusal import Refusal
from insitu.types import Message
from insitu.weights.source import open_source

GOLDEN = Path(__file__).parent.parent / "golden"
QWENS = ["qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"]


def codec_of(path: Path) -> tuple[Tokenizer, ChatTemplate, str]:
    """Tokenizer, chat template and its source text."""
    source = open_source(path)
    tokenizer = load_tokenizer(source)
    return (
        tokenizer,
        load_chat_template(source, tokenizer),
        source.metadata.string("tokenizer.chat_template"),
    )


def rows(name: str) -> list[dict[str, Any]]:
    """Golden rows of a model."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.shared.json").read_text())["rows"]
    return found


def check_golden(path: Path, name: str) -> None:
    """Prompts of golden rows become their ids, and ids their text."""
    tokenizer, template, _ = codec_of(path)
    for row in rows(name):
        if row["kind"] == "chat":
            typed = template.render([Message(**message) for message in row["messages"]])
            assert typed.text == row["prompt_text"]
            ids = tokenizer.encode_typed(typed.pieces)
        else:
            ids = tokenizer.encode(row["text"], add_special_tokens=True, parse_special=False)
        assert ids == row["prompt_ids"]
        assert tokenizer.detokenize(ids) == row["prompt_text"]


def check_ordinary(path: Path) -> None:
    """Typed prompts of ordinary conversations get the ids of plain rendering."""
    tokenizer, template, source = codec_of(path)
    has_tools = "tool_call" in source
    num_checked = 0
    for every, tools in conversations(200, seed=9):
        messages = [message for message in every if has_tools or message.content is not None]
        typed = template.render(messages, tools=tools)
        text = oracle(source, messages, tools, add_generation_prompt=True)
        assert typed.text == text
        whole = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        assert tokenizer.encode_typed(typed.pieces) == whole
        num_checked += 1
    assert num_checked == 200


def check_forged(path: Path, num_variants: int) -> None:
    """No added token, in no field, in no disguise, gives one more control id."""
    tokenizer, template, _ = codec_of(path)
    known = set(tokenizer.added_tokens.values())
    for name, field in FIELDS.items():
        try:
            messages, tools = field("x")
            pieces = template.render(messages, tools=tools).pieces
        except Refusal:
            assert name in {"tool result", "call name", "call id", "arguments", "argument name",
                            "raw arguments"}  # fmt: skip
            continue
        harmless = [i for i in tokenizer.encode_typed(pieces) if i in known]
        for token in tokenizer.added_tokens:
            for text in list(variants(token))[:num_variants]:
                messages, tools = field(text)
                typed = template.render(messages, tools=tools)
                ids = tokenizer.encode_typed(typed.pieces)
                assert [i for i in ids if i in known] == harmless, (name, text)
                assert tokenizer.detokenize(ids) == typed.text


TEXTS = [
    "Größe 7", "a\r\nb", "\t\n \r", "e\u0301", "\u00e9", "\U0001f469\u200d\U0001f4bb", "日本",
    "\0", " lead", " trail ", "\ufeffx", "\u2028x", "\U0001f680ok", "Привет, мир", "  two  spaces",
    "\r\n\r\n", "it's we'll", "123 4567",
]  # fmt: skip


def check_round_trips(path: Path) -> None:
    """Texts come back code point for code point, whole and id by id."""
    tokenizer = load_tokenizer(open_source(path))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        assert tokenizer.detokenize(ids) == text
        detokenizer = Detokenizer(tokenizer)
        released = [one for token_id in ids for one in detokenizer.push(token_id)]
        assert "".join(one.text for one in [*released, *detokenizer.finish()]) == text


@pytest.mark.model
def test_round_trips_of_smollm2(smollm2_path: Path) -> None:
    check_round_trips(smollm2_path)


@pytest.mark.model
def test_golden_rows_of_smollm2(smollm2_path: Path) -> None:
    check_golden(smollm2_path, "SmolLM2-135M-Instruct.Q4_1")


@pytest.mark.model
def test_ordinary_conversations_of_smollm2(smollm2_path: Path) -> None:
    check_ordinary(smollm2_path)


@pytest.mark.model
def test_nothing_is_forged_in_smollm2(smollm2_path: Path) -> None:
    check_forged(smollm2_path, 9)


@pytest.mark.model
def test_what_smollm2_cannot_spell_is_refused(smollm2_path: Path) -> None:
    tokenizer = codec_of(smollm2_path)[0]
    with pytest.raises(Refusal, match=r"U\+0004"):
        tokenizer.encode("a\x04", add_special_tokens=False, parse_special=False)
    ids = tokenizer.encode("alpha\0omega", add_special_tokens=False, parse_special=False)
    assert tokenizer.detokenize(ids) == "alpha\0omega"


@pytest.mark.model
def test_smollm2_loads_quickly_and_encodes_in_linear_time(smollm2_path: Path) -> None:
    start = time.perf_counter()
    tokenizer = codec_of(smollm2_path)[0]
    assert time.perf_counter() - start < 2
    for unit in ("a", " ", "1", "é", "<|im_end"):
        start = time.perf_counter()
        tokenizer.encode(unit * 100_000, add_special_tokens=False, parse_special=True)
        assert time.perf_counter() - start < 5


# Slow: 250 MB; a vocabulary of 262,144 SentencePiece tokens.
@pytest.mark.slow
def test_gemma3(models_dir: Path) -> None:
    path = models_dir / "gemma-3-270m-Q4_K_M.gguf"
    check_round_trips(path)
    tokenizer = load_tokenizer(open_source(path))
    for row in rows("gemma-3-270m-Q4_K_M"):
        ids = tokenizer.encode(row["text"], add_special_tokens=True, parse_special=False)
        assert ids == row["prompt_ids"]
        assert tokenizer.detokenize(ids, show_control=False) == row["text"]


# Slow: 1.6 GB of models, which no catalogue of ours fetches.
@pytest.mark.slow
@pytest.mark.parametrize("name", QWENS)
def test_qwen(models_dir: Path, name: str) -> None:
    path = models_dir / f"{name}.gguf"
    check_round_trips(path)
    check_golden(path, name)
    check_ordinary(path)
    check_forged(path, 3)

"""Chats through the two real templates and written ones: equal to Jinja2's, and never forged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from codec import tiny_vocabulary as tiny
from codec.conversations import conversations, oracle
from codec.provenance import FIELDS, split_over_messages, variants

from insitu.codec.chat import ChatTemplate, load_chat_template
from insitu.codec.template import Template
from insitu.refusal import Refusal
from insitu.types import Message, ToolCall
from insitu.weights.errors import ModelFileError, UnsupportedModelError

FOLDER = Path(__file__).parent / "templates"
TOKENIZER = tiny.tiny_tokenizer()
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPED = (
    "{%- set ns = namespace(n=0) -%}{%- macro show(m) -%}<|im_start|>{{ m['role'] | upper }}: "
    "{{ (m.name ~ ' ') if m.name is defined }}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ {'name': c.function.name, 'arguments': "
    "c.function.arguments} | tojson(indent=2) }}</tool_call>{% endfor %}"
    "{%- if m.reasoning_content is defined %}{{ '<|im' ~ m.reasoning_content[:3] }}{% endif %}"
    "<|im_end|>{%- endmacro -%}"
    "{%- if tools is not none -%}<|im_start|>{{ tools | map('tojson') | join(',') }}"
    "{{ tools | map(attribute='function.name') | join(' ') }}<|im_end|>{%- endif -%}"
    "{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{{ show(m).strip() }}"
    "{{ '[%d:%s]' % (ns.n, m.content) }}\n{% endfor -%}"
)
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}


def chat(source: str) -> ChatTemplate:
    """A chat template over the tiny vocabulary's special texts."""
    return ChatTemplate(Template(source), TOKENIZER.special_texts)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_ordinary_conversations_are_as_elsewhere(name: str) -> None:
    template = chat(TEMPLATES[name])
    num_checked = 0
    for every, tools in conversations(200):
        # SmolLM2's template cannot show a message without content.
        messages = [m for m in every if name != "smollm2" or m.content is not None]
        for wanted in (True, False):
            typed = template.render(messages, tools=tools, add_generation_prompt=wanted)
            text = oracle(TEMPLATES[name], messages, tools, add_generation_prompt=wanted)
            assert typed.text == text
            whole = TOKENIZER.encode(text, add_special_tokens=False, parse_special=True)
            assert TOKENIZER.encode_typed(typed.pieces) == whole
            num_checked += 1
    assert num_checked == 400


def test_a_written_template_is_as_elsewhere() -> None:
    for messages, tools in conversations(100, seed=8):
        typed = chat(SHAPED).render(messages, tools=tools)
        assert typed.text == oracle(SHAPED, messages, tools)


def added_ids(pieces: Any) -> list[int]:
    """The added tokens of a typed prompt's ids."""
    known = set(TOKENIZER.added_tokens.values())
    return [token_id for token_id in TOKENIZER.encode_typed(pieces) if token_id in known]


@pytest.mark.parametrize("field", sorted(FIELDS))
@pytest.mark.parametrize("source", [*TEMPLATES.values(), SHAPED], ids=[*TEMPLATES, "shaped"])
def test_no_field_of_a_caller_spells_a_control_token(source: str, field: str) -> None:
    template = chat(source)
    for token in TOKENIZER.added_tokens:
        for text in variants(token):
            try:
                messages, tools = FIELDS[field]("x")
                harmless = template.render(messages, tools=tools)
                messages, tools = FIELDS[field](text)
                typed = template.render(messages, tools=tools)
            except Refusal:
                # SmolLM2's template cannot show a message without content.
                assert source == TEMPLATES["smollm2"]
                continue
            ids = TOKENIZER.encode_typed(typed.pieces)
            assert added_ids(typed.pieces) == added_ids(harmless.pieces), (field, text)
            assert TOKENIZER.detokenize(ids) == typed.text


@pytest.mark.parametrize("source", [*TEMPLATES.values(), SHAPED], ids=[*TEMPLATES, "shaped"])
def test_parts_in_neighbouring_fields_spell_nothing(source: str) -> None:
    template = chat(source)
    for token in TOKENIZER.added_tokens:
        harmless = split_over_messages("xy" * len(token))
        for (messages, tools), (plain, plain_tools) in zip(
            split_over_messages(token), harmless, strict=False
        ):
            if source == TEMPLATES["smollm2"] and any(m.content is None for m in messages):
                continue
            assert len(messages) == len(plain)
            typed = template.render(messages, tools=tools)
            same = template.render(plain, tools=plain_tools)
            assert added_ids(typed.pieces) == added_ids(same.pieces), messages


def test_template_kwargs_are_the_callers() -> None:
    template = chat("<|im_start|>{{ style }}{{ deep.a[0] }}<|im_end|>")
    kwargs = {"style": "<|im_end|>", "deep": {"a": ["<tool_call>"]}}
    typed = template.render([Message("user", "x")], kwargs=kwargs)
    start, end = TOKENIZER.added_tokens["<|im_start|>"], TOKENIZER.added_tokens["<|im_end|>"]
    assert added_ids(typed.pieces) == [start, end]


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "raise_exception",
     "range", "namespace", "strftime_now", "not a name"],
)  # fmt: skip
def test_reserved_kwargs_are_refused_by_name(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        chat("x").render([Message("user", "x")], kwargs={name: "y"})
    assert caught.value.status == 400
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_kwargs_nested_too_deep_are_refused() -> None:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    with pytest.raises(Refusal, match="nested") as caught:
        chat("x").render([Message("user", "x")], kwargs={"a": value})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("user", "a"), ("user", "b")], "Roles must alternate"),
        ([("assistant", "a")], "Roles must alternate"),
        ([("user", "a"), ("system", "b")], "System role not supported"),
        ([("user", "a"), ("tool", "b"), ("tool", "b")], "Roles must alternate"),
        ([("robot", "a")], "Roles must alternate"),
    ],
)
def test_what_a_template_raises_is_a_refusal(messages: list[tuple[str, str]], text: str) -> None:
    template = chat(STRICT)
    good = [Message("user", "hi")]
    before = TOKENIZER.encode_typed(template.render(good).pieces)
    with pytest.raises(Refusal) as caught:
        template.render([Message(role, content) for role, content in messages])
    assert (caught.value.message, caught.value.status) == (text, 400)
    assert caught.value.kind == "invalid_request_error"
    assert TOKENIZER.encode_typed(template.render(good).pieces) == before


def test_faults_and_limits_are_refusals_without_source() -> None:
    for source in ("{{ messages[0].content.x.y }}", "{{ 'secret' ~ nothing.x }}"):
        with pytest.raises(Refusal) as caught:
            chat(source).render([Message("user", "x")])
        assert caught.value.status == 400
        assert "secret" not in caught.value.message
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(Refusal, match="limits"):
        chat(endless).render([Message("user", "x")])


def test_an_absent_template_says_so() -> None:
    template = load_chat_template(tiny.FakeSource(), TOKENIZER)  # type: ignore[arg-type]
    assert not template.is_present
    with pytest.raises(Refusal, match="no chat template"):
        template.render([Message("user", "x")])


def test_templates_are_read_from_both_formats() -> None:
    values = {**tiny.metadata_values(), "tokenizer.chat_template": "g{{ messages[0].content }}"}
    sources = [
        tiny.FakeSource(values=values),
        tiny.folder({}, tokenizer_config={"chat_template": "g{{ messages[0].content }}"}),
        tiny.folder({}, tokenizer_config={"chat_template": [
            {"name": "default", "template": "g{{ messages[0].content }}"}]}),
        tiny.FakeSource("safetensors", {}, {"chat_template.jinja": b"g{{ messages[0].content }}"}),
    ]  # fmt: skip
    for source in sources:
        template = load_chat_template(source, TOKENIZER)  # type: ignore[arg-type]
        assert template.render([Message("user", "x")]).text == "gx"


def named(source: str) -> str:
    """A template that shows which it is."""
    return source + ": {{ messages[0].content }}"


SEVERAL = {name: named(name) for name in ("default", "tool_use", "rag")}
SEVERAL_SOURCES = [
    tiny.FakeSource(
        values={
            **tiny.metadata_values(),
            "tokenizer.chat_template": SEVERAL["default"],
            "tokenizer.chat_templates": ["tool_use", "rag"],
            "tokenizer.chat_template.tool_use": SEVERAL["tool_use"],
            "tokenizer.chat_template.rag": SEVERAL["rag"],
        }
    ),
    tiny.folder({}, chat_template={"chat_template": SEVERAL}),
    tiny.folder({}, tokenizer_config={"chat_template": [
        {"name": name, "template": text} for name, text in SEVERAL.items()]}),
]  # fmt: skip


@pytest.mark.parametrize("source", SEVERAL_SOURCES)
def test_of_several_templates_tools_and_a_kwarg_choose(source: tiny.FakeSource) -> None:
    template = load_chat_template(source, TOKENIZER)  # type: ignore[arg-type]
    messages, tool = [Message("user", "x")], {"type": "function", "function": {"name": "f"}}
    rag = {"template_name": "rag"}
    assert template.render(messages).text == "default: x"
    assert template.render(messages, tools=[tool]).text == "tool_use: x"
    assert template.render(messages, tools=[tool], kwargs=rag).text == "rag: x"
    assert template.unread(messages, kwargs=rag) == []
    for wrong in ("other", 5):
        with pytest.raises(Refusal, match="default, rag, tool_use") as caught:
            template.render(messages, kwargs={"template_name": wrong})
        assert caught.value.param == "chat_template_kwargs.template_name"
    assert template.render(messages, kwargs={"template_name": None}).text == "default: x"


def test_faulty_templates_name_their_key() -> None:
    for value in (["x"], 5, {"a": 1}):
        values = {**tiny.metadata_values(), "tokenizer.chat_template": value}
        with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template"):
            load_chat_template(tiny.FakeSource(values=values), TOKENIZER)  # type: ignore[arg-type]
    for found in (["x"], [{"name": 5, "template": "x"}], {"default": 5}):
        broken = tiny.folder({}, chat_template={"chat_template": found})
        with pytest.raises(ModelFileError, match=r"chat_template\.json chat_template"):
            load_chat_template(broken, TOKENIZER)  # type: ignore[arg-type]
    named = {"tokenizer.chat_template": "x", "tokenizer.chat_templates": ["default"]}
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template\.default: is missing"):
        load_chat_template(tiny.FakeSource(values=named), TOKENIZER)  # type: ignore[arg-type]
    values = {**tiny.metadata_values(), "tokenizer.chat_template": "{% include 'x' %}"}
    with pytest.raises(UnsupportedModelError, match="Include"):
        load_chat_template(tiny.FakeSource(values=values), TOKENIZER)  # type: ignore[arg-type]


def test_a_prefill_goes_on_where_its_content_ends() -> None:
    messages = [Message("user", "q <|im_end|>"), Message("assistant", "The answer is ")]
    for name, source in TEMPLATES.items():
        typed = chat(source).render(messages, continue_final_message=True)
        assert typed.text.endswith("<|im_start|>assistant\nThe answer is"), name
    with pytest.raises(Refusal, match="continued"):
        chat(STRICT).render(messages[:1], continue_final_message=True)


def test_arguments_reach_a_template_as_a_mapping_or_as_they_are() -> None:
    source = (
        "{% for c in messages[1].tool_calls %}{{ c.function.arguments is mapping }};{% endfor %}"
    )
    raw = ['{"a": 1}', "{", "[1]", '{"a": NaN}', "[" * 9999]
    calls = tuple(ToolCall(str(i), "f", text) for i, text in enumerate(raw))
    messages = [Message("user", "x"), Message("assistant", None, tool_calls=calls)]
    assert chat(source).render(messages).text == "True;" + "False;" * 4


def test_a_nul_and_all_that_follows_it_is_kept() -> None:
    messages = [Message("user", "alpha\0omega"), Message("user", "tail")]
    typed = chat(TEMPLATES["smollm2"]).render(messages)
    text = TOKENIZER.detokenize(TOKENIZER.encode_typed(typed.pieces))
    assert "alpha\0omega<|im_end|>" in text
    assert text.endswith("tail<|im_end|>\n<|im_start|>assistant\n")


def test_the_date_comes_from_the_request() -> None:
    template = chat("{{ strftime_now('%Y') if strftime_now is defined else 'never' }}")
    assert template.render([Message("user", "x")]).text == "never"
    assert template.render([Message("user", "x")], kwargs={"today": "2026-01-31"}).text == "2026"
    with pytest.raises(Refusal, match="today"):
        template.render([Message("user", "x")], kwargs={"today": "soon"})


def test_tools_are_written_as_json_and_are_the_callers() -> None:
    tools = [json.loads('{"type": "function", "function": {"name": "é", "n": 1.50}}')]
    typed = chat("{{ tools[0] | tojson }}").render([Message("user", "x")], tools=tools)
    assert typed.pieces == (('{"type": "function", "function": {"name": "é", "n": 1.5}}', False),)


def test_what_a_template_never_mentions_is_said() -> None:
    call = ToolCall("c1", "f", "{}")
    said = Message("assistant", "a", name="n", tool_calls=(call,), reasoning_content="r")
    messages = [Message("user", "x"), said, said]
    given: dict[str, Any] = {"tools": [{"type": "function"}], "kwargs": {"style": 1, "today": "x"}}
    all_of_it = [
        "tools",
        "chat_template_kwargs.style",
        "chat_template_kwargs.today",
        "messages[1].name",
        "messages[1].tool_calls",
        "messages[1].reasoning_content",
    ]
    assert chat(TEMPLATES["smollm2"]).unread(messages, **given) == all_of_it
    assert chat(STRICT).unread([Message("user", "x")]) == []
    rest = "{{ style }}{{ strftime_now('%Y') }}"
    assert chat(SHAPED + rest).unread(messages, **given) == []
    by_word = (
        "{{ messages | map(attribute='tool_calls.name') }}{{ messages[0]['reasoning_content'] }}"
    )
    assert chat(by_word).unread(messages) == []

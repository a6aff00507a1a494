"""Chat templates of many models, and of ours that use what they use, against Jinja2's own sandbox.

Where the sandbox renders a conversation, so do we, to the character. Where it fails on a null
content or on arguments it cannot add to a string, we try the other form that means the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from codec.conversations import TODAY, oracle
from codec.llama_sdist import models_of_llama_cpp

from insitu.codec.chat import ChatTemplate
from insitu.codec.template import Template, UnsupportedTemplate
from insitu.refusal import Refusal
from insitu.types import Message, ToolCall

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ITEM = {"type": "object", "properties": {"k": {"type": ["string", "null"]}}, "required": ["k"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The "weather" & more',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where", "enum": ["Köln", "b"]},
                "n": {"type": "number"},
                "o": ITEM,
                "l": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
PLAIN_TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time.",
        "parameters": {"properties": {"zone": {"type": "string", "description": "which"}}},
    },
}
USER, HELLO, MORE = (
    Message("user", "Hi  "),
    Message("assistant", "Hello!"),
    Message("user", "More?\n"),
)
SYSTEM = Message("system", "Be <good>.")


def call(number: int, arguments: str = '{"city": "Köln", "n": 1.5, "l": [1, 2]}') -> ToolCall:
    """A call of the tool."""
    return ToolCall(f"call0000{number}", "get_weather", arguments)


def result(number: int, text: str) -> Message:
    """What a call gave."""
    return Message("tool", text, tool_call_id=f"call0000{number}", name="get_weather")


def calling(content: str | None, *calls: ToolCall, **fields: Any) -> Message:
    """An assistant's message that calls."""
    return Message("assistant", content, tool_calls=calls, **fields)


CONVERSATIONS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "one": ([USER], []),
    "system": ([SYSTEM, USER], []),
    "many": ([SYSTEM, USER, HELLO, MORE, HELLO, USER], []),
    "assistant last": ([USER, HELLO], []),
    "tools": ([SYSTEM, USER], [TOOL]),
    "two tools": ([USER], [TOOL, TOOL]),
    "plain tool": ([SYSTEM, USER], [PLAIN_TOOL]),
    "call": ([USER, calling(None, call(1)), result(1, '{"t": 3}'), HELLO, MORE], [TOOL]),
    "two calls": ([USER, calling("See", call(1), call(2)), result(1, "3"), result(2, "4")], [TOOL]),
    "empty call": ([USER, calling("", call(1, "{}")), result(1, "3")], [TOOL]),
    "reasoning": ([USER, Message("assistant", "42", reasoning_content="hm"), MORE], []),
    "reasoned call": (
        [SYSTEM, USER, calling("a", call(1), reasoning_content="hm"), result(1, "3")],
        [TOOL],
    ),
    "thought": ([USER, Message("assistant", "<think>\nhm\n</think>\n\n42"), MORE], []),
}
KWARGS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"thinking": True, "functions": "[]", "datetime": "now"},
]


def compare(source: str) -> tuple[int, int]:
    """How many prompts were the same, and how many conversations the template refused."""
    template = ChatTemplate(Template(source), SPECIAL)
    num_same = num_refused = 0
    for messages, tools in CONVERSATIONS.values():
        for begins in (True, False):
            for kwargs in KWARGS:
                given = {**kwargs, "add_generation_prompt": begins, **SPECIAL}
                try:
                    wanted = oracle(source, messages, tools, **given)
                except (jinja2.TemplateError, TypeError, ValueError):
                    num_refused += 1
                    continue
                typed = template.render(
                    messages,
                    tools=tools,
                    add_generation_prompt=begins,
                    kwargs={**kwargs, "today": TODAY},
                )
                assert typed.text == wanted
                num_same += 1
    return num_same, num_refused


# Slow: a source distribution of 77 MB, 5,400 prompts.
@pytest.mark.slow
def test_templates_of_llama_cpp_render_as_jinja_renders_them(models_dir: Path) -> None:
    paths = sorted((models_of_llama_cpp(models_dir) / "templates").glob("*.jinja"))
    counts = [compare(path.read_text()) for path in paths]
    assert len(counts) == 70
    assert min(same for same, _ in counts) > 0
    assert sum(same for same, _ in counts) > 4_600


OURS = sorted((Path(__file__).parent / "templates/ours").glob("*.jinja"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_templates_render_as_jinja_renders_them(path: Path) -> None:
    same, _ = compare(path.read_text())
    assert same >= 40


def render(source: str, messages: list[Message], **options: Any) -> str:
    """A prompt's text."""
    return ChatTemplate(Template(source), SPECIAL).render(messages, **options).text


WANTS_PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
PARTS_OF_USERS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' %}{% for part in m.content %}"
    "{{ part['text'] }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
WANTS_TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("source", [WANTS_PARTS, PARTS_OF_USERS])
def test_a_template_that_wants_parts_is_given_parts(source: str) -> None:
    assert render(source, [SYSTEM, USER, HELLO, MORE]) == (
        "[system]Be <good>.[user]Hi  [assistant]Hello![user]More?\n"
    )


def test_a_template_that_wants_text_is_given_text() -> None:
    assert render(WANTS_TEXT, [SYSTEM, USER]) == "Be <good>.Hi  "


def test_what_is_in_parts_stays_the_callers() -> None:
    template = ChatTemplate(Template(WANTS_PARTS), SPECIAL)
    pieces = template.render([Message("user", "</s>")]).pieces
    assert pieces[-1] == ("</s>", False)


def test_null_content_is_shown_as_empty_where_null_cannot_be() -> None:
    source = "{% for m in messages %}{{ m.content + '!' }}{% endfor %}"
    assert render(source, [calling(None, call(1))]) == "!"
    source = "{% for m in messages %}{{ m.content is none }}{% endfor %}"
    assert render(source, [calling(None, call(1))]) == "True"


def test_arguments_are_text_where_a_mapping_cannot_be() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ ARGUMENTS }};{% endfor %}{% endfor %}"
    )
    calls = [calling(None, call(1, '{"a":  1}'))]
    added = source.replace("ARGUMENTS", "c.function.name + c.function.arguments")
    assert render(added, calls) == 'get_weather{"a":  1};'
    shown = source.replace("ARGUMENTS", "c.function.arguments")
    assert render(shown, calls) == '{"a":  1};'
    as_json = source.replace("ARGUMENTS", "c.function.arguments | tojson")
    assert render(as_json, calls) == '{"a": 1};'


def test_a_template_that_raises_is_not_tried_in_other_forms() -> None:
    source = "{% if messages[0].content is none %}{{ raise_exception('no content') }}{% endif %}"
    with pytest.raises(Refusal, match="no content"):
        render(source, [calling(None, call(1))])


def test_an_unknown_filter_of_a_branch_is_refused_when_the_branch_is_taken() -> None:
    source = "{% if messages[0].role == 'user' %}{{ 'a' | from_json }}{% endif %}."
    assert render(source, [SYSTEM]) == "."
    with pytest.raises(Refusal, match="filter 'from_json' is not supported"):
        render(source, [USER])
    with pytest.raises(UnsupportedTemplate, match="filter 'from_json' is not supported"):
        Template("{{ 'a' | from_json }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ [1, 2] | map('string') | tojson }}",
        "{{ ([1, 2] | select) | length }}",
        "{{ [1, 2] | map('string') }}",
    ],
)
def test_what_map_gives_is_no_list(source: str) -> None:
    with pytest.raises(Refusal):
        render(source, [USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ none | selectattr('a') | list | length }}{{ none | map('upper') | list }}",
        "{{ 'a<b' | safe + '<&' + messages[0].role + \"'\" }}",
        "{{ {'a': 1}[missing] is defined }}{{ missing in {'a': 1} }}",
        "{% if [] | map('upper') %}always{% endif %}",
        "{{ ['b', 'a', 'b'] | unique | list }}{{ 'x' | safe | upper }}",
        "{% generation %}x{% endgeneration %}{{ strftime_now('%d %b %Y') }}",
    ],
)
def test_small_matters_are_as_in_jinja(source: str) -> None:
    assert render(source, [USER], kwargs={"today": TODAY}) == oracle(source, [USER])

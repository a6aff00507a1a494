"""From bodies to prompts through real templates: nothing lost or printed, refusals explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from server.asking import CHAT, TEXT, ask, error_of
from server.dictated import ask_together, chat, dictated, whole_and_streamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.llm.text_generator import TextGenerator

TOKENIZE = "/v1/tokenize"
TEMPLATES = sorted((Path(__file__).parent.parent / "codec" / "templates").glob("*.jinja"))
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda path: path.stem)
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextGenerator]:
    """A model with a chat template that real models have."""
    folder, template = tmp_path_factory.mktemp("real"), request.param.read_text()
    with dictated(folder, [b"a"], template=template) as generator:
        yield generator


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A model whose template wants roles to alternate, and no system message."""
    with dictated(tmp_path_factory.mktemp("strict"), [b"a"], template=STRICT) as generator:
        yield generator


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def messages_of(role: str, content: Any) -> list[dict[str, Any]]:
    """A conversation that ends with this content under this role."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    more = {"tool_call_id": "c1"} if role == "tool" else {}
    if role == "tool":
        before.append({"role": "assistant", "content": "x", "tool_calls": [call]})
    return [*([] if role == "system" else before), {"role": role, "content": content, **more}]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_parts_give_the_ids_of_their_joined_text(real: TextGenerator, role: str) -> None:
    forms: list[tuple[str, list[list[dict[str, str]]]]] = [
        ("ab", [[text_part("a"), text_part("b")], [text_part("ab")]]),
        ("", [[], [text_part("")]]),
        ("a\n\0é", [[text_part("a\n"), text_part(""), text_part("\0é")]]),
    ]
    for text, others in forms:
        bodies = [
            {"model": "tiny", "messages": messages_of(role, content)} for content in (text, *others)
        ]
        plain, *parts = [one.json() for one in ask_together(real, bodies, TOKENIZE)]
        assert text in plain["prompt"]
        assert "text" not in plain["prompt"].replace(text, "")
        assert parts == [plain] * len(others)


def test_a_nul_cuts_nothing(real: TextGenerator) -> None:
    def body(role: str, content: str) -> dict[str, Any]:
        tail = {"role": "user", "content": "tail"}
        return {"model": "tiny", "messages": [*messages_of(role, content), tail]}

    for role in ("user", "assistant", "tool"):
        long, short = ask_together(
            real, [body(role, "alpha\0omega"), body(role, "alpha")], TOKENIZE
        )
        assert long.json()["count"] == short.json()["count"] + len("\0omega")
        asked = {"model": "tiny", "tokens": long.json()["tokens"]}
        (back,) = ask_together(real, [asked], "/v1/detokenize")
        prompt = back.json()["prompt"]
        assert "alpha\0omega" in prompt
        assert prompt.endswith("tail<|im_end|>\n<|im_start|>assistant\n")
        (answer,) = ask_together(real, [{**body(role, "alpha\0omega"), "max_tokens": 1}])
        assert answer.json()["usage"]["prompt_tokens"] == long.json()["count"]


def test_a_nul_stops_only_where_it_is_said(tmp_path: Path) -> None:
    with dictated(tmp_path, [b"a", b"\0", b"b"]) as generator:
        assert whole_and_streamed(generator)["content"] == "a\0b"
        assert whole_and_streamed(generator, stop=["\0"])["content"] == "a"


@pytest.mark.parametrize("path", [CHAT, TEXT, TOKENIZE])
def test_a_surrogate_pair_is_a_character_and_half_of_one_is_refused(
    strict: TextGenerator, path: str
) -> None:
    def post(text: str) -> Any:
        key = b"prompt" if path != CHAT else b"messages"
        value = f'"{text}"' if path != CHAT else f'[{{"role":"user","content":"{text}"}}]'
        body = b'{"model":"tiny","%s":%s}' % (key, value.encode())
        headers = {"content-type": "application/json"}
        return ask("POST", path, generator=strict, content=body, headers=headers)

    assert post(r"\ud83d\ude00").status_code == 200
    for half in (r"cut \ud83d", r"\ude00 tail", r"\ude00\ud83d"):
        refused = post(half)
        assert (refused.status_code, error_of(refused)["type"]) == (400, "invalid_request_error")
        json.loads(refused.content.decode("utf-8"))


def roles(*names: str) -> list[dict[str, Any]]:
    more = {"tool": {"tool_call_id": "c1"}}
    return [{"role": name, "content": "x", **more.get(name, {})} for name in names]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (roles("user", "user"), "Roles must alternate"),
        (roles("assistant"), "Roles must alternate"),
        (roles("user", "system"), "System role not supported"),
        (roles("user", "assistant", "tool"), "Roles must alternate"),
        (roles("user", "robot"), None),
        ([], None),
    ],
)
def test_what_a_template_raises_reaches_the_caller_and_changes_nothing(
    strict: TextGenerator, messages: list[dict[str, Any]], message: str | None
) -> None:
    good = {"model": "tiny", "messages": roles("user", "assistant", "user")}
    before, refused, streamed, tokenized, after = (
        ask_together(strict, [body], path)[0]
        for body, path in [
            (good, TOKENIZE),
            (chat(messages=messages), CHAT),
            (chat(messages=messages, stream=True), CHAT),
            ({"model": "tiny", "messages": messages}, TOKENIZE),
            (good, TOKENIZE),
        ]
    )
    for one in (refused, streamed, tokenized):
        error = error_of(one)
        assert (one.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["param"].startswith("messages")
        assert message in {None, error["message"]}
        assert "{%" not in one.text
        assert ".py" not in one.text
    assert before.status_code == 200
    assert before.json() == after.json()
    # A last message of the assistant is shown like any other.
    assert ask_together(strict, [chat(messages=roles("user", "assistant"))])[0].status_code == 200


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": LOOPS},
        *(
            {"chat_template_kwargs": {name: LOOPS}}
            for name in (
                "chat_template",
                "messages",
                "tools",
                "documents",
                "add_generation_prompt",
                "continue_final_message",
                "bos_token",
                "eos_token",
                "unk_token",
                "pad_token",
                "raise_exception",
                "strftime_now",
                "range",
                "namespace",
                "loop",
            )
        ),
    ],
    ids=lambda fields: "-".join([*fields, *next(iter(fields.values()))][:2])[:40],
)
def test_no_template_and_no_name_of_its_own_comes_from_a_caller(
    strict: TextGenerator, fields: dict[str, Any]
) -> None:
    body = {"model": "tiny", "messages": roles("user"), **fields}
    for path in (CHAT, TOKENIZE):
        (refused,) = ask_together(strict, [body], path)
        assert refused.status_code == 400
        assert error_of(refused)["param"].startswith(next(iter(fields)))


def test_kwargs_nested_ten_thousand_deep_are_refused(strict: TextGenerator) -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    messages = b'[{"role":"user","content":"x"}]'
    body = b'{"model":"tiny","messages":%s,"chat_template_kwargs":{"a":%s}}' % (messages, deep)
    headers = {"content-type": "application/json"}
    refused = ask("POST", CHAT, generator=strict, content=body, headers=headers)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_json")

"""Text completions: prompts in every form, log-probabilities with ids, streams, tokens of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from server.asking import TEXT, ask_all, error_of, events, post, text_body
from server.scripted_generator import Scripted, token

from insitu.server.logprobs import CompletionLogprobs, chat_logprobs
from insitu.server.schema_answers import Completion, CompletionChunk
from insitu.types import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from insitu.types import Delta, Prepared


def test_a_whole_answer_names_tokens_by_id() -> None:
    body = text_body(prompt=[5, 6], max_tokens=2, temperature=0, logprobs=3, return_token_ids=True)
    answer = post(TEXT, body).json()
    Completion.model_validate(answer)
    choice = answer["choices"][0]
    assert choice["text"] == "al"
    assert choice["token_ids"] == [97, 108]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "l"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "b": -1.5, "c": -2.5}
    assert logprobs["text_offset"] == [0, 1]
    assert logprobs["token_ids"] == [97, 108]
    assert logprobs["top_token_ids"] == [[97, 98, 99], [108, 109, 110]]
    assert logprobs["top_token_logprobs"][0] == [-0.5, -1.5, -2.5]
    assert answer["usage"]["prompt_tokens"] == 2


def test_a_stream_joins_to_the_whole() -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "logprobs": 1, "return_token_ids": True}
    whole = post(TEXT, text_body(**fields)).json()["choices"][0]
    chunks = events(post(TEXT, text_body(stream=True, **fields)))
    for chunk in chunks:
        CompletionChunk.model_validate(chunk)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for key in ("tokens", "token_logprobs", "text_offset", "top_token_ids"):
        joined = [item for choice in choices for item in choice["logprobs"][key]]
        assert joined == whole["logprobs"][key]
    assert [choice["finish_reason"] for choice in choices][-1] == "length"
    assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert chunks[0]["seed"] == 7
    assert "seed" not in chunks[1]


@pytest.mark.parametrize(
    ("prompt", "meant"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", ""), ("a\0b", "a\0b")],
)
def test_every_form_of_one_prompt(prompt: object, meant: object) -> None:
    generator = Scripted()
    body = text_body(prompt=prompt, add_special_tokens=False, parse_special=True)
    assert post(TEXT, body, generator=generator).status_code == 200
    request = generator.asked[0]
    assert request.prompt == meant
    assert request.add_special_tokens is False
    assert request.parse_special is True
    assert request.sampling.max_tokens == 16


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        ["a", [1]],
        ["a"] * 65,
        [[1], []],
        [1, "a"],
        [True],
        [1.0],
        [-1],
        [2**40],
        {},
        5,
        None,
    ],
)
def test_other_prompts_are_refused(prompt: object) -> None:
    response = post(TEXT, text_body(prompt=prompt))
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


def test_offsets_count_whole_characters() -> None:
    builder = CompletionLogprobs(has_token_ids=False)
    e_acute = "é".encode()
    tokens = [
        TokenLogprob(1, -1.0, "�", e_acute[:1]),
        TokenLogprob(2, -1.0, "�", e_acute[1:]),
        TokenLogprob(3, -1.0, "x", b"x"),
    ]
    answer = builder.take(tokens)
    assert answer["text_offset"] == [0, 0, 1]
    assert answer["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "x"]
    assert "token_ids" not in answer


def test_impossible_tokens_are_left_out() -> None:
    top = (TokenLogprob(1, -0.1, "a", b"a"), TokenLogprob(2, float("-inf"), "b", b"b"))
    sampled = TokenLogprob(1, -0.1, "a", b"a", top)
    assert [one["token"] for one in chat_logprobs([sampled])[0]["top_logprobs"]] == ["a"]
    assert CompletionLogprobs(has_token_ids=True).take([sampled])["top_token_ids"] == [[1]]


def test_tokens_of_a_prompt_and_of_messages() -> None:
    answer = post("/v1/tokenize", {"model": "default", "prompt": "hi"}).json()
    assert answer == {"tokens": [104, 105], "count": 2}
    messages = [{"role": "user", "content": "hi"}]
    answer = post("/v1/tokenize", {"model": "tiny", "messages": messages}).json()
    assert answer["prompt"] == "<user>hi"
    assert answer["count"] == len(answer["tokens"]) == 8
    both = post("/v1/tokenize", {"model": "tiny", "messages": messages, "prompt": "x"})
    assert (both.status_code, error_of(both)["param"]) == (400, "prompt")
    neither = post("/v1/tokenize", {"model": "tiny"})
    assert (neither.status_code, error_of(neither)["param"]) == (400, "prompt")


def test_text_of_tokens() -> None:
    answer = post("/v1/detokenize", {"model": "tiny", "tokens": [104, 0, 105]})
    assert answer.json() == {"prompt": "h\0i"}
    assert post("/v1/detokenize", {"model": "no", "tokens": [1]}).status_code == 404
    assert post("/v1/detokenize", {"model": "tiny", "tokens": [2**31 - 1]}).status_code == 400


@pytest.mark.parametrize("prompt", [["ab", "c"], [[97, 98], [99]]])
@pytest.mark.parametrize("is_echo", [False, True])
def test_several_prompts_are_choices_of_one_answer(prompt: list[Any], is_echo: bool) -> None:
    generator = Scripted()
    asked = text_body(prompt=prompt, n=2, echo=is_echo)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    whole, stream = ask_all(
        [("POST", TEXT, {"json": asked}), ("POST", TEXT, {"json": {**asked, **options}})],
        generator=generator,
    )
    answer = whole.json()
    before = ["ab", "ab", "c", "c"] if is_echo else [""] * 4
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
    assert [one["text"] for one in answer["choices"]] == [f"{one}alpha beta" for one in before]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 40
    # Nobody gave a seed: each prompt has the one after the last one's, and says so.
    assert [one["seed"] for one in answer["choices"]] == [7, 7, 8, 8]
    chunks = events(stream)
    said = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for choice in answer["choices"]:
        own = [one for one in said if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == ["stop"]
    assert chunks[-1]["usage"] == answer["usage"]


def test_a_seed_that_was_given_is_every_prompts() -> None:
    generator = Scripted()
    post(TEXT, text_body(prompt=["a", "b"], seed=5), generator=generator)
    assert [one.sampling.seed for one in generator.asked] == [5, 5]
    assert len({one.request_id for one in generator.asked}) == 2


def test_an_error_of_one_prompt_ends_them_all() -> None:
    generator = Scripted(fail_after=2)
    response = post(TEXT, text_body(prompt=["a", "b"]), generator=generator)
    assert (response.status_code, error_of(response)["code"]) == (500, "request_failed")
    assert (generator.num_running, len(generator.closed)) == (0, 2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 0, "n": 2}, "echo"),
        ({"echo": True, "return_token_ids": True}, "echo"),
        ({"prompt": ["a"] * 3, "n": 64}, "prompt"),
    ],
)
def test_what_cannot_be_together_is_refused(fields: dict[str, Any], param: str) -> None:
    response = post(TEXT, text_body(**fields))
    assert (response.status_code, error_of(response)["param"]) == (400, param)


class Reader(Scripted):
    """Tells of its prompt's tokens too."""

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        assert prepared.request.sampling.prompt_logprobs == 1
        known = tuple(token(chr(one), 1) for one in prepared.prompt_ids[1:])
        async for delta in super()._deltas(prepared):
            yield replace(delta, prompt_logprobs=known)
            known = ()


def test_an_echo_with_logprobs_begins_with_the_prompts() -> None:
    asked = text_body(prompt=["aéx", "q"], echo=True, logprobs=1, max_tokens=2)
    whole, stream = ask_all(
        [("POST", TEXT, {"json": asked}), ("POST", TEXT, {"json": {**asked, "stream": True}})],
        generator=Reader(),
    )
    Completion.model_validate(whole.json())
    first, second = whole.json()["choices"]
    assert (first["text"], second["text"]) == ("aéxal", "qal")
    logprobs = first["logprobs"]
    assert logprobs["tokens"] == list("aéxal")
    assert logprobs["token_logprobs"] == [None] + [-0.5] * 4
    assert logprobs["top_logprobs"][:2] == [None, {"é": -0.5}]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert second["logprobs"]["text_offset"] == [0, 1, 2]
    chunks = events(stream)
    for chunk in chunks:
        CompletionChunk.model_validate(chunk)
    for choice in (first, second):
        own = [one["choices"][0] for one in chunks]
        own = [one for one in own if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in own for value in one["logprobs"][name]] == values

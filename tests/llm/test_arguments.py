"""What a program gives ``LLM`` by mistake is a TypeError or Refusal that says what is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from insitu.engine.plan import PlanError, Wanted
from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from insitu.llm.front_door import LLM

ONE = SamplingParams(max_tokens=1, temperature=0)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([1, 2, 3], r"a list of token ids, as in \[\[1, 2\]\], not int"),
        (None, "not NoneType"),
        (5, "not int"),
        ([None], "not NoneType"),
        ([[1.5]], "not float"),
        ([["a"]], "not str"),
        ([[True]], "not bool"),
        (b"abc", "not bytes"),
        ([b"abc"], "not bytes"),
        ({"a": 1}, "not dict"),
        ([{1: 2}], "not dict"),
    ],
)
def test_prompts(random_llm: LLM, prompts: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        random_llm.generate(prompts, ONE)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [{"max_tokens": 3}], 3, "a", [3]])
def test_params(random_llm: LLM, params: Any) -> None:
    with pytest.raises(TypeError, match="params are SamplingParams, not"):
        random_llm.generate(["a"], params)
    with pytest.raises(TypeError, match="params are SamplingParams, not"):
        random_llm.chat([{"role": "user", "content": "a"}], params)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hi", "messages are a list, not str"),
        ({"role": "user"}, "messages are a list, not dict"),
        ([5], "a Message or a mapping, not int"),
        ([{"content": "a"}], "needs a role"),
        ([{"role": "user", "content": "a", "bogus": 1}], "has no 'bogus'"),
        ([{"role": "assistant", "tool_calls": [5]}], "a tool call is"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "are texts"),
    ],
)
def test_messages(random_llm: LLM, messages: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        random_llm.chat(messages, ONE)


def test_tools_and_template_values(random_llm: LLM) -> None:
    user: Any = [{"role": "user", "content": "a"}]
    with pytest.raises(TypeError, match="a tool is a mapping, not int"):
        random_llm.chat(user, ONE, tools=[5])  # type: ignore[list-item]
    with pytest.raises(Refusal, match=r"chat_template_kwargs\.5 may not be set"):
        random_llm.chat(user, ONE, template_kwargs={5: 1})  # type: ignore[dict-item]
    called: Any = [*user, {"role": "assistant", "content": "", "tool_calls": [CALL]}, *user]
    assert random_llm.chat(called, ONE).usage.completion_tokens == 1


@pytest.mark.parametrize("temperature", [10**400, float("inf"), float("nan"), -1])
def test_a_temperature_that_is_none(temperature: float) -> None:
    with pytest.raises(Refusal, match="temperature must be a finite number"):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize(
    "name",
    ["threads", "kv_cache_bytes", "max_model_len", "max_num_seqs", "max_num_batched_tokens"],
)
@pytest.mark.parametrize("value", [0, -1, "1", 1.0, True, 2**63])
def test_settings_that_mean_nothing_name_their_flag(name: str, value: Any) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(PlanError, match=f"{flag} must be a whole number from 1 to"):
        Wanted(**{name: value})

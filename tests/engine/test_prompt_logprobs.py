"""Log-probabilities of a prompt's own tokens: those of its beginnings, however the work is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine.scripted_runner import run_all
from engine.test_equivalence import SHAPE, Setup, make_engine, prompts

from insitu.engine.sequence import Output, Prompt, SampledToken

NUM_TOP = 3


def asked(max_tokens: int = 6) -> list[Prompt]:
    """Some tell of their prompts, some share them, some only decode."""
    made = []
    for index, prompt in enumerate(prompts(8)):
        changed = replace(prompt, cache_salt=b"all", num_choices=1 + index % 2)
        changed = replace(changed, max_tokens=max_tokens)
        tells = index % 3 != 2
        made.append(replace(changed, num_prompt_logprobs=NUM_TOP if tells else None))
    return made


def told(outputs: list[Output]) -> tuple[SampledToken, ...]:
    assert all(output.error is None for output in outputs)
    with_prompt = [one for one in outputs if one.prompt_tokens]
    assert all(one.choice == 0 for one in with_prompt)
    assert len(with_prompt) <= 1
    return with_prompt[0].prompt_tokens if with_prompt else ()


@pytest.fixture(scope="module")
def wanted() -> dict[str, tuple[SampledToken, ...]]:
    """What is likely after each beginning of a prompt, as a request that ends there is told."""
    engine = make_engine(Setup())
    answers = {}
    for prompt in asked():
        ids = prompt.token_ids
        if prompt.num_prompt_logprobs is None:
            continue
        tokens = []
        for end in range(1, len(ids)):
            engine.add(Prompt("x", ids[:end], 1, 0, num_logprobs=SHAPE.vocab, temperature=0.0))
            (output,) = run_all(engine)["x"]
            assert output.token is not None
            of_all = dict(output.token.top)
            tokens.append(SampledToken(ids[end], of_all[ids[end]], output.token.top[:NUM_TOP]))
        answers[prompt.request_id] = tuple(tokens)
    engine.runner.close()
    return answers


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(tokens=16, tokens_alone=16, max_num_seqs=4, threads=2),
        Setup(num_blocks=14, max_num_seqs=12, tokens=16, tokens_alone=16),
    ],
    ids=["wide", "chunked", "preempted"],
)
def test_the_same_however_the_work_is_cut(
    setup: Setup, wanted: dict[str, tuple[SampledToken, ...]]
) -> None:
    engine = make_engine(setup)
    for _ in range(2):  # the second time everything is in the prefix cache, and none of it is read
        for prompt in asked(60 if setup.num_blocks == 14 else 6):
            engine.add(prompt)
        outputs = run_all(engine)
        got = {name: told(of_all) for name, of_all in outputs.items()}
        assert {name: one for name, one in got.items() if one} == {
            name: one for name, one in wanted.items() if one
        }
    if setup.num_blocks == 14:
        assert engine.stats.counters()["preemptions"] > 0
    engine.runner.close()


def test_what_is_sampled_is_the_same_with_and_without() -> None:
    engine = make_engine(Setup(tokens=16, tokens_alone=16))
    tokens = []
    for is_told in (True, False):
        for prompt in asked():
            number = NUM_TOP if is_told else None
            engine.add(replace(prompt, num_prompt_logprobs=number))
        outputs = run_all(engine)
        tokens.append(
            {
                (name, one.choice): [two.token for two in of_all if two.choice == one.choice]
                for name, of_all in outputs.items()
                for one in of_all
            }
        )
    engine.runner.close()
    assert tokens[0] == tokens[1]

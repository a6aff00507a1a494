"""Rows that may not choose freely: each by its own rule, in a crowd as alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine.constraints import Broken, DeadEnd, Stubborn, Turns
from engine.scripted_runner import run_all, tokens_of
from engine.test_equivalence import SHAPE, Setup, make_engine, prompts

from insitu.engine.sequence import Output, Prompt, SampledToken
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from insitu.engine.engine import Engine
    from insitu.types import TokenConstraint

VOCAB = SHAPE.vocab
TIGHT = Setup(num_blocks=14, max_num_seqs=12, tokens=16, tokens_alone=16)

Chosen = dict[tuple[str, int], list[SampledToken | None]]


def crowd() -> list[Prompt]:
    """Prompts of one to three choices, every second constrained, every third biased."""
    made = []
    for index, prompt in enumerate(prompts(8)):
        changes: dict[str, Any] = {
            "num_choices": 1 + index % 3,
            "max_tokens": prompt.max_tokens + 40,
        }
        if index % 2:
            changes["constraint"] = Turns(VOCAB)
        if index % 3 == 1:
            changes["logit_bias"] = ((7, 4.0), (9, float("-inf")), (11, -3.0))
        made.append(replace(prompt, **changes))
    return made


def chosen(outputs: dict[str, list[Output]]) -> Chosen:
    assert all(output.error is None for one in outputs.values() for output in one)
    tokens: Chosen = {}
    for request_id, of_all in outputs.items():
        for output in of_all:
            tokens.setdefault((request_id, output.choice), []).append(output.token)
    return tokens


def run(engine: Engine, asked: list[Prompt]) -> dict[str, list[Output]]:
    for prompt in asked:
        engine.add(prompt)
    return run_all(engine)


@pytest.fixture(scope="module")
def alone() -> Chosen:
    engine = make_engine(Setup())
    tokens: Chosen = {}
    for prompt in crowd():
        tokens.update(chosen(run(engine, [prompt])))
    engine.runner.close()
    return tokens


@pytest.mark.parametrize("setup", [TIGHT, Setup(max_num_seqs=3, tokens=17, threads=3)])
def test_the_same_in_a_crowd_as_alone(setup: Setup, alone: Chosen) -> None:
    engine = make_engine(setup)
    tokens = chosen(run(engine, crowd()))
    assert setup != TIGHT or engine.stats.counters()["preemptions"] > 0
    engine.runner.close()
    assert tokens == alone


def test_every_token_is_one_its_constraint_allowed(alone: Chosen) -> None:
    for (request_id, _), tokens in alone.items():
        checker = Turns(VOCAB)
        if int(request_id[1:]) % 2:
            for token in tokens:
                assert token is not None
                checker.advance(token.token_id)  # asserts that it is allowed
            assert len(checker.taken) >= 4


def test_a_banned_token_never_comes_and_a_likely_one_often(alone: Chosen) -> None:
    biased = [
        token.token_id
        for (request_id, _), tokens in alone.items()
        for token in tokens
        if token is not None and int(request_id[1:]) % 3 == 1
    ]
    assert 9 not in biased
    assert biased.count(7) > len(biased) / 10


@pytest.mark.parametrize(
    ("constraint", "num_tokens", "code"),
    [
        (DeadEnd(VOCAB), 2, "no_token_allowed"),
        (Broken(VOCAB), 2, "request_failed"),
        (Stubborn(VOCAB), 1, "request_failed"),
    ],
)
def test_a_constraint_that_fails_ends_its_own_request(
    constraint: TokenConstraint, num_tokens: int, code: str, alone: Chosen
) -> None:
    engine = make_engine(Setup())
    asked = [prompt for prompt in crowd() if prompt.request_id != "p1"]
    culprit = Prompt("culprit", (1, 2, 3), max_tokens=9, seed=1, constraint=constraint)
    outputs = run(engine, [asked[0], culprit, *asked[1:]])
    engine.runner.close()
    *before, last = outputs.pop("culprit")
    assert len(tokens_of(before)) == num_tokens
    assert isinstance(last.error, RequestFailed)
    assert last.error.code == code
    assert chosen(outputs) == {key: one for key, one in alone.items() if key[0] != "p1"}

"""Rows that may not choose freely: each by its own rule, in a crowd as alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine.constraints import Broken, DeadEnd, Only, Stubborn, Turns
from engine.scripted_runner import run_all, tokens_of
from engine.test_equivalence import SHAPE, Setup, make_engine, prompts

from insitu.engine.sequence import Output, Prompt, SampledToken
from insitu.engine.shaping import Dry, Shaping
from insitu.refusal import RequestFailed
from insitu.sampling_params import Order

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
            biases = ((7, 4.0), (9, float("-inf")), (11, -3.0))
            changes["shaping"] = Shaping(biases, repetition=1.2, dry=Dry(1.0), banned=((7, 8),))
        if index % 4 == 2:
            changes["shaping"] = Shaping(presence=0.5, frequency=0.3, last_n=9, min_tokens=5)
            changes["has_processed_logprobs"] = True
            changes["order"] = Order.LLAMA_CPP
        if index % 4 == 1:
            changes |= {"typical_p": 0.8, "top_n_sigma": 2.0, "xtc_probability": 0.5}
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
    assert biased.count(7) > len(biased) / 20


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


def test_a_greedy_grammar_a_seeded_draw_and_a_ban_run_side_by_side() -> None:
    plain = Prompt("greedy", (5, 6, 7), max_tokens=12, seed=0, temperature=0.0)
    engine = make_engine(Setup(threads=2))
    (favourite, *_) = tokens_of(run(engine, [plain])["greedy"])
    ban = Shaping(logit_bias=((favourite, float("-inf")),))
    asked = [
        replace(plain, request_id="grammar", constraint=Turns(VOCAB), num_logprobs=2),
        replace(plain, request_id="draw", temperature=0.9, seed=7),
        replace(plain, request_id="ban", shaping=ban),
    ]
    wanted: dict[str, list[int]] = {}
    for prompt in asked:
        wanted |= {name: tokens_of(one) for name, one in run(engine, [prompt]).items()}
    for turn in range(50):
        outputs = run(engine, asked[turn % 3 :] + asked[: turn % 3])
        assert {name: tokens_of(one) for name, one in outputs.items()} == wanted
        assert all(output.error is None for of_all in outputs.values() for output in of_all)
    engine.runner.close()
    assert favourite not in wanted["ban"]


def test_what_a_seed_gives_depends_on_nobody_else() -> None:
    asked = Prompt("x", (5, 6, 7), max_tokens=10, seed=42, temperature=0.8)
    others = [replace(asked, request_id=f"o{seed}", seed=seed) for seed in range(7)]
    engine = make_engine(Setup())
    alone = tokens_of(run(engine, [asked])["x"])
    for crowd_before in ([], others[:1], others):
        twin = replace(asked, request_id="twin")
        outputs = run(engine, [*crowd_before, twin, asked])
        assert tokens_of(outputs["x"]) == tokens_of(outputs["twin"]) == alone
    engine.add(asked)
    engine.add(replace(others[0], max_tokens=50))
    got: dict[str, list[Output]] = {"x": [], "o0": []}
    for step in range(30):
        if step == 4:
            engine.abort("o0")
        if not engine.has_work:
            break
        for output in engine.step():
            got[output.request_id].append(output)
    engine.runner.close()
    assert tokens_of(got["x"]) == alone


def test_a_constraint_that_can_only_end_wins_over_min_tokens() -> None:
    only_end = Only(VOCAB, ids=(17,))
    asked = Prompt(
        "end", (1, 2), max_tokens=9, seed=0, shaping=Shaping(min_tokens=5),
        constraint=only_end, stop_ids=frozenset({17, 18}),
    )  # fmt: skip
    engine = make_engine(Setup())
    free = replace(asked, request_id="free", constraint=None, temperature=0.0)
    outputs = run(engine, [asked, free])
    engine.runner.close()
    assert tokens_of(outputs["end"]) == [17]
    assert len(tokens_of(outputs["free"])) >= 5

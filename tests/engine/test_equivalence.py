"""Real kernels under the engine: the same ids and bits alone, in a crowd, in chunks, preempted."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from engine.scripted_runner import run_all
from kernels.tiny_decoder import Shape, program

from insitu.engine.block_pool import BlockPool
from insitu.engine.engine import Engine
from insitu.engine.runner import BatchRunner
from insitu.engine.scheduler import StepBudget
from insitu.engine.sequence import Output, Prompt, SampledToken
from insitu.engine.stats import Stats
from insitu.kernels.native import Limits, Native
from insitu.kernels.passes import lower

SHAPE = Shape()


@dataclass(frozen=True)
class Setup:
    """How an engine is set up; none of it may change an answer."""

    num_blocks: int = 64
    max_num_seqs: int = 8
    tokens: int = 64
    tokens_alone: int = 128
    threads: int = 1


def make_engine(setup: Setup, poison: int | None = None) -> Engine:
    limits = Limits(
        max_num_tokens=max(setup.tokens, setup.tokens_alone),
        max_num_logit_rows=setup.max_num_seqs,
        max_num_seqs=setup.max_num_seqs,
        num_blocks=setup.num_blocks,
        max_blocks_per_seq=setup.num_blocks,
    )
    quantized = lower(program(SHAPE, poison=poison))
    native = Native(quantized, kv=SHAPE.kv, limits=limits, num_threads=setup.threads)
    pool = BlockPool(setup.num_blocks, SHAPE.block_size)
    budget = StepBudget(setup.max_num_seqs, setup.tokens, setup.tokens_alone, setup.max_num_seqs)
    return Engine(BatchRunner(native, SHAPE.block_size), pool, budget, Stats())


def prompts(count: int = 12) -> list[Prompt]:
    """Greedy and sampled, long and short, around multiples of the block size of 16."""
    rng = random.Random(7)  # noqa: S311
    lengths = [1, 15, 16, 17, 31, 32, 33, 48, 100, 5, 70, 8]
    made = []
    for index in range(count):
        ids = tuple(rng.randrange(SHAPE.vocab) for _ in range(lengths[index % len(lengths)]))
        prompt = Prompt(f"p{index}", ids, rng.randrange(4, 30), seed=index, num_logprobs=index % 4)
        if index % 3 == 0:
            prompt = replace(prompt, temperature=0.0)
        elif index % 3 == 1:
            prompt = replace(prompt, temperature=0.8, top_k=40, top_p=0.95, min_p=0.01)
        made.append(prompt)
    return made


def answers(outputs: dict[str, list[Output]]) -> dict[str, list[SampledToken | None]]:
    assert all(output.error is None for one in outputs.values() for output in one)
    return {name: [output.token for output in one] for name, one in outputs.items()}


@pytest.fixture(scope="module")
def alone() -> dict[str, list[SampledToken | None]]:
    engine = make_engine(Setup())
    got = {}
    for prompt in prompts():
        engine.add(prompt)
        got.update(answers(run_all(engine)))
    assert engine.scheduler.pool.num_held == 0
    engine.runner.close()
    return got


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(threads=2),
        Setup(tokens=8, tokens_alone=8),
        Setup(tokens=13, tokens_alone=50, max_num_seqs=5),
        Setup(max_num_seqs=1, tokens=1, tokens_alone=1),
    ],
    ids=["together", "two threads", "chunks of 8", "odd chunks", "one at a time, a token a step"],
)
def test_together(setup: Setup, alone: dict[str, list[SampledToken | None]]) -> None:
    engine = make_engine(setup)
    for prompt in random.Random(setup.tokens).sample(prompts(), 12):  # noqa: S311
        engine.add(prompt)
    assert answers(run_all(engine)) == alone
    assert engine.scheduler.pool.num_held == 0
    engine.runner.close()


def test_preempted() -> None:
    longer = [replace(prompt, max_tokens=prompt.max_tokens + 60) for prompt in prompts()]
    roomy = make_engine(Setup(num_blocks=200, max_num_seqs=12))
    tight = make_engine(Setup(num_blocks=14, max_num_seqs=12, tokens=16, tokens_alone=16))
    for prompt in longer:
        roomy.add(prompt)
        tight.add(prompt)
    sequences = list(tight.scheduler.waiting)
    assert answers(run_all(tight)) == answers(run_all(roomy))
    num_preemptions = [sequence.num_preemptions for sequence in sequences]
    assert sum(num_preemptions) > 0
    assert max(num_preemptions) < 10
    tight.runner.close()
    roomy.runner.close()


def test_joining_and_leaving(alone: dict[str, list[SampledToken | None]]) -> None:
    engine = make_engine(Setup(threads=2))
    rng = random.Random(3)  # noqa: S311
    waiting = prompts()
    extra = [replace(prompt, request_id=f"x{prompt.request_id}") for prompt in prompts()]
    rng.shuffle(waiting)
    got: dict[str, list[Output]] = {}
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add(waiting.pop())
        if extra and rng.random() < 0.3:
            engine.add(extra.pop())
        if rng.random() < 0.2:
            engine.abort(f"xp{rng.randrange(12)}")
        if engine.has_work:
            for output in engine.step():
                got.setdefault(output.request_id, []).append(output)
    kept = {name: one for name, one in answers(got).items() if not name.startswith("x")}
    assert kept == alone
    assert engine.scheduler.pool.num_held == 0
    engine.runner.close()


def test_twice_and_after_the_pool_was_used_up(alone: dict[str, list[SampledToken | None]]) -> None:
    engine = make_engine(Setup(num_blocks=16))
    for _ in range(2):
        for prompt in prompts():
            engine.add(prompt)
        assert answers(run_all(engine)) == alone
        assert engine.scheduler.pool.num_free == 16
    engine.runner.close()


def test_a_poisoned_sequence_ends_alone(alone: dict[str, list[SampledToken | None]]) -> None:
    poison = 299
    safe = [p for p in prompts() if poison not in p.token_ids]
    safe = [p for p in safe if all(t is None or t.token_id != poison for t in alone[p.request_id])]
    assert len(safe) > 5
    engine = make_engine(Setup(), poison=poison)
    for prompt in [*safe[:3], Prompt("bad", (5, poison, 7), 9, 0), *safe[3:]]:
        engine.add(prompt)
    outputs = run_all(engine)
    assert outputs.pop("bad")[-1].error is not None
    assert answers(outputs) == {prompt.request_id: alone[prompt.request_id] for prompt in safe}
    # Blocks that held NaN are lent again.
    again = replace(safe[0], request_id="again")
    engine.add(again)
    assert answers(run_all(engine))["again"] == alone[safe[0].request_id]
    engine.runner.close()


@pytest.mark.parametrize("temperature", [-0.0, 5e-324, 1e-45, 1e-38, 1e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    engine = make_engine(Setup())
    prompt = replace(prompts()[4], temperature=0.0)
    engine.add(prompt)
    greedy = answers(run_all(engine))[prompt.request_id]
    for seed in range(3):
        engine.add(replace(prompt, temperature=temperature, seed=seed))
        assert answers(run_all(engine))[prompt.request_id] == greedy
    engine.runner.close()


def test_equal_requests_with_other_seeds_differ() -> None:
    engine = make_engine(Setup())
    prompt = replace(prompts()[4], temperature=1e6, top_k=None, top_p=1.0, min_p=0.0)
    for seed in (1, 2, 2**64 - 1):
        engine.add(replace(prompt, request_id=str(seed), seed=seed))
    got = answers(run_all(engine))
    assert got["1"] != got["2"] != got[str(2**64 - 1)]
    engine.runner.close()


@pytest.mark.parametrize("num_blocks", [22, 64], ids=["evicted", "warm"])
def test_found_blocks_change_nothing(
    num_blocks: int, alone: dict[str, list[SampledToken | None]]
) -> None:
    engine = make_engine(Setup(num_blocks=num_blocks, tokens=24, tokens_alone=24))
    salted = [replace(prompt, cache_salt=b"tenant") for prompt in prompts()]
    for turn in range(3):
        for prompt in random.Random(turn).sample(salted, 12):  # noqa: S311
            engine.add(prompt)
        assert answers(run_all(engine)) == alone
    assert engine.stats.counter("prefix_cache_hits") > (200 if num_blocks == 64 else 0)
    engine.forget(b"tenant")
    for prompt in salted:
        engine.add(prompt)
    assert answers(run_all(engine)) == alone
    engine.runner.close()


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 17, 18, 33])
def test_choices_are_the_same_forked_or_one_by_one(num_tokens: int) -> None:
    prompt = replace(prompts()[8], num_choices=3, max_tokens=20, temperature=1.0, num_logprobs=2)
    prompt = replace(prompt, token_ids=prompt.token_ids[:num_tokens])
    got = []
    for max_num_seqs in (1, 3):
        engine = make_engine(Setup(max_num_seqs=max_num_seqs))
        engine.add(prompt)
        outputs = run_all(engine)[prompt.request_id]
        got.append([[one.token for one in outputs if one.choice == choice] for choice in range(3)])
        engine.runner.close()
    assert got[0] == got[1]
    assert got[0][0] != got[0][1] != got[0][2]


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_prompt_sent_again_finds_all_full_blocks_but_that_of_its_last_token(
    num_tokens: int,
) -> None:
    engine = make_engine(Setup(num_blocks=12))
    rng = random.Random(num_tokens)  # noqa: S311
    ids = tuple(rng.randrange(SHAPE.vocab) for _ in range(num_tokens))
    prompt = Prompt("p", ids, 8, seed=1, temperature=0.8, num_logprobs=2, cache_salt=b"tenant")

    def ask() -> tuple[int, list[SampledToken | None]]:
        engine.add(prompt)
        outputs = run_all(engine)["p"]
        assert engine.scheduler.pool.num_free == 12
        return outputs[0].num_cached_tokens, answers({"p": outputs})["p"]

    num_cached, first = ask()
    assert num_cached == 0
    assert ask() == ((num_tokens - 1) // 16 * 16, first)
    # Everything is lent to others, and asked for once more.
    for index in range(4):
        others = tuple(rng.randrange(SHAPE.vocab) for _ in range(150))
        engine.add(replace(prompt, request_id=f"o{index}", token_ids=others))
        run_all(engine)
    assert ask() == (0, first)
    assert ask()[1] == first
    engine.runner.close()

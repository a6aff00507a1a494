"""Any load over the scripted model: the same tokens as alone, one end each, nothing leaked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.scripted_runner import (
    VOCAB_SIZE,
    expected_tokens,
    make_engine,
    make_prompt,
    vector_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from engine.scripted_runner import ScriptedRunner

    from insitu.engine.engine import Engine
    from insitu.engine.sequence import Prompt

SALTS = (None, b"one", b"two")


@dataclass
class Load:
    """Requests that arrive, aborts, forgotten salts and accidents, each at its step."""

    engine: Engine
    runner: ScriptedRunner
    prompts: dict[int, list[Prompt]]
    aborts: dict[int, list[tuple[str, int | None]]]
    forgets: dict[int, bytes]
    preempts: dict[int, int]
    pauses: dict[int, int]
    throws: set[int]
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    ended: set[tuple[str, int]] = field(default_factory=set)
    aborted: set[tuple[str, int]] = field(default_factory=set)

    def run(self) -> None:
        """Step until all is over, checking the pool after every step."""
        step = 0
        while step <= 40 or self.engine.has_work:
            self._come_and_go(step)
            if self.engine.has_work:
                self._step()
            self._check_pool()
            step += 1
            assert step < 5000

    def _check_pool(self) -> None:
        scheduler = self.engine.scheduler
        sequences = (*scheduler.running, *scheduler.waiting)
        held = {block for one in sequences for block in one.block_ids}
        pool = scheduler.pool
        assert len(held) == pool.num_held
        assert pool.num_free + pool.num_held == pool.num_blocks
        assert not pool.take_chores(), "what is forgotten is wiped at once"

    def _come_and_go(self, step: int) -> None:
        for prompt in self.prompts.get(step, []):
            self.engine.add(prompt)
        for name, choice in self.aborts.get(step, []):
            choices = range(3) if choice is None else [choice]
            if self.engine.abort(name, choice):
                self.aborted |= {(name, one) for one in choices} - self.ended
        if step in self.forgets:
            self.engine.forget(self.forgets[step])
        self._mishaps(step)

    def _mishaps(self, step: int) -> None:
        running = self.engine.scheduler.running
        if step in self.preempts and running:
            self.engine.scheduler.preempt(running[self.preempts[step] % len(running)])
        if step in self.pauses:
            self.engine.pause(f"r{self.pauses[step]}", True)
        if step % 20 == 0:
            for prompts in self.prompts.values():
                for prompt in prompts:
                    self.engine.pause(prompt.request_id, False)
        if step in self.throws:
            self.runner.fail_next = ValueError("an accident")

    def _step(self) -> None:
        for output in self.engine.step():
            key = (output.request_id, output.choice)
            assert key not in self.ended | self.aborted
            if output.vector is not None:
                self.vectors[output.request_id] = output.vector
                assert output.is_last
                self.ended.add(key)
                continue
            assert output.token is not None
            self.tokens.setdefault(key, []).append(output.token.token_id)
            if output.is_last:
                self.ended.add(key)


def prompt_of(  # noqa: PLR0917
    name: str, family: int, num_tokens: int, max_tokens: int, salt: int, choices: int, priority: int
) -> Prompt:
    """A prompt that begins like all others of its family, with their seed; without choices of its
    own it is embedded."""
    if choices == 0:
        embedded = make_prompt(f"family {family}", num_tokens, 1, seed=family)
        salted = replace(embedded, request_id=name, cache_salt=SALTS[salt], priority=priority)
        return replace(salted, is_embedded=True)
    alike = make_prompt(f"family {family}", num_tokens, max_tokens, seed=family)
    return replace(
        alike,
        request_id=name,
        cache_salt=SALTS[salt],
        num_choices=choices,
        priority=priority,
        shares_output=num_tokens % 2 == 0,
        stop_ids=frozenset(range(0, VOCAB_SIZE, 7)) if num_tokens % 3 == 0 else frozenset(),
    )


@settings(max_examples=250, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.tuples(
                st.integers(0, 1),
                st.integers(1, 40),
                st.integers(1, 25),
                st.integers(0, 2),
                st.integers(0, 3),
                st.integers(0, 2),
            ),
            st.integers(0, 30),
        ),
        min_size=1,
        max_size=12,
    ),
    num_blocks=st.integers(17, 60),
    max_num_seqs=st.integers(1, 6),
    tokens=st.integers(6, 20),
    rows=st.integers(1, 6),
    aborts=st.dictionaries(
        st.tuples(st.integers(0, 11), st.one_of(st.none(), st.integers(0, 2))), st.integers(0, 40)
    ),
    forgets=st.dictionaries(st.integers(0, 40), st.sampled_from([b"one", b"two"])),
    preempts=st.dictionaries(st.integers(0, 40), st.integers(0, 5)),
    pauses=st.dictionaries(st.integers(0, 40), st.integers(0, 11)),
    throws=st.sets(st.integers(0, 40), max_size=3),
    runs_ahead=st.booleans(),
)
def test_any_load_ends_once_each_without_leaks(  # noqa: PLR0917
    requests: list[tuple[tuple[int, int, int, int, int, int], int]],
    num_blocks: int,
    max_num_seqs: int,
    tokens: int,
    rows: int,
    aborts: dict[tuple[int, int | None], int],
    forgets: dict[int, bytes],
    preempts: dict[int, int],
    pauses: dict[int, int],
    throws: set[int],
    runs_ahead: bool,
) -> None:
    engine, runner = make_engine(
        num_blocks, max_num_seqs, tokens, tokens + 5, rows, runs_ahead=runs_ahead
    )
    load = Load(engine, runner, {}, {}, forgets, preempts, pauses, throws)
    prompts = []
    for index, (shape, arrival) in enumerate(requests):
        prompts.append(prompt_of(f"r{index}", *shape))
        load.prompts.setdefault(arrival, []).append(prompts[-1])
    for (index, choice), step in aborts.items():
        load.aborts.setdefault(step, []).append((f"r{index}", choice))
    load.run()
    assert engine.scheduler.pool.num_held == 0
    for prompt in prompts:
        for choice in range(prompt.num_choices):
            key = (prompt.request_id, choice)
            assert key in load.ended | load.aborted
            if key in load.ended and prompt.is_embedded:
                assert load.vectors[prompt.request_id] == vector_of(prompt.token_ids)
            elif key in load.ended:
                assert load.tokens[key] == expected_tokens(prompt, choice)

"""Blocks that several sequences share: what is found again, what is not, who goes first."""

from __future__ import annotations

from dataclasses import replace

from engine.scripted_runner import (
    BLOCK_SIZE,
    expected_tokens,
    make_engine,
    make_prompt,
    run_all,
    tokens_of,
)

from insitu.engine.block_pool import BlockPool
from insitu.engine.prefix import HashChain
from insitu.engine.scheduler import MAX_OVERTAKEN

SALT = b"tenant"


def cached_tokens(
    num_tokens: int, salts: tuple[bytes | None, bytes | None], *, seed: int = 0, max_tokens: int = 6
) -> int:
    """How many tokens a second request like the first finds computed."""
    engine, _ = make_engine()
    first = replace(make_prompt("a", num_tokens), cache_salt=salts[0])
    engine.add(first)
    run_all(engine)
    second = replace(first, request_id="b", cache_salt=salts[1], seed=seed, max_tokens=max_tokens)
    engine.add(second)
    outputs = run_all(engine)["b"]
    assert tokens_of(outputs) == expected_tokens(second)
    return outputs[0].num_cached_tokens


def test_full_blocks_are_found_again_and_the_last_token_is_computed() -> None:
    assert cached_tokens(BLOCK_SIZE, (SALT, SALT)) == 0
    assert cached_tokens(BLOCK_SIZE + 1, (SALT, SALT)) == BLOCK_SIZE
    assert cached_tokens(3 * BLOCK_SIZE, (SALT, SALT)) == 2 * BLOCK_SIZE
    assert cached_tokens(3 * BLOCK_SIZE + 2, (SALT, SALT), seed=5, max_tokens=2) == 3 * BLOCK_SIZE


def test_another_salt_or_none_finds_nothing() -> None:
    assert cached_tokens(20, (SALT, b"other")) == 0
    assert cached_tokens(20, (SALT, None)) == 0
    assert cached_tokens(20, (None, SALT)) == 0
    assert cached_tokens(20, (None, None)) == 0


def test_the_next_turn_finds_the_answer_too_unless_its_end_may_have_been_cut() -> None:
    for shares_output, num_cached in ((True, 16), (False, 4)):
        engine, _ = make_engine()
        prompt = replace(make_prompt("a", 7, 10), cache_salt=SALT, shares_output=shares_output)
        engine.add(prompt)
        answer = tokens_of(run_all(engine)["a"])
        history = (*prompt.token_ids, *answer, 1, 2, 3)
        engine.add(replace(prompt, request_id="b", token_ids=history))
        assert run_all(engine)["b"][0].num_cached_tokens == num_cached


def test_only_what_was_computed_is_found() -> None:
    engine, runner = make_engine(tokens=8, tokens_alone=8)
    long = replace(make_prompt("a", 40), cache_salt=SALT)
    engine.add(long)
    engine.step()
    runner.throws = {"a"}
    engine.step()
    engine.add(replace(long, request_id="b"))
    assert run_all(engine)["b"][0].num_cached_tokens == 8


def test_least_recently_used_blocks_are_lent_first_and_a_prefix_outlives_its_end() -> None:
    engine, _ = make_engine(num_blocks=16)
    pool = engine.scheduler.pool
    for name in ("old", "new"):
        engine.add(replace(make_prompt(name, 25, 1), cache_salt=SALT))
        run_all(engine)
    assert pool.num_cached == 12
    engine.add(make_prompt("big", 7 * BLOCK_SIZE, 1))
    run_all(engine)
    assert pool.num_cached == 9
    found = {}
    for name in ("new", "old"):
        engine.add(replace(make_prompt(name, 25, 1), cache_salt=SALT))
        found[name] = run_all(engine)[name][0].num_cached_tokens
    assert found == {"new": 24, "old": 12}


def test_forget_wipes_what_is_free_now_and_what_is_held_when_it_is_freed() -> None:
    engine, runner = make_engine()
    kept = replace(make_prompt("kept", 9, 1), cache_salt=b"other")
    for prompt in (kept, replace(make_prompt("gone", 9, 1), cache_salt=SALT)):
        engine.add(prompt)
        run_all(engine)
    running = replace(make_prompt("running", 9, 30), cache_salt=SALT)
    engine.add(running)
    engine.step()
    engine.forget(SALT)
    assert runner.num_wiped == 2
    outputs = run_all(engine)["running"]
    assert tokens_of(outputs) == expected_tokens(running)[1:]
    assert runner.num_wiped == 2 + engine.scheduler.pool.blocks_for(9 + 30 - 1)
    assert engine.scheduler.pool.num_cached == 2
    engine.add(replace(kept, request_id="again"))
    assert run_all(engine)["again"][0].num_cached_tokens == 8


def test_hashes_cover_the_salt_every_token_before_and_nothing_after() -> None:
    ids = list(range(100, 132))
    whole = HashChain(SALT, 16).of(ids, 2)
    assert HashChain(SALT, 16).of(ids[:16], 1) == whole[:1]
    assert HashChain(b"x", 16).of(ids, 2)[0] != whole[0]
    changed = HashChain(SALT, 16).of([7, *ids[1:]], 2)
    assert changed[0] != whole[0]
    assert changed[1] != whole[1]
    assert HashChain(SALT, 16).of([*ids[:31], 7], 2)[0] == whole[0]


def test_equal_blocks_are_published_once() -> None:
    pool = BlockPool(4, BLOCK_SIZE)
    blocks = pool.allocate(2)
    assert blocks is not None
    for block in blocks:
        pool.publish(block, b"hash", SALT)
    assert pool.num_cached == 1
    pool.free(blocks)
    assert pool.match([b"hash"]) == blocks[:1]


def test_choices_share_the_prompt_and_differ_in_noise() -> None:
    engine, runner = make_engine(num_blocks=20, tokens=64, tokens_alone=64)
    prompt = replace(make_prompt("a", 30, 3), num_choices=4)
    engine.add(prompt)
    engine.step()
    engine.step()
    # Seven full blocks are held once; each choice has a last one of its own.
    assert engine.scheduler.pool.num_held == 7 + 4
    outputs = run_all(engine)["a"]
    assert runner.num_steps == 5  # the others begin once the first one's token was taken in
    for choice in range(4):
        assert tokens_of(outputs, choice) == expected_tokens(prompt, choice)[2 * (choice == 0) :]
    assert engine.scheduler.pool.num_held == 0


def test_choices_whose_first_ended_are_still_right() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    prompt = replace(make_prompt("a", 30, 3), num_choices=3)
    engine.add(prompt)
    outputs = run_all(engine)["a"]
    for choice in range(3):
        assert tokens_of(outputs, choice) == expected_tokens(prompt, choice)


def test_a_lower_priority_runs_earlier_and_arrival_breaks_ties() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    for name, priority in (("first", 5), ("late", 5), ("urgent", -1), ("later", 5)):
        engine.add(replace(make_prompt(name, 5, 1), priority=priority))
    ended = [output.request_id for _ in range(4) for output in engine.step()]
    assert ended == ["urgent", "first", "late", "later"]


def test_nobody_is_overtaken_for_ever() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    engine.add(replace(make_prompt("running", 5, 1), priority=-1))
    engine.add(replace(make_prompt("patient", 5, 1), priority=9))
    overtaken = 0
    for index in range(10 * MAX_OVERTAKEN):
        engine.add(replace(make_prompt(f"urgent {index}", 5, 1), priority=0))
        ended = {output.request_id for output in engine.step()}
        if "patient" in ended:
            break
        overtaken += any(name.startswith("urgent") for name in ended)
    assert overtaken == MAX_OVERTAKEN

"""Reasoning as a constraint: budgets, what may follow, going back."""

from __future__ import annotations

import random

import pytest
from codec.walking import allowed, spoken, tiny_tokenizer

from insitu.codec.grammar import GrammarCompiler, grammar_of
from insitu.codec.reasoning import ReasoningSigns
from insitu.codec.thinking import Stage, ThinkingConstraint, ThinkingWords
from insitu.types import Guide, TokenConstraint

TOKENIZER = tiny_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size)
# One whose closing sign is a token, and one that is spelt, with a token that goes beyond it.
TOKENS = ReasoningSigns("tokens", "<tool_call>", "</tool_call>")
SPELT = ReasoningSigns("spelt", "[[", "]he")


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False, parse_special=True)


def begin(
    signs: ReasoningSigns,
    *,
    is_thinking: bool = True,
    max_tokens: int | None = None,
    choices: tuple[str, ...] = (),
) -> ThinkingConstraint:
    inner: TokenConstraint | None = None
    if choices:
        inner = COMPILER.compile(grammar_of(Guide("choice", choices)), "x")
    words = ThinkingWords(TOKENIZER, signs, TOKENIZER.vocab_size)
    return ThinkingConstraint.begin(
        words, is_thinking=is_thinking, max_tokens=max_tokens, inner=inner
    )


def feed(constraint: TokenConstraint, text: str) -> None:
    for token_id in ids(text):
        may = allowed(constraint, TOKENIZER)
        assert may is None or token_id in may, text
        constraint.advance(token_id)


@pytest.mark.parametrize("signs", [TOKENS, SPELT])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_closing_sign_is_forced_when_the_budget_is_spent(
    signs: ReasoningSigns, budget: int
) -> None:
    constraint = begin(signs, max_tokens=budget)
    feed(constraint, "xyz!?"[:budget])
    closing = ids(signs.closing)
    assert list(constraint.forced()) == closing
    for token_id in closing:
        assert allowed(constraint, TOKENIZER) == [token_id]
        constraint.advance(token_id)
    assert allowed(constraint, TOKENIZER) is None
    feed(constraint, "any text" + signs.opening)


def test_a_sign_begun_as_the_budget_ends_is_finished_not_begun_again() -> None:
    constraint = begin(SPELT, max_tokens=2)
    feed(constraint, "x]")
    assert list(constraint.forced()) == ids("he")


def test_no_budget_and_nothing_to_match_allows_everything() -> None:
    constraint = begin(SPELT)
    feed(constraint, "reason as you like")
    assert allowed(constraint, TOKENIZER) is None


def test_a_budget_counts_only_where_reasoning_was_opened() -> None:
    constraint = begin(TOKENS, is_thinking=False, max_tokens=2)
    feed(constraint, "an answer without any reasoning")
    constraint = begin(TOKENS, is_thinking=False, max_tokens=2)
    feed(constraint, "\n<tool_call>xy")
    assert list(constraint.forced()) == ids("</tool_call>")


def test_a_grammar_begins_after_reasoning() -> None:
    constraint = begin(TOKENS, choices=("yes", "no"))
    end = next(iter(TOKENIZER.end_ids))
    feed(constraint, "anything: yes no {")
    may = allowed(constraint, TOKENIZER)
    assert may is not None
    assert end not in may  # reasoning has to be closed
    feed(constraint, "</tool_call>")
    may = allowed(constraint, TOKENIZER)
    assert may is not None
    assert {TOKENIZER.token_bytes(one) for one in may} == {b"y", b"n", b"\n"}
    feed(constraint, "\nyes")
    assert allowed(constraint, TOKENIZER) == sorted(TOKENIZER.end_ids)


def test_an_answer_may_reason_first_or_match_at_once() -> None:
    at_once = begin(TOKENS, is_thinking=False, choices=("yes",))
    opening = ids("<tool_call>")[0]
    may = allowed(at_once, TOKENIZER)
    assert may is not None
    assert opening in may
    first = at_once.fork()
    feed(at_once, "yes")
    assert allowed(at_once, TOKENIZER) == sorted(TOKENIZER.end_ids)
    feed(first, "<tool_call>hm</tool_call>yes")
    assert allowed(first, TOKENIZER) == sorted(TOKENIZER.end_ids)


def test_no_token_ends_reasoning_and_begins_an_answer_that_must_match() -> None:
    # "hello" is a token; after "]" it would end the sign and say "llo".
    constraint = begin(SPELT, choices=("no",))
    feed(constraint, "x")
    hello = ids("hello")
    assert len(hello) == 1
    may = allowed(constraint, TOKENIZER)
    assert may is not None
    assert hello[0] in may
    feed(constraint, "]")
    may = allowed(constraint, TOKENIZER)
    assert may is not None
    assert hello[0] not in may
    feed(constraint, "he")
    assert constraint.states[-1].stage is Stage.GAP


def test_random_walks_reason_within_budget_and_then_match() -> None:
    draw = random.Random(2)  # noqa: S311
    constraint = begin(TOKENS, max_tokens=3, choices=("yes", "no"))
    for _ in range(30):
        walked, has_ended = spoken(constraint, TOKENIZER, draw, most=60)
        assert has_ended
        text = b"".join(map(TOKENIZER.token_bytes, walked))
        assert walked.index(ids("</tool_call>")[0]) <= 3
        assert text.split(b"</tool_call>", 1)[1].strip() in (b"yes", b"no")


def test_going_back_undoes_reasoning_and_grammar_alike() -> None:
    constraint = begin(SPELT, max_tokens=4, choices=("abc", "abd"))
    masks = [allowed(constraint, TOKENIZER)]
    sequence = [*ids("x"), *ids("]"), *ids("he"), *ids("\n"), *ids("ab"), *ids("d")]
    for token_id in sequence:
        constraint.advance(token_id)
        masks.append(allowed(constraint, TOKENIZER))
    for num_back in range(1, len(sequence) + 1):
        copy = constraint.fork()
        copy.rollback(num_back)
        assert allowed(copy, TOKENIZER) == masks[-1 - num_back]
        for token_id in sequence[len(sequence) - num_back :]:
            copy.advance(token_id)
        assert allowed(copy, TOKENIZER) == masks[-1]

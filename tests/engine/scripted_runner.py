"""A runner without a model: the next token is a pure function of the ids before it.

It checks what a kernel would need: positions without holes, and slots that nobody else holds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from insitu.engine.block_pool import BlockPool
from insitu.engine.engine import Engine
from insitu.engine.scheduler import StepBudget
from insitu.engine.sequence import Prompt, SampledToken
from insitu.engine.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Output, Scheduled

VOCAB_SIZE = 1000
BLOCK_SIZE = 4


def next_token(token_ids: Items[int], seed: int) -> int:
    """What the scripted model says after these ids."""
    return hash((tuple(token_ids), seed)) % VOCAB_SIZE


class ScriptedRunner:
    """Keeps a cache of ids by slot, and reads the past back from there."""

    def __init__(self) -> None:
        self.cache: dict[int, int] = {}
        self.num_steps = 0
        self.max_tokens_seen = 0
        self.is_closed = False
        self.fail_next: Exception | None = None
        self.throws: set[str] = set()
        self.not_finite: set[str] = set()
        self.wiped: set[int] = set()
        self.num_wiped = 0
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()

    def run(self, scheduled: Items[Scheduled]) -> list[SampledToken | Exception | None]:
        """Store every token in its slot, then choose from what the slots hold."""
        if not self.gate.is_set():
            self.at_gate.set()
        assert self.gate.wait(10)
        self.num_steps += 1
        self.max_tokens_seen = max(self.max_tokens_seen, sum(one.num_tokens for one in scheduled))
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if any(one.sequence.prompt.request_id in self.throws for one in scheduled):
            raise ValueError("slot_mapping")
        written = [block for one in scheduled for block in written_blocks(one)]
        assert len(written) == len(set(written)), "a block is written by two"
        read = {block for one in scheduled for block in one.sequence.block_ids} - set(written)
        assert not read & self.wiped, "a wiped block is read"
        self.wiped -= set(written)
        return [self._run_one(one) for one in scheduled]

    def _run_one(self, item: Scheduled) -> SampledToken | Exception | None:
        sequence = item.sequence
        end = sequence.num_computed_tokens + item.num_tokens
        for position in range(sequence.num_computed_tokens, end):
            self.cache[slot_of(sequence.block_ids, position)] = sequence.token_ids[position]
        if not item.has_logits:
            return None
        assert end == sequence.num_tokens
        if sequence.prompt.request_id in self.not_finite:
            return RuntimeError("not finite")
        past = [self.cache[slot_of(sequence.block_ids, position)] for position in range(end)]
        return SampledToken(next_token(past, sequence.prompt.seed + sequence.choice))

    def copy_block(self, source: int, target: int) -> None:
        """Copy what the slots of a block hold."""
        assert source not in self.wiped, "a wiped block is copied"
        for offset in range(BLOCK_SIZE):
            token_id = self.cache.get(source * BLOCK_SIZE + offset, 0)
            self.cache[target * BLOCK_SIZE + offset] = token_id
        self.wiped.discard(target)

    def wipe_block(self, block: int) -> None:
        """Make the slots of a block useless."""
        for offset in range(BLOCK_SIZE):
            self.cache.pop(block * BLOCK_SIZE + offset, None)
        self.wiped.add(block)
        self.num_wiped += 1

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


def slot_of(block_ids: Items[int], position: int) -> int:
    """Where a position's token lies."""
    return block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def written_blocks(item: Scheduled) -> set[int]:
    """The blocks that a share writes to."""
    first = item.sequence.num_computed_tokens
    positions = range(first, first + item.num_tokens)
    return {item.sequence.block_ids[position // BLOCK_SIZE] for position in positions}


def make_engine(
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    tokens: int = 16,
    tokens_alone: int = 32,
    logit_rows: int | None = None,
) -> tuple[Engine, ScriptedRunner]:
    """An engine over the scripted model."""
    runner = ScriptedRunner()
    budget = StepBudget(max_num_seqs, tokens, tokens_alone, logit_rows or max_num_seqs)
    return Engine(runner, BlockPool(num_blocks, BLOCK_SIZE), budget, Stats()), runner


def make_prompt(name: str, num_tokens: int = 5, max_tokens: int = 6, seed: int = 0) -> Prompt:
    """A prompt whose ids follow from its name."""
    ids = tuple((hash(name) + 7 * index) % VOCAB_SIZE for index in range(num_tokens))
    return Prompt(name, ids, max_tokens, seed)


def expected_tokens(prompt: Prompt, choice: int = 0) -> list[int]:
    """What the scripted model gives this prompt alone."""
    token_ids = list(prompt.token_ids)
    for _ in range(prompt.max_tokens):
        token_ids.append(next_token(token_ids, prompt.seed + choice))
        if token_ids[-1] in prompt.stop_ids:
            break
    return token_ids[len(prompt.token_ids) :]


def run_all(engine: Engine, max_steps: int = 10_000) -> dict[str, list[Output]]:
    """Step until nothing is left."""
    outputs: dict[str, list[Output]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine does not come to an end")


def tokens_of(outputs: Items[Output], choice: int = 0) -> list[int]:
    """The sampled ids of a choice."""
    return [
        output.token.token_id
        for output in outputs
        if output.token is not None and output.choice == choice
    ]

"""A runner without a model: the next token is a pure function of the ids before it.

It checks what a kernel would need: positions without holes, and slots that nobody else holds.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.engine.block_pool import BlockPool
from insitu.engine.engine import Engine
from insitu.engine.runner import Underway
from insitu.engine.scheduler import StepBudget
from insitu.engine.sequence import Embedded, Prompt, SampledToken
from insitu.engine.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Made, Output, Scheduled, Sequence

VOCAB_SIZE = 1000
BLOCK_SIZE = 4


def next_token(token_ids: Items[int], seed: int) -> int:
    """What the scripted model says after these ids."""
    return hash((tuple(token_ids), seed)) % VOCAB_SIZE


def vector_of(token_ids: Items[int]) -> bytes:
    """What the scripted model makes of these ids."""
    return struct.pack("q", hash(tuple(token_ids)))


@dataclass(frozen=True)
class Share:
    """What arrays would hold of a share; ``row`` of the step before chooses its last token."""

    item: Scheduled
    name: str
    seed: int
    token_ids: list[int]
    block_ids: list[int]
    row: int | None

    @classmethod
    def of(cls, item: Scheduled, sampling: list[Sequence]) -> Share:
        """A share that follows a step in which these sequences sample, in this order."""
        sequence, prompt = item.sequence, item.sequence.prompt
        row = sampling.index(sequence) if item.end > sequence.num_tokens else None
        seed = prompt.seed + sequence.choice
        ids, blocks = list(sequence.token_ids), sequence.block_ids[: -(-item.end // BLOCK_SIZE)]
        return cls(item, prompt.request_id, seed, ids, blocks, row)

    def written_blocks(self) -> set[int]:
        """The blocks that it writes to."""
        positions = range(self.item.first, self.item.end)
        return {self.block_ids[position // BLOCK_SIZE] for position in positions}


class ScriptedRunner:
    """Keeps a cache of ids by slot, and reads the past back from there."""

    def __init__(self) -> None:
        self.cache: dict[int, int] = {}
        self.queue: deque[Underway] = deque()
        self.ended: dict[int, list[Made | Exception | None] | Exception] = {}
        self.chosen: list[Made | Exception | None] = []  # by the last step
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

    def start(self, scheduled: Items[Scheduled], before: Items[Scheduled] = ()) -> Underway:
        """Take everything down as it stands; it runs when somebody waits for its end."""
        sampling = [item.sequence for item in before if item.has_logits]
        underway = Underway(scheduled, [Share.of(item, sampling) for item in scheduled])
        self.queue.append(underway)
        return underway

    def finish(self, underway: Underway) -> list[Made | Exception | None]:
        """Run what was started until this one has ended."""
        while id(underway) not in self.ended:
            self._run_next()
        result = self.ended.pop(id(underway))
        if isinstance(result, Exception):
            raise result
        return result

    def drop(self, underway: Underway) -> None:
        """Run what was started until this one has ended."""
        while id(underway) not in self.ended:
            self._run_next()
        del self.ended[id(underway)]

    def _run_all(self) -> None:
        while self.queue:
            self._run_next()

    def _run_next(self) -> None:
        underway = self.queue.popleft()
        try:
            chosen = self._run(underway.handle)
        except Exception as error:
            self.chosen = []
            self.ended[id(underway)] = error
        else:
            self.chosen = [
                one
                for one, share in zip(chosen, underway.handle, strict=True)
                if share.item.has_logits
            ]
            self.ended[id(underway)] = chosen

    def _run(self, shares: list[Share]) -> list[Made | Exception | None]:
        """Store every token in its slot, then choose from what the slots hold."""
        if not self.gate.is_set():
            self.at_gate.set()
        assert self.gate.wait(10)
        self.num_steps += 1
        self.max_tokens_seen = max(self.max_tokens_seen, sum(one.item.num_tokens for one in shares))
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if any(one.name in self.throws for one in shares):
            raise ValueError("slot_mapping")
        written = [block for one in shares for block in one.written_blocks()]
        assert len(written) == len(set(written)), "a block is written by two"
        read = {block for one in shares for block in one.block_ids} - set(written)
        assert not read & self.wiped, "a wiped block is read"
        self.wiped -= set(written)
        return [self._run_one(one) for one in shares]

    def _run_one(self, share: Share) -> Made | Exception | None:
        item, token_ids = share.item, share.token_ids
        if share.row is not None:
            token = self.chosen[share.row]
            token_ids = [*token_ids, token.token_id if isinstance(token, SampledToken) else 0]
        for position in range(item.first, item.end):
            self.cache[slot_of(share.block_ids, position)] = token_ids[position]
        if not item.is_made:
            return None
        assert item.end == len(token_ids)
        if share.name in self.not_finite:
            return RuntimeError("not finite")
        past = [self.cache[slot_of(share.block_ids, position)] for position in range(item.end)]
        if item.is_pooled:
            return Embedded(vector_of(past))
        return SampledToken(next_token(past, share.seed))

    def copy_block(self, source: int, target: int) -> None:
        """Copy what the slots of a block hold."""
        self._run_all()
        assert source not in self.wiped, "a wiped block is copied"
        for offset in range(BLOCK_SIZE):
            token_id = self.cache.get(source * BLOCK_SIZE + offset, 0)
            self.cache[target * BLOCK_SIZE + offset] = token_id
        self.wiped.discard(target)

    def wipe_block(self, block: int) -> None:
        """Make the slots of a block useless."""
        self._run_all()
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


def make_engine(
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    tokens: int = 16,
    tokens_alone: int = 32,
    logit_rows: int | None = None,
    *,
    runs_ahead: bool = True,
) -> tuple[Engine, ScriptedRunner]:
    """An engine over the scripted model."""
    runner = ScriptedRunner()
    budget = StepBudget(max_num_seqs, tokens, tokens_alone, logit_rows or max_num_seqs)
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    return Engine(runner, pool, budget, Stats(), runs_ahead=runs_ahead), runner


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

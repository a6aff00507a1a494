"""Which steps are measured: asked for, sorted, and kept where length and memory allow.

Not here: measuring. Always true: a case that is left out is listed with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 1024, 4096)
PREFILLS = (128, 512, 2048)


@dataclass(frozen=True, slots=True)
class Case:
    """Decode: ``batch`` sequences of ``context`` tokens gain one each. Prefill: one sequence of
    ``context`` tokens gains ``tokens``."""

    phase: str  # "decode" or "prefill"
    batch: int
    tokens: int
    context: int

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence once the step is done: a decoding one attends to ``context``."""
        return self.context + self.tokens if self.phase == "prefill" else self.context

    def num_blocks(self, block_size: int) -> int:
        """KV blocks of all its sequences."""
        return self.batch * -(-self.seq_len // block_size)

    def __str__(self) -> str:
        """As a person reads it."""
        what = f"batch {self.batch}" if self.phase == "decode" else f"prefill {self.tokens}"
        return f"{what} at context {self.context}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A case that was not measured."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS
    prefills: tuple[int, ...] = PREFILLS

    def cases(self) -> list[Case]:
        """Decode first, then prefill: from an empty cache, then at every context."""
        contexts = sorted(set(self.contexts))
        decode = [Case("decode", b, 1, c) for c in contexts for b in sorted(set(self.batches))]
        starts = [0, *contexts]
        prefill = [Case("prefill", 1, t, c) for t in sorted(set(self.prefills)) for c in starts]
        return [*decode, *prefill]


@dataclass(frozen=True, slots=True)
class Room:
    """What cases must fit: the model's length, and KV blocks that memory has for them."""

    max_model_len: int
    max_num_blocks: int
    block_size: int

    def choose(self, cases: list[Case]) -> tuple[list[Case], list[Skipped]]:
        """Those that fit, and those that do not."""
        chosen, skipped = [], []
        for case in cases:
            needed = case.num_blocks(self.block_size)
            if case.seq_len > self.max_model_len:
                reason = f"the model holds {self.max_model_len} tokens, not {case.seq_len}"
                skipped.append(Skipped(case, reason))
            elif needed > self.max_num_blocks:
                reason = (
                    f"it takes {needed * self.block_size} tokens of KV, and memory has room for "
                    f"{self.max_num_blocks * self.block_size}"
                )
                skipped.append(Skipped(case, reason))
            else:
                chosen.append(case)
        return chosen, skipped

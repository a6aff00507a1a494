"""The memory plan: every byte a server will hold, computed before anything is loaded.

*At start* is what is held once the model is ready; *at most* is what may be held when every KV
block and every connection is in use. Settings that were left open are decided here, and said.

Not here: reading cgroups (``machine``), packing or allocating (``kernels``).

Always true: the plan's settings fit the limit, or ``PlanError`` names the numbers and the flag.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from insitu.engine.machine import Memory, has_cpu_quota, memory_limit, num_usable_cpus
from insitu.engine.plan_weights import WeightGroup, packed_types, weight_groups
from insitu.kernels.native import Limits, NativeSizes, native_sizes, selected_isa
from insitu.kernels.passes import lower
from insitu.kernels.sampling import num_mask_words
from insitu.models.kv_cache import kv_layout
from insitu.models.sampling_defaults import SamplingDefaults
from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.kernels.kv_layout import KVDtype, KVLayout
    from insitu.models.load import LoadedModel

# Tokens of one step: bounded while others decode, so that the gap between their tokens is.
TOKENS_WHILE_DECODING = 64
TOKENS_ALONE = 512
# The KV cache that is asked for when nothing is: this many tokens, or one whole sequence.
DEFAULT_KV_TOKENS = 16 * 2048
# Python and its libraries (measured with smollm2-135m: RssAnon of a server less everything else in
# this plan), and what each token takes whose bytes were once asked for.
PYTHON_BYTES = 42 * 2**20
SPELLED_BYTES_PER_TOKEN = 150
# A vocabulary as grammars need it, made when the first one is asked for (measured: 290 to 360).
GRAMMAR_BYTES_PER_TOKEN = 360
# Buffers of one connection: a small request body being read, a stream's queue.
CONNECTION_BYTES = 64 * 2**10
CONNECTIONS_PER_SEQUENCE = 4


class PlanError(Exception):
    """Settings that cannot be met here; the message has the numbers and the flag to change."""


# What a plan always says of sampling; the rest only where the model's file has a value.
_SHOWN_SAMPLING = ("temperature", "top_k", "top_p", "min_p")

BLOCK_SIZES = (16, 32)
# The most of each number that may be asked for.
_MOST = {
    "threads": 1024,
    "kv_cache_bytes": 2**62,
    "max_model_len": 2**31 - 1,
    "max_num_seqs": 2**16,
    "max_num_batched_tokens": 2**16,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; None is left to the plan."""

    threads: int | None = None
    pin: bool = False
    kv_cache_bytes: int | None = None
    kv_cache_dtype: KVDtype = "f16"
    block_size: int = 32
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int | None = None
    sampling_defaults: Literal["model", "none"] = "model"
    prefix_caching: Literal["on", "off"] = "on"
    body_bytes: int = 0  # of large request bodies held at once, where there are any

    def __post_init__(self) -> None:
        """Refuse numbers that are none, or that mean nothing, by the flag's name."""
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is None and name != "max_num_seqs":
                continue
            if type(value) is not int or not 1 <= value <= most:
                flag = "--" + name.replace("_", "-")
                raise PlanError(f"{flag} must be a whole number from 1 to {most}, not {value!r}.")
        if type(self.block_size) is not int or self.block_size not in BLOCK_SIZES:
            raise PlanError(f"--block-size must be 16 or 32, not {self.block_size!r}.")


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One line of the plan."""

    name: str
    at_start_bytes: int
    at_most_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings as decided, and the bytes they take."""

    architecture: str
    vocab_size: int
    isa: str
    threads: int
    pin: bool
    spin: bool  # threads wait busily for some microseconds; never under a CPU quota
    block_size: int
    num_blocks: int
    kv_cache_bytes: int
    kv_cache_dtype: KVDtype
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_batched_tokens_alone: int
    max_num_logit_rows: int
    weights: tuple[WeightGroup, ...]
    items: tuple[PlanItem, ...]
    limit: Memory
    numeric_settings: Mapping[str, str]
    sampling_defaults: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV that fit."""
        return self.num_blocks * self.block_size

    @property
    def at_start_bytes(self) -> int:
        """Held once the model is ready."""
        return sum(item.at_start_bytes for item in self.items)

    @property
    def at_most_bytes(self) -> int:
        """Never exceeded."""
        return sum(item.at_most_bytes for item in self.items)

    @property
    def limits(self) -> Limits:
        """The plan as the kernels take it."""
        return Limits(
            max_num_tokens=max(self.max_num_batched_tokens, self.max_num_batched_tokens_alone),
            max_num_logit_rows=self.max_num_logit_rows,
            max_num_seqs=self.max_num_seqs,
            num_blocks=self.num_blocks,
            max_blocks_per_seq=-(-self.max_model_len // self.block_size),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "kv_tokens": self.kv_tokens,
            "at_start_bytes": self.at_start_bytes,
            "at_most_bytes": self.at_most_bytes,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """The table's lines: name, at start, at most."""
        lines = [
            (item.name, size(item.at_start_bytes), size(item.at_most_bytes)) for item in self.items
        ]
        return [*lines, ("total", size(self.at_start_bytes), size(self.at_most_bytes))]

    def summary(self) -> str:
        """One line."""
        return (
            f"{size(self.at_start_bytes)} at start, at most {size(self.at_most_bytes)} of "
            f"{size(self.limit.limit_bytes)}; KV for {self.kv_tokens:,} tokens; "
            f"max_model_len {self.max_model_len:,}; {self.threads} threads"
        )

    def describe(self) -> str:
        """The whole plan as text."""
        lines = [f"{'':<26}{'at start':>12}{'at most':>12}"]
        lines += [f"{name:<26}{start:>12}{most:>12}" for name, start, most in self.rows()]
        lines += ["", f"limit: {size(self.limit.limit_bytes)} ({self.limit.source})"]
        blocks = f"{self.num_blocks:,} blocks of {self.block_size}"
        lines += [
            f"KV: {self.kv_tokens:,} tokens in {blocks}",
            "",
            "weights, in memory and in the file:",
        ]
        for group in self.weights:
            types = f"{group.stored}, runs in {group.runs_in}"
            sizes = f"{size(group.size_bytes):>12} of {size(group.stored_bytes)}"
            lines.append(f"  {types:<28}{sizes:<28}  {group.name}")
        lines += ["", "settings that can change a bit (numeric):"]
        lines += [f"  {name} = {value}" for name, value in self.numeric_settings.items()]
        lines += ["", "sampling, where a request leaves a field out:"]
        for name, own in SamplingParams.DEFAULTS.items():
            if name in self.sampling_defaults:
                lines.append(f"  {name} = {self.sampling_defaults[name]:g} (the model's)")
            elif name in _SHOWN_SAMPLING:
                lines.append(f"  {name} = {own:g} (insitu's)")
        lines += ["", "other settings:", f"  instruction set = {self.isa} (INSITU_ISA)"]
        for name in ("threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            lines.append(f"  {name} = {getattr(self, name):,}")
        lines.append(f"  max_num_batched_tokens alone = {self.max_num_batched_tokens_alone:,}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def size(num_bytes: int) -> str:
    """Bytes as people read them."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes} B"


def make_plan(
    model: LoadedModel,
    wanted: Wanted,
    limit: Memory | None = None,
    defaults: SamplingDefaults | None = None,
    vocabulary_bytes: int = 0,
) -> Plan:
    """Decide every setting that was left open, and count the bytes."""
    limit = memory_limit() if limit is None else limit
    planner = _Planner(model, wanted, limit, vocabulary_bytes)
    return planner.plan(defaults or SamplingDefaults())


class _Planner:
    """Decides in order: fixed costs, then the KV pool, then what a sequence may be long."""

    def __init__(
        self, model: LoadedModel, wanted: Wanted, limit: Memory, vocabulary_bytes: int
    ) -> None:
        self.model, self.wanted, self.limit = model, wanted, limit
        self.vocabulary_bytes = vocabulary_bytes
        self.program = lower(model.program)
        self.kv: KVLayout = kv_layout(
            model.spec, block_size=wanted.block_size, dtype=wanted.kv_cache_dtype
        )
        self.notes: list[str] = []
        self.threads = wanted.threads or num_usable_cpus()
        self.tokens = wanted.max_num_batched_tokens or max(
            TOKENS_WHILE_DECODING, wanted.max_num_seqs
        )
        self.tokens_alone = wanted.max_num_batched_tokens or max(TOKENS_ALONE, wanted.max_num_seqs)
        self.max_num_seqs = min(wanted.max_num_seqs, self.tokens)
        if self.max_num_seqs < wanted.max_num_seqs:
            self._note(
                f"max_num_seqs is {self.max_num_seqs}, not {wanted.max_num_seqs}: a step of "
                f"--max-num-batched-tokens {self.tokens} moves no more sequences."
            )

    def plan(self, defaults: SamplingDefaults) -> Plan:
        """The whole plan."""
        file_len = self.model.spec.max_model_len
        asked_len = self.wanted.max_model_len
        if asked_len is not None and asked_len > file_len:
            raise PlanError(
                f"--max-model-len {asked_len} is more than the model's own {file_len} tokens."
            )
        fixed = self._sizes(num_blocks=1, max_model_len=asked_len or file_len)
        num_blocks = self._num_blocks(self._fixed_bytes(fixed), asked_len or file_len)
        pool_tokens = num_blocks * self.kv.block_size
        if asked_len is not None and asked_len > pool_tokens:
            pool_bytes = size(num_blocks * self.kv.bytes_per_block)
            raise PlanError(
                f"--max-model-len {asked_len} does not fit: the KV cache holds {pool_tokens} "
                f"tokens ({pool_bytes}, {self.kv.bytes_per_token} bytes a token). Give a larger "
                "--kv-cache-bytes or a smaller --max-model-len."
            )
        max_model_len = asked_len or min(file_len, pool_tokens)
        if max_model_len < file_len and asked_len is None:
            self._note(
                f"max_model_len is {max_model_len}, not the model's {file_len}: that is what the "
                "KV cache holds (--kv-cache-bytes)."
            )
        sizes = self._sizes(num_blocks=num_blocks, max_model_len=max_model_len)
        return self._decided(sizes, num_blocks, max_model_len, defaults)

    def _num_blocks(self, fixed_bytes: int, max_model_len: int) -> int:
        left_bytes = self.limit.limit_bytes - fixed_bytes
        asked_bytes = self.wanted.kv_cache_bytes
        block_bytes = self.kv.bytes_per_block
        where = f"{size(self.limit.limit_bytes)} ({self.limit.source})"
        if asked_bytes is not None:
            if asked_bytes < block_bytes:
                raise PlanError(
                    f"--kv-cache-bytes {asked_bytes} is less than one KV block of {block_bytes}."
                )
            if asked_bytes > left_bytes:
                raise PlanError(
                    f"--kv-cache-bytes {asked_bytes} does not fit: weights, activations and Python "
                    f"take {size(fixed_bytes)} of {where}, which leaves {max(0, left_bytes)} bytes."
                )
            return asked_bytes // block_bytes
        if left_bytes < 2 * block_bytes:
            raise PlanError(
                f"The model does not fit: weights, activations and Python take {size(fixed_bytes)} "
                f"of {where}. Raise the limit, lower --max-num-batched-tokens, or use a smaller "
                "model."
            )
        tokens = max(max_model_len, DEFAULT_KV_TOKENS)
        least = -(-tokens // self.kv.block_size) * block_bytes
        if least > left_bytes // 2:
            self._note(
                f"the KV cache is half of what is left of {where}, "
                f"less than the {size(least)} it would take (--kv-cache-bytes)."
            )
        return min(least, left_bytes // 2) // block_bytes

    def _sizes(self, num_blocks: int, max_model_len: int) -> NativeSizes:
        limits = Limits(
            max_num_tokens=max(self.tokens, self.tokens_alone),
            max_num_logit_rows=self.max_num_seqs,
            max_num_seqs=self.max_num_seqs,
            num_blocks=num_blocks,
            max_blocks_per_seq=-(-max_model_len // self.kv.block_size),
        )
        return native_sizes(self.program, self.kv, limits, self.threads)

    def _fixed_bytes(self, sizes: NativeSizes) -> int:
        return sum(item.at_most_bytes for item in self._items(sizes) if item.name != "KV blocks")

    def _mask_bytes(self) -> int:
        return 4 * num_mask_words(self.model.spec.vocab_size) * self.max_num_seqs

    def _items(self, sizes: NativeSizes) -> tuple[PlanItem, ...]:
        vocab_size = self.model.spec.vocab_size
        spelled_bytes = vocab_size * SPELLED_BYTES_PER_TOKEN if self.vocabulary_bytes else 0
        connections = self.max_num_seqs * CONNECTIONS_PER_SEQUENCE * CONNECTION_BYTES
        activation_bytes = sizes.arena_bytes - sizes.logits_bytes
        return (
            PlanItem("weights", sizes.packed_bytes, sizes.packed_bytes),
            # Committed on first use.
            PlanItem("KV blocks", 0, sizes.kv_bytes),
            PlanItem("activations", 0, activation_bytes),
            PlanItem("logits", 0, sizes.logits_bytes),
            PlanItem("token masks", 0, self._mask_bytes()),
            PlanItem("scratch", 0, sizes.scratch_bytes),
            PlanItem("vocabulary", self.vocabulary_bytes, self.vocabulary_bytes + spelled_bytes),
            PlanItem("grammars", 0, vocab_size * GRAMMAR_BYTES_PER_TOKEN),
            PlanItem("Python", PYTHON_BYTES, PYTHON_BYTES),
            PlanItem("connections", 0, connections),
            PlanItem("large bodies", 0, self.wanted.body_bytes),
        )

    def _decided(
        self, sizes: NativeSizes, num_blocks: int, max_model_len: int, defaults: SamplingDefaults
    ) -> Plan:
        ropes = self.model.spec.ropes
        numeric = {
            "kv_cache_dtype": self.kv.dtype,
            "packed_types": packed_types(self.model),
            "rope_theta": ", ".join(repr(rope.theta) for rope in ropes) or "none",
            "rope_scaling": ", ".join(rope.scaling for rope in ropes) or "none",
            "sampling_defaults": ", ".join(f"{k} {v:g}" for k, v in defaults.values.items())
            or "none",
        }
        return Plan(
            architecture=self.model.architecture,
            vocab_size=self.model.spec.vocab_size,
            isa=selected_isa(),
            threads=self.threads,
            pin=self.wanted.pin,
            spin=not has_cpu_quota(),
            block_size=self.kv.block_size,
            num_blocks=num_blocks,
            kv_cache_bytes=sizes.kv_bytes,
            kv_cache_dtype=self.kv.dtype,
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.tokens,
            max_num_batched_tokens_alone=self.tokens_alone,
            max_num_logit_rows=self.max_num_seqs,
            weights=weight_groups(self.model),
            items=self._items(sizes),
            limit=self.limit,
            numeric_settings=numeric,
            sampling_defaults=dict(defaults.values),
            notes=(*self.notes, *defaults.notes),
        )

    def _note(self, text: str) -> None:
        self.notes.append(text)

"""One choice of a request while the engine makes it: its ids, its blocks, how far it has come.

Not here: text, arrays, or who runs next (``scheduler``).

Always true: ``num_computed_tokens <= num_started_tokens <= num_tokens + num_coming_tokens``; ids
once appended never change, whatever happens to the sequence's blocks; ``block_ids`` covers every
token that was started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from insitu.engine.shaping import NO_SHAPING, Shapes, Shaping
from insitu.sampling_params import Order

if TYPE_CHECKING:
    from insitu.engine.prefix import HashChain
    from insitu.types import FinishReason, TokenConstraint


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is asked to continue, everything resolved.

    ``num_choices`` continuations are made, each a sequence with its own noise. ``stop_ids`` end a
    choice when sampled: they are counted, and the caller decides whether they show.
    ``num_logprobs`` None asks for none; 0 for the sampled token's alone; with
    ``has_processed_logprobs`` they are of what a token is chosen among, else the model's own. Each
    choice has its own copy of the ``constraint``, which must be in its first state. Blocks are
    shared with prompts of the same ``cache_salt``, with None by nobody; those of the output only
    where ``shares_output`` says that the caller will see all of it. A lower ``priority`` runs
    earlier. A prompt that ``is_embedded`` is computed to its end and not continued: what comes of
    it is the last token's pooled row; its ``max_tokens`` is 1.
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    is_embedded: bool = False
    num_choices: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    order: Order = Order.OWN
    shaping: Shaping = NO_SHAPING
    constraint: TokenConstraint | None = None
    stop_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None
    has_processed_logprobs: bool = False
    num_prompt_logprobs: int | None = None
    cache_salt: bytes | None = None
    shares_output: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token; ``top`` are (id, log-probability) of the likeliest, most likely first.

    ``forced`` must follow, whatever the model would say.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a prompt was made into: float32 numbers of a unit vector, in this machine's order."""

    vector: bytes


Made = SampledToken | Embedded


@dataclass(frozen=True, slots=True)
class Output:
    """What a choice gained in a step, or how it ended: ``finish_reason`` or ``error`` is last.

    ``num_cached_tokens`` of the prompt were found computed when the choice first ran. With a first
    choice's first token come the ``prompt_tokens`` from the second on, where they were asked for.
    A prompt that is embedded gives one output, with its ``vector``.
    """

    request_id: str
    token: SampledToken | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    choice: int = 0
    num_cached_tokens: int = 0
    prompt_tokens: tuple[SampledToken, ...] = ()
    vector: bytes | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice's life in the engine; seen by nobody else.

    The choices of one prompt after the first have that one as their ``leader``, and take over what
    it computed. ``hashes`` None: its blocks are nobody else's. ``constraint`` has taken in every
    sampled token, and keeps its state while the sequence waits; so does the ``shaper``.
    """

    prompt: Prompt
    choice: int = 0
    leader: Sequence | None = None
    hashes: HashChain | None = None
    arrival: int = 0
    submitted_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    # Keys and values in the cache; those and the ones that a step under way puts there.
    num_computed_tokens: int = 0
    num_started_tokens: int = 0
    # To be appended by a step under way.
    num_coming_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_published_blocks: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    num_overtaken: int = 0
    has_ended: bool = False
    # Nobody takes its tokens: it waits, without blocks, until somebody does.
    is_paused: bool = False
    is_forgotten: bool = False
    constraint: TokenConstraint | None = None
    shaper: Shapes | None = None
    # From the second on, as far as their log-probabilities are known.
    prompt_tokens: list[SampledToken] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the prompt's ids, and with a constraint of its own."""
        self.token_ids = list(self.prompt.token_ids)
        if self.prompt.constraint is not None:
            self.constraint = self.prompt.constraint.fork()

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens."""
        return len(self.token_ids) - len(self.prompt.token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that no step has started: what there is to catch up with."""
        num_tokens = len(self.token_ids) + self.num_coming_tokens
        return min(num_tokens, self.max_num_tokens) - self.num_started_tokens

    @property
    def is_past_prompt(self) -> bool:
        """Whether it is being continued, a token a step."""
        has_begun = self.num_output_tokens > 0 or self.num_coming_tokens > 0
        return has_begun and not self.prompt.is_embedded

    @property
    def looks_back(self) -> bool:
        """Whether how a token is chosen depends on the ids before it, but for the model.

        While such a sequence runs, no step is given ahead.
        """
        return self.constraint is not None or self.prompt.shaping.looks_back

    @property
    def num_untold_tokens(self) -> int:
        """Of the prompt: tokens whose log-probabilities were asked for and are not known."""
        if self.prompt.num_prompt_logprobs is None or self.choice:
            return 0
        return len(self.prompt.token_ids) - 1 - len(self.prompt_tokens)

    @property
    def has_computed_prompt(self) -> bool:
        """Whether the keys and values of the whole prompt are in its blocks."""
        return self.num_computed_tokens >= len(self.prompt.token_ids)

    @property
    def max_num_tokens(self) -> int:
        """The most tokens it will ever compute: the last one sampled is never fed back."""
        return len(self.prompt.token_ids) + self.prompt.max_tokens - 1


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence's share of one step: ``num_tokens`` tokens from the ``first`` on.

    ``is_made``: they are its last ones, so something is made after them: a token, or the vector
    of a prompt that is embedded. After its tokens from ``first_told`` on, the log-probability of
    the prompt's next one is told.
    """

    sequence: Sequence
    first: int
    num_tokens: int
    is_made: bool
    first_told: int | None = None

    @property
    def has_logits(self) -> bool:
        """Whether a token is sampled after them."""
        return self.is_made and not self.sequence.prompt.is_embedded

    @property
    def is_pooled(self) -> bool:
        """Whether a vector is made of them."""
        return self.is_made and self.sequence.prompt.is_embedded

    @property
    def looks_back(self) -> bool:
        """Whether how its token is chosen depends on ids that must be known."""
        return self.has_logits and self.sequence.looks_back

    @property
    def end(self) -> int:
        """The position after its last token, which a token sampled after it takes."""
        return self.first + self.num_tokens

    @property
    def told(self) -> range:
        """The positions of tokens after which the prompt's next one is told of."""
        if self.first_told is None:
            return range(0)
        return range(self.first_told, min(self.end, len(self.sequence.prompt.token_ids) - 1))

    @property
    def num_logit_rows(self) -> int:
        """Rows of logits it takes."""
        return len(self.told) + self.has_logits

    @property
    def num_rows(self) -> int:
        """The same with its pooled row: both have one budget."""
        return len(self.told) + self.is_made

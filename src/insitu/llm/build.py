"""From a model file to a ``TextGenerator``: open, plan, load, start.

Not here: finding or fetching files (``weights/locate``, ``catalog``), flags (``settings``).

Always true: nothing large is allocated before the plan said that it fits; the file is mapped only
while its weights are packed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from insitu.codec.chat import load_chat_template
from insitu.codec.tokenizer import load_tokenizer
from insitu.codec.vocabulary_bytes import vocabulary_bytes
from insitu.engine.loop import STEP_TIMEOUT_S
from insitu.engine.plan import Plan, Wanted, make_plan
from insitu.engine.start import start_engine
from insitu.llm.guiding import DEFAULT_ANSWERING, Answering, guiding_of
from insitu.llm.preparing import Preparer
from insitu.llm.text_generator import TextGenerator
from insitu.models.load import LoadedModel, load_model
from insitu.models.sampling_defaults import SamplingDefaults, read_sampling_defaults
from insitu.types import ModelCard
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.codec.tokenizer import Tokenizer
    from insitu.weights.source import TensorSource

MAX_NUM_WAITING = 256


@dataclass(frozen=True, slots=True)
class Planned:
    """A file's plan, and which file it is."""

    plan: Plan
    digest: str
    size_bytes: int


def plan(path: Path, **settings: Any) -> Planned:
    """What ``build`` with the same settings would take; nothing is loaded."""
    wanted = Wanted(**settings)
    source = open_source(path)
    try:
        model = load_model(source, wanted.max_model_len)
        made = _plan(source, model, wanted)
        return Planned(made, f"sha256:{source.digest()}", source.size_bytes)
    finally:
        source.close()


def build(
    path: Path,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    max_num_waiting: int = MAX_NUM_WAITING,
    step_timeout_s: float = STEP_TIMEOUT_S,
    answering: Answering = DEFAULT_ANSWERING,
    **settings: Any,
) -> TextGenerator:
    """Load a model and start its engine; errors name the file, the field or the setting.

    ``settings`` are fields of ``Wanted``.
    """
    wanted = Wanted(**settings)
    source = open_source(path)
    try:
        model = load_model(source, wanted.max_model_len)
        made = _plan(source, model, wanted)
        tokenizer = load_tokenizer(source)
        template = load_chat_template(source, tokenizer)
        _require_rows(source, tokenizer, model)
        # The digest is made while weights are packed, and only of a file that can be served.
        with ThreadPoolExecutor(1, thread_name_prefix="insitu-load") as workers:
            digest = workers.submit(source.digest)
            loop = start_engine(
                model, made, max_num_waiting=max_num_waiting, step_timeout_s=step_timeout_s
            )
        try:
            names = (name, *aliases)
            card = _card(source, model, made, names, digest.result(), template.is_present)
        except BaseException:
            loop.close()
            raise
    finally:
        source.close()
    preparer = Preparer(
        names=frozenset((*names, "default")),
        tokenizer=tokenizer,
        template=template,
        vocab_size=model.spec.vocab_size,
        max_model_len=made.max_model_len,
        embedding_size=card.embedding_size,
        sampling_defaults=made.sampling_defaults,
        guiding=guiding_of(tokenizer, template, model.spec.vocab_size, answering),
    )
    guiding = preparer.guiding
    card = replace(
        card,
        has_tools=guiding.speech.format is not None,
        has_reasoning=guiding.speech.signs is not None,
        has_guides=guiding.grammars is not None,
    )
    has_prefix_cache = wanted.prefix_caching == "on"
    return TextGenerator(loop, preparer, lambda: card, made, has_prefix_cache=has_prefix_cache)


def _plan(source: TensorSource, model: LoadedModel, wanted: Wanted) -> Plan:
    defaults = _sampling_defaults(source, wanted)
    return make_plan(model, wanted, defaults=defaults, vocabulary_bytes=vocabulary_bytes(source))


def _sampling_defaults(source: TensorSource, wanted: Wanted) -> SamplingDefaults | None:
    return None if wanted.sampling_defaults == "none" else read_sampling_defaults(source)


def _require_rows(source: TensorSource, tokenizer: Tokenizer, model: LoadedModel) -> None:
    """A GGUF file lists a token for each row of the embedding, padding included."""
    num_tokens, num_rows = tokenizer.vocab_size, model.spec.vocab_size
    if source.format == "gguf" and num_tokens != num_rows:
        message = f"has {num_tokens} tokens, but the embedding has {num_rows} rows"
        raise source.metadata.fault("tokenizer.ggml.tokens", message)


def _card(
    source: TensorSource,
    model: LoadedModel,
    made: Plan,
    names: tuple[str, ...],
    digest: str,
    has_chat_template: bool,
) -> ModelCard:
    return ModelCard(
        name=names[0],
        aliases=names[1:],
        architecture=model.architecture,
        digest=f"sha256:{digest}",
        size_bytes=source.size_bytes,
        created=int(source.path.stat().st_mtime),
        max_model_len=made.max_model_len,
        vocab_size=model.spec.vocab_size,
        numeric_settings=made.numeric_settings,
        has_chat_template=has_chat_template,
        sampling_defaults=made.sampling_defaults,
        embedding_size=model.spec.hidden_size,
    )

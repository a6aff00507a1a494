"""From a name on the command line to a generator: locate, perhaps pull, build.

Not here: what a verb does with it. Always true: only ``chat`` pulls what is not here; the other
verbs name the command that would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.settings.fields import ANSWER_FIELDS, ENGINE_FIELDS

if TYPE_CHECKING:
    from insitu.llm.text_generator import TextGenerator
    from insitu.settings.fields import Settings
    from insitu.weights.locate import Located


def engine_values(settings: Settings) -> dict[str, Any]:
    """The settings that the engine is built with, as values."""
    return {name: getattr(settings, name) for name in ENGINE_FIELDS}


def served_values(settings: Settings) -> dict[str, Any]:
    """The same for a server, whose requests have bodies."""
    from insitu.server.body import NUM_FULL_BODIES

    return {**engine_values(settings), "body_bytes": NUM_FULL_BODIES * settings.max_body_bytes}


def locate(text: str | None, settings: Settings) -> Located:
    """The local file of a path, a pulled model or a catalogue's name; None is the default model."""
    from insitu.catalog.shipped import DEFAULT_MODEL
    from insitu.cli.models import models_dir_of
    from insitu.weights.catalogue import SHIPPED
    from insitu.weights.locate import resolve

    catalogs = (SHIPPED,) if settings.catalog is None else (SHIPPED, settings.catalog)
    text = DEFAULT_MODEL if text is None else text
    return resolve(text, models_dir_of(settings), catalogs)


def locate_or_pull(text: str | None, settings: Settings) -> Located:
    """Bring a model here that is not, with a progress bar; a path is left where it is."""
    from insitu.weights.locate import Located, ModelNotFound

    try:
        return locate(text, settings)
    except ModelNotFound:
        from insitu.catalog.pull import pull
        from insitu.catalog.shipped import DEFAULT_MODEL
        from insitu.cli.bar import Bar
        from insitu.cli.models import models_dir_of

        with Bar() as bar:
            models_dir = models_dir_of(settings)
            source = DEFAULT_MODEL if text is None else text
            pulled = pull(source, models_dir, catalog=settings.catalog, progress=bar)
        return Located(pulled.path, pulled.record.name)


def open_generator(
    located: Located, settings: Settings, *, is_served: bool = False
) -> TextGenerator:
    """Load a model: the generator that answers for it."""
    from insitu.engine.loop import tune_process
    from insitu.llm.build import build
    from insitu.llm.guiding import Answering

    tune_process()
    name = settings.served_model_name or located.name
    others = (located.name, "default", *settings.model_alias)
    aliases = tuple(dict.fromkeys(a for a in others if a != name))
    return build(
        located.path,
        name=name,
        aliases=aliases,
        max_num_waiting=settings.max_num_waiting,
        step_timeout_s=settings.step_timeout_s,
        answering=Answering(**{name: getattr(settings, name) for name in ANSWER_FIELDS}),
        **(served_values if is_served else engine_values)(settings),
    )

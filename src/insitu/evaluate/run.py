"""Run a model over a text, beside another one where that is asked, and report the figures.

Not here: opening models (``models``), the arithmetic (``figures``), drawing (``plot``).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from insitu.evaluate.errors import EvaluateError
from insitu.evaluate.figures import Figures, Report
from insitu.evaluate.models import How, opened_native, opened_reference
from insitu.evaluate.text import SAMPLE, Windows, cut, read_text
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from insitu.evaluate.models import Float32, Int32, Subject

    Watch = Callable[[str, int, int], None]  # what, done, total

DEFAULT_WINDOW = 512


@dataclass(frozen=True, slots=True)
class Wish:
    """What to evaluate: against another file, or this one's own definition, or nothing."""

    path: Path
    how: How
    against: Path | None = None
    against_definition: bool = False
    text: Path = SAMPLE
    max_num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The report and what it was taken from, for a plot."""

    report: Report
    figures: Figures


def evaluate(wish: Wish, watch: Watch) -> Evaluation:
    """Open what is asked for, run it, close it again."""
    windows = _windows(wish)
    watch("opening", 0, windows.num_tokens)
    with opened_native(wish.path, wish.how) as subject, _opened_other(wish) as other:
        return compare(subject, other, windows, watch)


def compare(subject: Subject, other: Subject | None, windows: Windows, watch: Watch) -> Evaluation:
    """Both over the same windows."""
    if other is not None and other.vocab_size != subject.vocab_size:
        sizes = f"{subject.vocab_size} and {other.vocab_size}"
        raise EvaluateError(f"the vocabularies differ ({sizes} tokens): no row can be compared.")
    figures, done = Figures(), 0
    for ids in windows.ids:
        others = None if other is None else other.logits(ids)
        start = 0
        for logits in subject.logits(ids):
            rows = None if others is None else _finite(next(others), done, "the other model's")
            stop = start + len(logits)
            skipped = max(0, windows.num_lead - 1 - start)  # what follows those is no text
            following = ids[start + 1 + skipped : stop + 1]
            _take(figures, (_finite(logits, done, "its"), rows), following, skipped)
            done += len(logits)
            start = stop
            watch("tokens", done, windows.num_tokens)
    return Evaluation(figures.report(windows.num_tokens), figures)


def _take(
    figures: Figures, rows: tuple[Float32, Float32 | None], following: Int32, skipped: int
) -> None:
    logits, other = rows
    figures.take(logits[skipped:], None if other is None else other[skipped:], following)


def _finite(logits: Float32, position: int, whose: str) -> Float32:
    if not np.isfinite(logits).all():
        raise EvaluateError(f"{whose} logits after token {position} are not finite.")
    return logits


def _windows(wish: Wish) -> Windows:
    text = read_text(wish.text)
    windows = _cut(wish.path, text, wish)
    if wish.against is not None:
        theirs = _cut(wish.against, text, wish)
        same = len(theirs.ids) == len(windows.ids) and all(
            map(np.array_equal, theirs.ids, windows.ids)
        )
        if not same:
            raise EvaluateError(
                f"--against {wish.against}: cuts the text into other tokens than {wish.path}."
            )
    return windows


def _cut(path: Path, text: str, wish: Wish) -> Windows:
    source = open_source(path)
    try:
        return cut(source, text, window=wish.how.window, max_num_tokens=wish.max_num_tokens)
    finally:
        source.close()


def _opened_other(wish: Wish) -> AbstractContextManager[Subject | None]:
    if wish.against is not None:
        return opened_native(wish.against, wish.how)
    if wish.against_definition:
        return opened_reference(wish.path, wish.how.window)
    return nullcontext()

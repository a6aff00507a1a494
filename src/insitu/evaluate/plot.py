"""The evaluation as a picture: calibration, and how KL divergence is spread over positions.

Not here: the figures. matplotlib is an extra; only this file of the room imports it, to draw.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.evaluate.errors import EvaluateError

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.evaluate.run import Evaluation

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse before anything is run what could not be drawn after."""
    if path.suffix.lower() not in FORMATS:
        raise EvaluateError(f"--plot {path}: the name ends in one of {', '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise EvaluateError(f"--plot {path}: there is no folder {path.parent}.")
    if find_spec("matplotlib") is None:
        raise EvaluateError("--plot needs matplotlib: pip install 'insitu[bench]'.")


def draw(evaluation: Evaluation, model_name: str, path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    kl = evaluation.figures.kl
    figure = Figure(figsize=(10, 4.5) if len(kl) else (5, 4.5), layout="constrained")
    panels: Any = figure.subplots(1, 2 if len(kl) else 1, squeeze=False)[0]
    _calibration(panels[0], evaluation)
    if len(kl):
        axes, sorted_kl = panels[1], np.sort(kl)
        axes.plot(np.maximum(sorted_kl, 1e-12), (np.arange(len(kl)) + 1) / len(kl))
        axes.axvline(float(kl.mean()), color="k", linestyle=":", label=f"mean {kl.mean():.2e}")
        axes.set(xscale="log", xlabel="KL divergence, nats", ylabel="positions at or below")
        axes.legend(loc="upper left")
    figure.suptitle(model_name)
    figure.savefig(path)


def _calibration(axes: Any, evaluation: Evaluation) -> None:
    bins = [one for one in evaluation.report.calibration if one.count]
    axes.plot([0, 1], [0, 1], "k:")
    axes.plot([one.confidence for one in bins], [one.accuracy for one in bins], "o-")
    axes.set(xlabel="probability of the likeliest token", ylabel="how often it came")

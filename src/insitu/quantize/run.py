"""Quantise a model: lay the file out, choose the weights, write it.

Not here: how weights are chosen (``grids``, ``rounding``). Always true: a stopped run goes on where
it was; the source is only read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from insitu.evaluate.text import cut, read_text
from insitu.kernels.blocks import FLOATS, BlockType, decode
from insitu.models.load import load_model
from insitu.models.twins import TwinSource
from insitu.quantize.calibrate import run_through
from insitu.quantize.checkpoint import CheckpointForm
from insitu.quantize.convert import converted
from insitu.quantize.errors import QuantizeError
from insitu.quantize.gguf_form import GGUFForm
from insitu.quantize.layout import HEADS
from insitu.quantize.rounding import Rounded, round_nearest, round_with_moments
from insitu.quantize.writer import PartialFile
from insitu.weights.gguf import GGUFFile
from insitu.weights.gguf_split import SplitGGUF
from insitu.weights.safetensors import WEIGHTS
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.block_parts import Float32
    from insitu.kernels.pack import Segment
    from insitu.models.twins import Format
    from insitu.quantize.layout import Target, Types
    from insitu.quantize.writer import Form
    from insitu.weights.tensors import TensorSource

    Watch = Callable[[str, int, int], None]  # what, done, total

CALIBRATION = Path(__file__).parent / "calibration.txt"
Method = Literal["nearest", "scale", "gptq"]
_MAX_HALF = float(np.finfo(np.float16).max)
_ROWS = 4096  # quantised at once where nothing ties rows together


@dataclass(frozen=True, slots=True)
class Wish:
    """What to make of which file."""

    source: Path
    target: Path
    types: Types
    method: Method = "gptq"
    calibration: Path = CALIBRATION
    window: int = 512
    max_num_tokens: int = 4096
    form: Format | None = None


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far a tensor's new weights are from its own; ``outputs``: as the calibration sees it."""

    name: str
    block_type: str
    num_weights: int
    error: float  # root mean square, relative
    output_error: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Of a whole file."""

    size_bytes: int
    bits_per_weight: float
    tensors: tuple[TensorError, ...]

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def quantize(wish: Wish, watch: Watch) -> Report:
    """Write ``wish.target``."""
    opened = open_source(wish.source)
    try:
        source = _as_wanted(wish, opened)
        form = _form(wish, source)
        if all(target.is_kept for target in form.targets):
            raise QuantizeError(f"{wish.source}: no tensor of it can be {wish.types.layers}.")
        form.prepare()
        with PartialFile(form, _identity(wish, source.digest())) as out:
            _Work(wish, source, form.targets, out, watch).run()
            errors = tuple(TensorError(**note) for note in out.done.values() if note is not None)
    finally:
        opened.close()
    num_weights = sum(t.n * t.k for t in form.targets if not t.is_kept)
    num_bytes = sum(t.num_bytes for t in form.targets if not t.is_kept)
    return Report(form.path.stat().st_size, 8 * num_bytes / num_weights, errors)


def _as_wanted(wish: Wish, source: TensorSource) -> TensorSource:
    """The model in the format asked for: by a name that ends with .gguf, or else its own."""
    form: Any = wish.form or ("gguf" if wish.target.suffix == ".gguf" else source.format)
    return source if form == source.format else converted(source, form)


def _form(wish: Wish, source: TensorSource) -> Form:
    """How it is written."""
    if isinstance(source, (GGUFFile, SplitGGUF, TwinSource)) and source.format == "gguf":
        _require_file(wish)
        return GGUFForm(wish.target, source, wish.types)
    _require_folder(wish)
    return CheckpointForm(wish.target, source, load_model(source), wish.types)


def _require_folder(wish: Wish) -> None:
    """An empty folder, or one that a stopped run began."""
    if wish.target.is_dir():
        names = {path.name for path in wish.target.iterdir()}
        if names and f"{WEIGHTS}.partial.json" not in names:
            raise QuantizeError(f"{wish.target}: is there and is not empty.")
    elif os.path.lexists(wish.target):
        raise QuantizeError(f"{wish.target}: is there and is no folder.")


def _require_file(wish: Wish) -> None:
    """Nothing but a file is written over, and never the source."""
    if not wish.target.exists():
        return
    if not wish.target.is_file():
        raise QuantizeError(f"{wish.target}: is there and is no file.")
    if wish.source.exists() and wish.target.samefile(wish.source):
        raise QuantizeError(f"{wish.target}: is the model itself; name another file to write.")


def _identity(wish: Wish, digest: str) -> dict[str, str]:
    """What must be the same for a stopped run to go on."""
    settings = {name: str(value) for name, value in asdict(wish).items() if name != "target"}
    text = hashlib.sha256(read_text(wish.calibration).encode()).hexdigest()
    return settings | {"digest": digest, "text": text}


class _Work:
    def __init__(
        self,
        wish: Wish,
        source: TensorSource,
        targets: list[Target],
        out: PartialFile,
        watch: Watch,
    ) -> None:
        self._wish, self._source, self._out, self._watch = wish, source, out, watch
        self._targets = {target.name: target for target in targets}

    def run(self) -> None:
        """Calibrated tensors in the order they are met, then the rest."""
        kinds = {target.block_type for target in self._targets.values() if not target.is_kept}
        is_calibrated = self._wish.method != "nearest" and not kinds <= set(FLOATS)
        if is_calibrated and not all(name in self._out.done for name in self._targets):
            self._calibrated()
        for target in self._targets.values():
            if target.name in self._out.done:
                continue
            if target.is_kept:
                self._write(target, self._source.read(target.name), None)
            else:
                self._nearest(target)

    def _calibrated(self) -> None:
        wish = self._wish
        text = read_text(wish.calibration)
        windows = cut(self._source, text, window=wish.window, max_num_tokens=wish.max_num_tokens)
        run_through(load_model(self._source), windows.ids, self._choose)

    def _choose(self, segment: Segment, moments: Callable[[], Float32]) -> Float32:
        """A linear's weights, quantised unless its tensor is a head, or only a part of one."""
        target = self._targets.get(segment.name)
        own = decode(segment.block_type, segment.raw(), segment.n, segment.k)
        is_whole = (
            target is not None
            and (target.n, target.k) == (segment.n, segment.k)
            and not segment.is_transposed
        )
        if target is None or not is_whole or segment.name in HEADS or target.is_kept:
            return own
        if segment.name in self._out.done:
            blocks = self._out.read(segment.name)
            return decode(target.block_type, blocks, target.n, target.k)
        self._require_held(target, own)
        mine = moments()
        if not np.isfinite(mine).all():
            raise self._fault(target, "what reaches it in the calibration is not finite")
        if self._wish.method == "gptq":
            rounded = round_with_moments(target.block_type, own, mine)
        else:
            rounded = round_nearest(target.block_type, own, np.diag(mine))
        note = _error(target, own, rounded.weights, mine)
        self._write(target, rounded.blocks.tobytes(), note)
        return rounded.weights

    def _nearest(self, target: Target) -> None:
        """A tensor whose rows know nothing of each other, some rows at a time."""
        info, k = self._source.tensors[target.name], target.k
        raw, row_bytes = self._source.read(target.name), info.block_type.row_bytes(k)
        even, blocks, off, square = np.ones(k, np.float32), [], 0.0, 0.0
        for first in range(0, target.n, _ROWS):
            last = min(first + _ROWS, target.n)
            data = raw[first * row_bytes : last * row_bytes]
            own = decode(info.block_type, data, last - first, k)
            self._require_held(target, own)
            rounded: Rounded = round_nearest(target.block_type, own, even)
            blocks.append(rounded.blocks.tobytes())
            off += float(np.square(rounded.weights - own, dtype=np.float64).sum())
            square += float(np.square(own, dtype=np.float64).sum())
        note = TensorError(
            target.name,
            str(target.block_type),
            target.n * k,
            (off / square) ** 0.5 if square else 0.0,
            None,
        )
        self._write(target, b"".join(blocks), asdict(note))

    def _require_held(self, target: Target, own: Float32) -> None:
        """Refuse what no block can hold: scales are halves, but for wide floats."""
        largest = float(np.abs(own).max(initial=0))
        if not np.isfinite(largest):
            raise self._fault(target, "holds a number that is not finite")
        if largest > _MAX_HALF and target.block_type not in {BlockType.F32, BlockType.BF16}:
            raise self._fault(target, f"holds {largest:g}, too large for {target.block_type}")

    def _fault(self, target: Target, message: str) -> QuantizeError:
        return QuantizeError(f"{self._wish.source}: tensor {target.name}: {message}.")

    def _write(self, target: Target, blocks: bytes | memoryview, note: Any) -> None:
        self._out.write(target.name, blocks, note)
        self._watch("tensors", len(self._out.done), len(self._targets))


def _error(target: Target, own: Float32, new: Float32, moments: Float32) -> dict[str, Any]:
    off = new - own
    square, seen = float(np.square(own).sum()), float(((own @ moments) * own).sum())
    outputs = float(((off @ moments) * off).sum())
    return asdict(
        TensorError(
            target.name,
            str(target.block_type),
            own.size,
            (float(np.square(off).sum()) / square) ** 0.5 if square else 0.0,
            max(outputs / seen, 0.0) ** 0.5 if seen > 0 else 0.0,
        )
    )

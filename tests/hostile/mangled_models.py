"""Mangle a tiny model thousands of ways and open each: the child process of test_model_files.

    python mangled_models.py FOLDER FORMAT FIRST COUNT EVERY

Prints one JSON object of what happened. Any outcome but success or a named error ends the process
with the variant's number on standard error; a crash leaves that number in FOLDER/now. Every
EVERYth variant that loads is run for one step.

Always true: variant N is the same bytes on every machine.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from insitu.codec.tokenizer import load_tokenizer
from insitu.kernels.native import Limits, Native
from insitu.kernels.passes import lower
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.models.sampling_defaults import read_sampling_defaults
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.weights.source import TensorSource

MAX_VARIANT_S = 2.0
MAX_ADDRESS_BYTES = 6 << 30
# Values that tend to be mistaken for sizes, in the widths that headers use.
NUMBERS = [
    0,
    1,
    2,
    7,
    255,
    256,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**62,
    2**63,
    2**64 - 1,
]
KINDS = ("flip", "rewrite", "number", "cut", "splice", "repeat", "remove", "extend")
# The files of a model folder, by how often one is mangled.
MEMBERS = ["model.safetensors"] * 5 + ["config.json", "tokenizer.json"] * 2 + [
    "tokenizer_config.json", "generation_config.json",
]  # fmt: skip


def mangled(raw: bytes, head_bytes: int, rng: random.Random) -> tuple[str, bytes]:
    """One to four changes, most of them in the first ``head_bytes``."""
    data, kinds = bytearray(raw), []
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice(KINDS)
        kinds.append(kind)
        area = min(len(data), head_bytes) if rng.random() < 0.85 else len(data)
        at = rng.randrange(area) if area else 0
        mangle(data, kind, at, rng)
    return "+".join(kinds), bytes(data)


def mangle(data: bytearray, kind: str, at: int, rng: random.Random) -> None:
    """Apply one change in place."""
    size = rng.choice((1, 4, 8, 40, 1000))
    if kind == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "rewrite":
        data[at : at + size] = rng.randbytes(size)
    elif kind == "number":
        width = rng.choice((4, 8))
        data[at : at + width] = (rng.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
    elif kind == "cut":
        del data[at:]
    elif kind == "splice":
        other = rng.randrange(len(data)) if data else 0
        data[at : at + size] = data[other : other + size]
    elif kind == "repeat":
        data[at:at] = data[at : at + size]
    elif kind == "remove":
        del data[at : at + size]
    else:
        data += rng.randbytes(size)


class Opener:
    """Everything that a model file goes through before it serves."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.num_run = 0

    def open(self, path: Path) -> None:
        """Open, load, make the tokenizer; run now and then. Named errors are counted."""
        try:
            source = open_source(path)
        except ModelFileError as error:
            self._refused("open", error)
            return
        try:
            for key in source.metadata.keys():  # noqa: SIM118
                source.metadata.has(key)
            tokenizer = load_tokenizer(source)
            # A vocabulary that lost a byte's token refuses the texts that need it, by name.
            with contextlib.suppress(Refusal):
                tokenizer.encode("hello 42\n", add_special_tokens=True, parse_special=True)
            read_sampling_defaults(source)
            self._run(source, load_model(source))
            self.outcomes["success"] += 1
        except ModelFileError as error:
            self._refused("load", error)
        finally:
            source.close()

    def _refused(self, stage: str, error: ModelFileError) -> None:
        self.outcomes[f"refused at {stage}"] += 1
        if not error.where or not error.message:
            raise ValueError("an error without a place or a message") from error
        self.faults[error.where.split(" at offset")[0].split(" ")[0]] += 1

    def _run(self, source: TensorSource, model: LoadedModel) -> None:
        """Every tensor read; one step of the native engine for a sample."""
        for name in source.tensors:
            np.frombuffer(source.read(name), np.uint8).max(initial=0)
        if self._every == 0 or self.outcomes["success"] % self._every:
            return
        program = lower(model.program)
        limits = Limits(16, 4, 2, 4, 2)
        native = Native(program, kv=kv_layout(model.spec), limits=limits, num_threads=1)
        rows = np.arange(3, dtype=np.int32)
        last_id = model.spec.vocab_size - 1
        ids = np.array([0, last_id // 2, last_id], np.int32)
        table, starts, lens = (np.array(v, np.int32) for v in ([[0]], [0, 3], [3]))
        native.forward(Batch(ids, rows, rows, table, starts, lens, rows))
        native.close()
        self.num_run += 1


def variants(folder: Path, form: str) -> tuple[Mapping[str, bytes], Path]:
    """The sound files by name, and the place each variant is opened at."""
    sound = folder / form
    if form == "gguf":
        return {"m.gguf": (sound / "m.gguf").read_bytes()}, folder / "variant" / "m.gguf"
    names = sorted(set(MEMBERS))
    return {name: (sound / name).read_bytes() for name in names}, folder / "variant"


def main(folder: Path, form: str, first: int, count: int, every: int) -> None:
    """Open variants ``first`` to ``first + count``."""
    files, target = variants(folder, form)
    place = folder / "variant"
    place.mkdir()
    for name, raw in files.items():
        (place / name).write_bytes(raw)
    opener = Opener(every)
    opener.open(target)  # the sound model, so that memory and imports are counted before
    if opener.outcomes != {"success": 1}:
        raise ValueError(f"the sound model: {opener.faults}")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    before_kib, slowest_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    for number in range(first, first + count):
        rng = random.Random(f"{form} {number}")  # noqa: S311
        name = rng.choice(MEMBERS) if form == "safetensors" else "m.gguf"
        head_bytes = 12_000 if name == "m.gguf" else 4_000
        kinds, raw = mangled(files[name], head_bytes, rng)
        (place / name).write_bytes(raw)
        (folder / "now").write_text(f"{form} variant {number}: {name}, {kinds}")
        signal.setitimer(signal.ITIMER_REAL, 10 * MAX_VARIANT_S)  # a hang ends the process
        start = time.process_time()
        opener.open(target)
        slowest_s = max(slowest_s, time.process_time() - start)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if len(files) > 1:  # the next variant may be of another file
            (place / name).write_bytes(files[name])
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    told = {"outcomes": opener.outcomes, "faults": opener.faults, "num_run": opener.num_run}
    sys.stdout.write(json.dumps({**told, "slowest_s": slowest_s, "grown_kib": grown_kib}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))

"""insitu: its engine, scheduler and sampling included, without text and HTTP."""

from __future__ import annotations

import itertools
import random
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from protocol import serve

from insitu.bench.rig import cache_bytes, lines
from insitu.engine.loop import tune_process
from insitu.engine.plan import Wanted, make_plan
from insitu.engine.sequence import Prompt
from insitu.engine.start import make_engine
from insitu.kernels.ceilings import Ceilings
from insitu.models.load import load_model
from insitu.weights.source import open_source

_LEN = 1024


class Insitu:
    """Steps its own engine."""

    name = "insitu"

    def __init__(self, model: str, threads: int, max_batch: int) -> None:
        try:
            self.version = version("insitu")
        except PackageNotFoundError:
            self.version = "tree"
        tune_process()
        source = open_source(Path(model))
        loaded = load_model(source)
        wanted = Wanted(threads, max_model_len=_LEN, max_num_seqs=max_batch, prefix_caching="off")
        plan = make_plan(loaded, wanted)
        self._vocab_size = plan.vocab_size
        self._ids = itertools.count()
        self._random = random.Random(0)
        self._read_bytes = sum(group.size_bytes for group in plan.weights)
        self._engine = make_engine(loaded, plan)
        native = self._engine.runner._native
        self._flush_bytes = lines(cache_bytes())
        self._ceilings = Ceilings(native, self._flush_bytes + self._read_bytes)
        source.close()
        self.prefill(64)

    def read(self) -> tuple[int, float]:
        """The raw bandwidth of this minute: as many bytes as the weights take, from no cache."""
        self._ceilings.read_seconds(0, self._flush_bytes)
        return self._read_bytes, self._ceilings.read_seconds(self._flush_bytes, self._read_bytes)

    def prefill(self, tokens: int) -> tuple[int, float]:
        """Until the first token is there."""
        self._add(tokens, 1)
        return tokens, self._run()

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """Steps in which every sequence gains a token."""
        for _ in range(batch):
            self._add(context, tokens + 1 + batch)
        # Until every prompt is computed; those that were first have some tokens already.
        started: set[str] = set()
        while len(started) < batch:
            started |= {output.request_id for output in self._engine.step() if output.token}
        begin = time.perf_counter()
        gained = sum(len(self._engine.step()) for _ in range(tokens))
        seconds = time.perf_counter() - begin
        self._run()
        return gained, seconds

    def _add(self, num_tokens: int, max_tokens: int) -> None:
        ids = tuple(self._random.randrange(self._vocab_size) for _ in range(num_tokens))
        prompt = Prompt(f"{next(self._ids)}", ids, max_tokens, seed=0, temperature=0.0)
        self._engine.add(prompt)

    def _run(self) -> float:
        begin = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        return time.perf_counter() - begin


if __name__ == "__main__":
    serve(Insitu)

"""llama.cpp through llama-cpp-python's binding of its C interface, as its own benchmarks call it.

Logits are computed and nothing is sampled from them, which is in its favour.
"""

from __future__ import annotations

import random
import time
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as c
from protocol import serve

_LEN = 1024


class LlamaCpp:
    """One context a batch size, made when it is first wanted."""

    name = "llama.cpp"

    def __init__(self, model: str, threads: int, max_batch: int) -> None:
        del max_batch
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        c.llama_backend_init()
        self._threads = threads
        self._model = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        vocab = c.llama_model_get_vocab(self._model)
        self._vocab_size = c.llama_vocab_n_tokens(vocab)
        self._random = random.Random(0)
        self._contexts: dict[int, Any] = {}
        self.prefill(64)

    def prefill(self, tokens: int) -> tuple[int, float]:
        """One prompt, logits of its last token."""
        context = self._context(1)
        begin = time.perf_counter()
        self._decode(context, [(0, position) for position in range(tokens)])
        return tokens, time.perf_counter() - begin

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """A token of every sequence a call."""
        made = self._context(batch)
        for sequence in range(batch):
            self._decode(made, [(sequence, position) for position in range(context)])
        self._decode(made, [(sequence, context) for sequence in range(batch)], every=True)
        begin = time.perf_counter()
        for position in range(context + 1, context + 1 + tokens):
            self._decode(made, [(sequence, position) for sequence in range(batch)], every=True)
        return batch * tokens, time.perf_counter() - begin

    def _context(self, batch: int) -> Any:
        """Empty."""
        if batch not in self._contexts:
            params = c.llama_context_default_params()
            params.n_ctx, params.n_seq_max = batch * _LEN, batch
            params.n_batch, params.n_ubatch = 2048, 512
            params.n_threads = params.n_threads_batch = self._threads
            self._contexts[batch] = c.llama_init_from_model(self._model, params)
        made = self._contexts[batch]
        c.llama_memory_clear(c.llama_get_memory(made), True)
        return made

    def _decode(self, context: Any, places: list[tuple[int, int]], *, every: bool = False) -> None:
        """One call for tokens at (sequence, position); logits of all, or of the last."""
        batch = c.llama_batch_init(len(places), 0, 1)
        batch.n_tokens = len(places)
        for index, (sequence, position) in enumerate(places):
            batch.token[index] = self._random.randrange(self._vocab_size)
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = every or index == len(places) - 1
        status = c.llama_decode(context, batch)
        c.llama_synchronize(context)
        c.llama_batch_free(batch)
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")


if __name__ == "__main__":
    serve(LlamaCpp)

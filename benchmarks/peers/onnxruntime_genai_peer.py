"""ONNX Runtime GenAI on a folder of its model builder."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
from protocol import serve


class OnnxRuntime:
    """Chooses greedily; an end token ends nothing, as the shortest length is the longest."""

    name = "onnxruntime-genai"

    def __init__(self, model: str, threads: int, max_batch: int) -> None:
        del max_batch
        self.version = str(og.__version__)
        config = og.Config(model)
        session = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self._model = og.Model(config)
        about = json.loads((Path(model) / "genai_config.json").read_text())
        self._vocab_size = int(about["model"]["vocab_size"])
        self._random = random.Random(0)
        self.prefill(64)

    def prefill(self, tokens: int) -> tuple[int, float]:
        """Until the first token is chosen."""
        begin = time.perf_counter()
        self._started(1, tokens, 1).generate_next_token()
        return tokens, time.perf_counter() - begin

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """A token of every sequence a call."""
        generator = self._started(batch, context, tokens + 1)
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(tokens):
            generator.generate_next_token()
        return batch * tokens, time.perf_counter() - begin

    def _started(self, batch: int, tokens: int, more: int) -> Any:
        """A generator that has seen its prompts."""
        params = og.GeneratorParams(self._model)
        length = tokens + more
        params.set_search_options(
            do_sample=False, batch_size=batch, max_length=length, min_length=length
        )
        generator = og.Generator(self._model, params)
        rows = [
            [self._random.randrange(self._vocab_size) for _ in range(tokens)] for _ in range(batch)
        ]
        generator.append_tokens(np.array(rows, np.int32))
        return generator


if __name__ == "__main__":
    serve(OnnxRuntime)

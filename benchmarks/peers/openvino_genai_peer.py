"""OpenVINO GenAI's LLMPipeline, on a GGUF file or a folder of its own format."""

from __future__ import annotations

import random
import time

import numpy as np
import openvino
import openvino_genai
from protocol import serve


class OpenVino:
    """Generates greedily; an end token ends nothing."""

    name = "openvino-genai"

    def __init__(self, model: str, threads: int, max_batch: int) -> None:
        del max_batch
        self.version = str(openvino_genai.__version__)
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipe = openvino_genai.LLMPipeline(model, "CPU", **options)
        vocab = self._pipe.get_tokenizer().get_vocab()
        self._vocab_size = len(vocab)
        self._random = random.Random(0)
        self.prefill(64)

    def prefill(self, tokens: int) -> tuple[int, float]:
        """Until the first token is there."""
        return tokens, self._generate(self._inputs(1, tokens), 1)

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """What further tokens take beyond the first; prompts are new, for it keeps what it knew."""
        first = self._generate(self._inputs(batch, context), 1)
        all_of_them = self._generate(self._inputs(batch, context), tokens + 1)
        return batch * tokens, max(1e-9, all_of_them - first)

    def _inputs(self, batch: int, tokens: int) -> openvino_genai.TokenizedInputs:
        rows = [
            [self._random.randrange(self._vocab_size) for _ in range(tokens)] for _ in range(batch)
        ]
        mask = openvino.Tensor(np.ones((batch, tokens), np.int64))
        return openvino_genai.TokenizedInputs(openvino.Tensor(np.array(rows, np.int64)), mask)

    def _generate(self, inputs: openvino_genai.TokenizedInputs, tokens: int) -> float:
        """Seconds."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.do_sample, config.ignore_eos = False, True
        begin = time.perf_counter()
        self._pipe.generate(inputs, config)
        return time.perf_counter() - begin


if __name__ == "__main__":
    serve(OpenVino)

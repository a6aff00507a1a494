"""A sentence encoder's matrices in 4 bits: how far its sentences' embeddings move.

    PYTHON benchmarks/four_bits_encoder.py FOLDER [--sentences 200]

FOLDER holds a BERT with its weights as float32; PYTHON has torch, transformers, gguf and insitu's
source on its path. An encoder has no logits, so that what is compared is the mean over the text's
tokens of the last layer: 1 - cosine to the float32 model's, over sentences of `evaluate`'s sample.
Every matrix of the layers becomes Q4_0 (4.5 bits), by llama.cpp's own rounding (the package gguf
has it) and by insitu's three methods, calibrated on the sentences that `quantize` brings.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from insitu.kernels.blocks import BlockType
from insitu.quantize.rounding import round_nearest, round_with_moments

if TYPE_CHECKING:
    from collections.abc import Callable

ROOM = Path(__file__).parent.parent / "src" / "insitu"
KIND = BlockType.Q4_0


def sentences(path: Path, most: int) -> list[str]:
    """The first ones of a text."""
    return [one for one in re.split(r"(?<=[.!?])\s+", path.read_text()) if len(one) > 20][:most]


class Encoder:
    """The model, its layers' matrices and the moments of their inputs."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModel.from_pretrained(folder).float().eval()
        layers = self._model.encoder.named_modules()
        self._linears = {name: one for name, one in layers if isinstance(one, torch.nn.Linear)}
        self._own = {name: one.weight.detach().clone() for name, one in self._linears.items()}
        self.moments: dict[str, np.ndarray] = {}

    def embed(self, texts: list[str]) -> np.ndarray:
        """[texts, width], of length 1."""
        with torch.no_grad():
            given = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            rows, mask = self._model(**given).last_hidden_state, given["attention_mask"][..., None]
            mean = (rows * mask).sum(1) / mask.sum(1)
            return (mean / mean.norm(dim=1, keepdim=True)).numpy()

    def watch(self, texts: list[str]) -> None:
        """Take the moments of every matrix's inputs."""
        hooks = [one.register_forward_hook(self._take(name)) for name, one in self._linears.items()]
        for text in texts:
            self.embed([text])
        for hook in hooks:
            hook.remove()

    def _take(self, name: str) -> Callable[..., None]:
        def taken(_: Any, inputs: tuple[Any, ...], __: Any) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).double().numpy()
            self.moments[name] = self.moments.get(name, 0) + x.T @ x

        return taken

    def replace(self, make: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Give each matrix the weights that ``make`` gives for its own and its moments."""
        for name, one in self._linears.items():
            own = self._own[name].numpy()
            one.weight.data = torch.from_numpy(np.ascontiguousarray(make(own, self.moments[name])))


def by_llama_cpp(own: np.ndarray, _: np.ndarray) -> np.ndarray:
    """As the package gguf rounds."""
    kind = gguf.GGMLQuantizationType.Q4_0
    return gguf.dequantize(gguf.quantize(own, kind), kind).astype(np.float32)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "llama.cpp": by_llama_cpp,
    "nearest": lambda own, _: round_nearest(KIND, own, np.ones(own.shape[1], np.float32)).weights,
    "scale": lambda own, h: round_nearest(KIND, own, np.diag(h).astype(np.float32)).weights,
    "gptq": lambda own, h: round_with_moments(KIND, own, h.astype(np.float32)).weights,
}


def main() -> None:
    """A line a method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    given = parser.parse_args()
    encoder = Encoder(given.folder)
    texts = sentences(ROOM / "evaluate" / "sample.txt", given.sentences)
    own = encoder.embed(texts)
    encoder.watch(sentences(ROOM / "quantize" / "calibration.txt", given.sentences))
    for name, make in METHODS.items():
        encoder.replace(make)
        apart = 1 - (encoder.embed(texts) * own).sum(axis=1)
        print(f"{name:>9}: mean {apart.mean():.5f}, 99th percentile {np.quantile(apart, 0.99):.5f}")


if __name__ == "__main__":
    main()

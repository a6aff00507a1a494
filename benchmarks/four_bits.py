"""Files of 4 bits made by insitu and by llama.cpp from one source: how far each is from it.

    python benchmarks/four_bits.py MODEL_FILE FOLDER --peer PYTHON [--rebase] [--tokens 1024]
        [--kinds Q4_0,Q4_K_M] [--methods nearest,scale,gptq] [--calibration-tokens 4096]

The source is the file's weights as float32. What is published was rounded before, and its grid is a
help to whoever uses the same one: ``--rebase`` moves the source off it, at no change of what the
model computes (norms' factors go into the matrices after them; outputs of v and up are multiplied
by random factors, the inputs of what reads them divided).

Every file is run by its definition, float32 over its weights, so that they alone are compared. Ours
have, tensor by tensor, the types that llama.cpp chose. PYTHON has llama-cpp-python.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from insitu.evaluate.figures import Figures
from insitu.evaluate.models import Reference
from insitu.evaluate.run import DEFAULT_WINDOW
from insitu.evaluate.text import SAMPLE, cut, read_text
from insitu.kernels.blocks import BlockType, decode
from insitu.models.load import load_model
from insitu.quantize.gguf_form import GGUFForm
from insitu.quantize.layout import Types
from insitu.quantize.run import Wish, quantize
from insitu.quantize.writer import PartialFile
from insitu.weights.gguf import GGUFFile
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.evaluate.text import Windows
    from insitu.kernels.block_parts import Float32

SPREAD = 0.3  # of the logarithms of random factors


def write_source(model: Path, target: Path, *, is_rebased: bool) -> None:
    """The model in float32."""
    file = GGUFFile(model)
    form = GGUFForm(target, file, Types(BlockType.F32))
    arrays = {}
    for name, info in file.tensors.items():
        rows = int(np.prod(info.shape[:-1], dtype=int))
        whole = decode(info.block_type, file.read(name), rows, info.shape[-1])
        arrays[name] = whole.reshape(info.shape)
    if is_rebased:
        rebase(arrays, head_dim=_head_dim(file))
    with PartialFile(form, {}) as out:
        for one in form.targets:
            raw = np.ascontiguousarray(arrays[one.name], np.float32).tobytes()
            out.write(one.name, raw, None)


def _head_dim(file: GGUFFile) -> int:
    return load_model(file).spec.attention.head_dim


def rebase(arrays: dict[str, Float32], head_dim: int) -> None:
    """The same function of other weights."""
    random = np.random.default_rng(0)
    for layer in range(sum(name.endswith(".attn_v.weight") for name in arrays)):
        mine = {
            name.split(".")[2]: name
            for name in arrays
            if name.startswith(f"blk.{layer}.") and name.endswith(".weight")
        }
        norms = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_gate", "ffn_up")}
        for norm, readers in norms.items():
            for reader in readers:
                arrays[mine[reader]] = arrays[mine[reader]] * arrays[mine[norm]]
            arrays[mine[norm]] = np.ones_like(arrays[mine[norm]])
        factors = _drawn(random, len(arrays[mine["ffn_up"]]))
        arrays[mine["ffn_up"]] = arrays[mine["ffn_up"]] * factors[:, None]
        arrays[mine["ffn_down"]] = arrays[mine["ffn_down"]] / factors
        factors = _drawn(random, len(arrays[mine["attn_v"]]))
        arrays[mine["attn_v"]] = arrays[mine["attn_v"]] * factors[:, None]
        bias = f"blk.{layer}.attn_v.bias"
        if bias in arrays:
            arrays[bias] = arrays[bias] * factors
        heads = arrays[mine["attn_output"]].shape[1] // len(factors)
        spread = np.repeat(factors.reshape(-1, head_dim), heads, axis=0).reshape(-1)
        arrays[mine["attn_output"]] = arrays[mine["attn_output"]] / spread


def _drawn(random: np.random.Generator, count: int) -> Float32:
    return np.exp(SPREAD * random.standard_normal(count)).astype(np.float32)


def logits_of(path: Path, windows: Windows) -> Iterator[Float32]:
    """By the file's definition, some rows at a time."""
    source = open_source(path)
    definition = Reference(load_model(source), DEFAULT_WINDOW)
    for ids in windows.ids:
        yield from definition.logits(ids)
    source.close()


def report(path: Path, truths: list[Float32], windows: Windows) -> str:
    """A line of a table."""
    figures, at = Figures(), 0
    flat = np.concatenate(windows.ids)
    for mine, truth in zip(logits_of(path, windows), truths, strict=True):
        figures.take(mine, truth, flat[at + 1 : at + 1 + len(mine)])
        at += len(mine)
    got = figures.report(len(flat))
    agreed = 100 * (got.top1_agreement or 0)
    size = path.stat().st_size / 1e6
    return f"{size:8.1f} MB  KL {got.kl_mean:.5f}, p99 {got.kl_p99:.4f}, top-1 {agreed:.2f} %"


def main() -> None:
    """Two of the peer's files, and three of ours beside each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--rebase", action="store_true")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--kinds", default="Q4_0,Q4_K_M")
    parser.add_argument("--methods", default="nearest,scale,gptq")
    parser.add_argument("--calibration-tokens", type=int, default=4096)
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    source = given.folder / "source.gguf"
    if not source.exists():
        write_source(given.model, source, is_rebased=given.rebase)
    opened = open_source(source)
    text = read_text(SAMPLE)
    windows = cut(opened, text, window=DEFAULT_WINDOW, max_num_tokens=given.tokens)
    opened.close()
    truths = list(logits_of(source, windows))
    for kind in given.kinds.split(","):
        theirs = given.folder / f"llama-cpp-{kind}.gguf"
        if not theirs.exists():
            script = Path(__file__).parent / "peers" / "llama_cpp_quantize.py"
            command = [given.peer, str(script), str(source), str(theirs), kind]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        print(f"{kind:>7} llama.cpp {report(theirs, truths, windows)}", flush=True)
        for method in given.methods.split(","):
            ours = given.folder / f"insitu-{kind}-{method}.gguf"
            types = Types(BlockType.Q4_0, named=_types_of(theirs))
            if not ours.exists():
                wish = Wish(source, ours, types, method, max_num_tokens=given.calibration_tokens)
                quantize(wish, lambda *_: None)
            print(f"{kind:>7} {method:>9} {report(ours, truths, windows)}", flush=True)


def _types_of(path: Path) -> tuple[tuple[str, BlockType], ...]:
    tensors = GGUFFile(path).tensors.values()
    return tuple((info.name, info.block_type) for info in tensors if len(info.shape) > 1)


if __name__ == "__main__":
    main()

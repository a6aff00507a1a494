"""The text that models are judged on, cut into windows of ids.

``sample.txt`` opens *Silver Blaze* (A. Conan Doyle, 1892): in the public domain, each paragraph
made one line.

Not here: what a model makes of it. Always true: every window begins as a prompt of this tokenizer
does, and two models are compared on the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.codec.tokenizer import load_tokenizer
from insitu.evaluate.errors import EvaluateError
from insitu.weights.mapped_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.weights.tensors import TensorSource

Int32 = npt.NDArray[np.int32]

SAMPLE = Path(__file__).parent / "sample.txt"
MAX_TEXT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Windows:
    """Ids a model is run on, a window at a time; each starts with ``num_lead`` that no text had."""

    ids: tuple[Int32, ...]
    num_lead: int

    @property
    def num_tokens(self) -> int:
        """Of all windows."""
        return sum(map(len, self.ids))


def read_text(path: Path) -> str:
    """A UTF-8 file's text."""
    try:
        return read_bounded(path, MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise EvaluateError(f"{path}: is not UTF-8 (at byte {error.start}).") from error


def cut(source: TensorSource, text: str, *, window: int, max_num_tokens: int | None) -> Windows:
    """The text in windows of ``window`` tokens, the last one shorter; at most so many in all."""
    tokenizer = load_tokenizer(source)
    lead = list(tokenizer.encode("", add_special_tokens=True, parse_special=False))
    ids = list(tokenizer.encode(text, add_special_tokens=False, parse_special=False))
    length = window - len(lead)
    if length < 2:
        raise EvaluateError(f"--window {window}: at least {2 + len(lead)} tokens are needed.")
    if max_num_tokens is not None:
        ids = ids[:max_num_tokens]
    parts = [ids[start : start + length] for start in range(0, len(ids), length)]
    whole = [_window(lead, part) for part in parts if len(lead) + len(part) > 1]
    if not whole:
        raise EvaluateError(f"the text has {len(ids)} tokens, which leaves none to foretell.")
    return Windows(tuple(whole), len(lead))


def _window(lead: Sequence[int], part: Sequence[int]) -> Int32:
    return np.array([*lead, *part], np.int32)

"""llama.cpp's logits of ids, for ``peer_quality``: run by that peer's own Python.

    PYTHON llama_cpp_logits.py MODEL_FILE IDS.npy LOGITS.npy

IDS holds windows [count, length]; each is evaluated as one prompt. Keys and values are f16,
llama.cpp's default.
"""

import sys

import llama_cpp
import numpy as np


def main() -> None:
    """One window after the other."""
    model, ids_file, logits_file = sys.argv[1:]
    windows = np.load(ids_file)
    llama = llama_cpp.Llama(
        model, n_ctx=windows.shape[1], n_batch=windows.shape[1], logits_all=True, verbose=False
    )
    rows = np.lib.format.open_memmap(
        logits_file, "w+", np.float32, (*windows.shape, llama.n_vocab())
    )
    for index, ids in enumerate(windows):
        llama.reset()
        llama.eval([int(token) for token in ids])
        rows[index] = llama.scores[: len(ids)]
    rows.flush()


if __name__ == "__main__":
    main()

"""llama.cpp's quantiser, for ``four_bits``: run by that peer's own Python.

PYTHON llama_cpp_quantize.py SOURCE.gguf TARGET.gguf Q4_0|Q4_K_M
"""

import ctypes
import sys

import llama_cpp


def main() -> None:
    """One file."""
    source, target, kind = sys.argv[1:]
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype = {
        "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
        "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    }[kind]
    failed = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(wanted))
    if failed:
        raise SystemExit(f"llama.cpp could not make {target}")


if __name__ == "__main__":
    main()

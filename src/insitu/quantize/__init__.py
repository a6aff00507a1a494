"""The quantize room: a GGUF model's weights in fewer bits, chosen by what they do to its outputs.

Owns: fitting scales, GPTQ, calibration, the writing of GGUF.
May import: evaluate and the rooms below. Read first: run.py, then grids.py.
"""

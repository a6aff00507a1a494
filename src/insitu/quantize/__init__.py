"""The quantize room: a model's weights in fewer bits, chosen by what they do to its outputs.

Owns: fitting scales, GPTQ, calibration, the writing of both formats, from either.
May import: evaluate and the rooms below. Read first: run.py, then grids.py.
"""

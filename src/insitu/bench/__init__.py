"""The bench room: what this machine could do, what a model gets of it, and where the rest goes.

Owns: which steps are measured, the bytes and operations they need, the report as table, JSON, plot.
May import: engine, models, weights, kernels, types; never another verb. Read first: native.py.
"""

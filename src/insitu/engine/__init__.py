"""Ids in, ids out: which sequences run in a step, where their KV lies, one thread that steps.

Owns: sequences, KV block bookkeeping, the schedule, the memory plan, the engine's thread.
May import: models, weights, kernels, types. Never sees text. Read first: engine.py, scheduler.py.
"""

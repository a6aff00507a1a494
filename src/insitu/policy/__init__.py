"""The policy room: who may ask, and for how much.

Owns: API keys (hashed, read again when their file changes), the gate and its limits; residency and
the rest later. May import: types alone. Read first: keys.py, then gate.py. Values come from the
command line, not from settings.
"""

"""The policy room: who may ask, and for how much.

Owns: API keys (hashed) now; rate, quota, residency and the rest later.
May import: types alone. Read first: keys.py. Values come from the command line, not from settings.
"""

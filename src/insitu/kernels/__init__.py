"""Operators: recorded as a Program, defined in NumPy, run by the extension.

Owns: Program and its passes, block types, packed weights, the sole import of the extension.
May import: types. Read first: program.py, then reference.py (what every operator means).
"""

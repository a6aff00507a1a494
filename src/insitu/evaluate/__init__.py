"""The evaluate room: how well a model foretells a text, and how far it strays from another.

Owns: perplexity, KL divergence, top-1 agreement and calibration; the text they are taken on.
May import: llm and the rooms below it. Read first: run.py.
"""

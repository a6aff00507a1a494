"""The front door: text in, text out, over codec and engine.

Owns: preparing requests, turning sampled ids into deltas, `LLM` for programs, `TextGenerator` for a
server. May import: engine, codec, weights, types. Read first: text_generator.py, then answer.py.
"""

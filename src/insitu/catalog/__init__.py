"""The catalog room: brings model files onto this machine, pinned by digest.

Owns: the models folder's layout and locks, pulling from a package index, a URL, a hub or a path.
May import: weights, types, settings; never llm, engine, codec, models, kernels or another verb.
Read first: pull.py. Nothing on a request's way imports this room.
"""

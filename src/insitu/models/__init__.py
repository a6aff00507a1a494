"""Decoders: a spec read from a model file, its tensors placed, its forward pass recorded.

Owns: DecoderSpec, Batch, record_decoder, one short file a family (all that is special about it).
May import: weights, kernels, types. Read first: decoder.py, then a file of families.
"""

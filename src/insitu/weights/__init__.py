"""Model files: opened, distrusted, read-only mapped; names resolved to local files.

Owns: GGUF and safetensors readers, typed metadata, placement of tensors, digests, catalogues.
May import: kernels (block types, PackedLinear), types. Never downloads.
Read first: source.py, then gguf.py.
"""

"""Model families: one short file each, owning all that is special about its family.

May import: models.spec, keys, rope, config, names, placer.
A new family is a file here and a place in the table.
"""

from insitu.models.families import gemma3, llama, mistral, qwen2, qwen3

FAMILIES = (llama, mistral, qwen2, qwen3, gemma3)

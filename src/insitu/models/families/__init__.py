"""Model families: one short file each, owning all that is special about its family.

May import: models.spec, config, names, decoder.
A new family is a file here and a place in the table.
"""

from insitu.models.families import llama, qwen

FAMILIES = (llama, qwen)

"""Model families: one short file each, owning all that is special about its family.

May import: models.spec, keys, rope, config, names, placer.
A new family is a file here and a place in the table.
"""

from insitu.models.families import (
    gemma2,
    gemma3,
    gpt2,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen_moe,
    smollm3,
    stablelm,
)

FAMILIES = (
    *(llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, smollm3, granite, olmo2, stablelm, gpt2),
    *(mixtral, qwen_moe, olmoe),
)

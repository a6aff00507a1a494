"""SmolLM3: a Llama that tells no positions in every fourth layer.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    biases_of,
    decoder_of,
    mlp_of,
    norm_of,
    num_layers_of,
    window_of,
    windows_of,
)
from insitu.models.keys import Keys
from insitu.models.names import CONFIG_NAMES, GGUF_NAMES, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("smollm3", "SmolLM3ForCausalLM")
INTERVAL = 4
THETA = 2e6
NAMES = {"gguf": GGUF_NAMES, "safetensors": replace(CONFIG_NAMES, is_tied=True)}
TWINS = (Twin(*ARCHITECTURES, "smollm3", NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "smollm3")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    num_layers = num_layers_of(keys)
    interval = keys.integer(None, "no_rope_layer_interval", INTERVAL)
    is_turned = [int((index + 1) % interval > 0) for index in range(num_layers)]
    keys.ignore("no_rope_layers", "attention_bias", "mlp_bias")
    if not keys.is_gguf:
        is_turned = keys.metadata.integers("no_rope_layers", is_turned, minimum=0, maximum=1)
    if len(is_turned) != num_layers:
        raise keys.refuse("no_rope_layers", f"names {len(is_turned)} of {num_layers} layers")
    windows = windows_of(keys, window_of(keys), [False] * num_layers)
    if not keys.boolean(None, "use_sliding_window", default=False):
        windows = (0,) * num_layers
    # GGUF converters permute q and k rows so that a pair's dims are neighbours.
    turned = rope.read(attention.head_dim, "adjacent" if keys.is_gguf else "halves", theta=THETA)
    mlp = mlp_of(keys)
    return decoder_of(
        keys,
        attention=attention,
        layers=[
            LayerSpec(turned if is_on else None, mlp, window)
            for is_on, window in zip(is_turned, windows, strict=True)
        ],
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()

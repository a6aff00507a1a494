"""Read a decoder's numbers by their names in either format, remembering which names were read.

Not here: which numbers a family has, or rope (``rope``). GGUF keys carry the architecture as a
prefix; config.json keys are the ones Hugging Face writes.

Always true: after ``finish`` a key that would change the arithmetic was read, or its value is
neutral; otherwise the load is refused with the key's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from insitu.weights.errors import ModelFileError
from insitu.weights.metadata import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.weights.metadata import Metadata
    from insitu.weights.source import TensorSource

D = TypeVar("D")
MAX_SIZE = 1 << 24
MAX_MODEL_LEN = 1 << 24

# Training only, or how to load: no influence on a forward pass.
_IDLE_CONFIG_KEYS = {
    "attention_dropout",
    "attn_pdrop",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "hidden_dropout",
    "initializer_range",
    "layer_norm_eps",
    "max_window_layers",  # asks for nothing where a family does not read it
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
}
_IDLE_GGUF_KEYS = {"vocab_size", "rope.scaling.finetuned"}
# A key that looks like one of these changes the arithmetic: unknown ones are refused.
_MEANINGFUL = re.compile(
    "rope|rotary|attn|attention|expert|moe|router|window|sliding|softcap|scal|multiplier|bias"
    "|norm|mlp|quant|layer|head|hidden|residual|parallel|clip|activation"
)


def refuse(source: TensorSource, where: str, message: str) -> ModelFileError:
    """An error that names the file and the key or tensor at fault."""
    return ModelFileError(source.path, where, message)


class Listener:
    """A source, and what a family read of it: names in GGUF and config.json, and the value."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self.heard: list[tuple[str | None, str | None, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class Keys:
    """Numbers of one model file. Each is asked for by its GGUF and by its config.json name.

    A name of None: that format has no such key, and the default holds.
    """

    def __init__(self, source: TensorSource, architecture: str) -> None:
        self.source = source
        self.is_gguf = source.format == "gguf"
        self._prefix = ""
        if self.is_gguf:
            self._prefix = f"{source.metadata.string('general.architecture', architecture)}."
        self._read: set[str] = set()
        self._heard = source.heard if isinstance(source, Listener) else []

    @property
    def metadata(self) -> Metadata:
        """The file's own keys."""
        return self.source.metadata

    def key(self, gguf: str | None, config: str | None) -> str | None:
        """The whole name in this file's format, which counts as read."""
        name = gguf if self.is_gguf else config
        if name is None:
            return None
        self._read.add(self._prefix + name)
        return self._prefix + name

    def has(self, gguf: str | None, config: str | None) -> bool:
        """Whether the file says it."""
        key = self.key(gguf, config)
        return key is not None and self.metadata.has(key)

    def is_null(self, gguf: str | None, config: str | None) -> bool:
        """Whether the file says that there is none; a key that is absent says nothing."""
        key = self.key(gguf, config)
        return key is not None and key in self.metadata.keys() and not self.metadata.has(key)  # noqa: SIM118

    def integer(
        self,
        gguf: str | None,
        config: str | None,
        default: D = REQUIRED,
        *,
        least: int = 1,
        most: int = MAX_SIZE,
    ) -> int | D:
        """A whole number; a size, unless ``least`` and ``most`` say otherwise."""
        key = self.key(gguf, config)
        if key is None:
            assert default is not REQUIRED
            return self._told(gguf, config, default)
        value = self.metadata.integer(key, default, minimum=least, maximum=most)
        return self._told(gguf, config, value)

    def number(
        self,
        gguf: str | None,
        config: str | None,
        default: D = REQUIRED,
        *,
        least: float = 1e-6,
        most: float = 1e30,
    ) -> float | D:
        """A number; a positive factor, unless ``least`` and ``most`` say otherwise."""
        key = self.key(gguf, config)
        if key is None:
            assert default is not REQUIRED
            return self._told(gguf, config, default)
        value = self.metadata.number(key, default, minimum=least, maximum=most)
        return self._told(gguf, config, value)

    def boolean(self, gguf: str | None, config: str | None, *, default: bool) -> bool:
        """True or false."""
        key = self.key(gguf, config)
        value = default if key is None else self.metadata.boolean(key, default)
        return self._told(gguf, config, value)

    def string(self, gguf: str | None, config: str | None, default: str) -> str:
        """A word."""
        key = self.key(gguf, config)
        value = default if key is None else self.metadata.string(key, default)
        return self._told(gguf, config, value)

    def tell(self, config: str, value: Any) -> None:
        """What a config.json should say although a GGUF file need not."""
        self._told(None, config, value)

    def _told(self, gguf: str | None, config: str | None, value: D) -> D:
        self._heard.append((gguf, config, value))
        return value

    def must_be_off(self, *config: str) -> None:
        """Refuse what a config.json turns on and insitu does not do."""
        if self.is_gguf:
            return
        for key in config:
            self._read.add(key)
            if self.metadata.boolean(key, default=False):
                raise refuse(self.source, key, "is not supported")

    def ignore(self, *config: str) -> None:
        """Config keys that this family has and that ask for nothing more."""
        self._read.update(config)

    def refuse(self, where: str | None, message: str) -> ModelFileError:
        """An error about a key."""
        return refuse(self.source, where or "", message)

    def finish(self) -> None:
        """Refuse what was not read and is not known to mean nothing."""
        unread = [key for key in self.metadata.keys() if key not in self._read]  # noqa: SIM118
        refused = self._unread_gguf(unread) if self.is_gguf else self._unread_config(unread)
        if refused is not None:
            raise refuse(self.source, refused, "is not supported")

    def _unread_gguf(self, unread: Sequence[str]) -> str | None:
        for key in unread:
            name = key.removeprefix(self._prefix)
            if name == key or name in _IDLE_GGUF_KEYS:
                continue
            # A count or window of zero asks for nothing.
            if name.startswith(("expert_", "attention.sliding_window")) and not (
                self.metadata.integer(key, minimum=0, maximum=MAX_MODEL_LEN)
            ):
                continue
            return key
        return None

    def _unread_config(self, unread: Sequence[str]) -> str | None:
        for key in unread:
            if key in _IDLE_CONFIG_KEYS or not self.metadata.has(key):
                continue
            if _MEANINGFUL.search(key.lower()) and not _is_neutral(self.metadata, key):
                return key
        return None


def _is_neutral(keys: Metadata, key: str) -> bool:
    """False, or a value that is no boolean at all (which is not neutral)."""
    try:
        return not keys.boolean(key)
    except ModelFileError:
        return False

"""Write a file tensor by tensor, in any order, and go on where an earlier run was stopped.

Until it is whole the file is ``NAME.partial``; beside it ``NAME.partial.json`` says which tensors
are in it, and of which run they are.

Not here: what is written. Always true: NAME appears in one rename, whole.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from insitu.kernels.block_parts import Bytes
    from insitu.quantize.layout import Target


class Form(Protocol):
    """A format: how the file begins, where its tensors lie, and what their blocks are there."""

    path: Path
    header: bytes
    targets: list[Target]
    num_bytes: int  # after the header

    def prepare(self) -> None:
        """Write what lies beside the file."""
        ...

    def stored(self, target: Target, blocks: bytes | memoryview) -> bytes | memoryview:
        """A tensor's blocks as they lie in the file."""
        ...

    def blocks(self, target: Target, stored: bytes) -> bytes | Bytes:
        """The way back."""
        ...


class PartialFile:
    """The file on its way; a context that leaves it resumable when left by an error."""

    def __init__(self, form: Form, identity: Mapping[str, str]) -> None:
        self._form, path = form, form.path
        self._draft = path.with_name(f"{path.name}.partial")
        self._journal = path.with_name(f"{path.name}.partial.json")
        self._targets = {target.name: target for target in form.targets}
        self._base = len(form.header)
        self._identity = dict(identity)
        self._size = self._base + form.num_bytes
        self.done: dict[str, Any] = self._resumed()
        if not self.done:
            self._draft.write_bytes(form.header)
        self._file = self._draft.open("r+b")
        self._file.truncate(self._size)

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._draft, self._form.path)
            self._journal.unlink(missing_ok=True)

    def write(self, name: str, blocks: bytes | memoryview, note: Any) -> None:
        """One tensor; ``note`` is kept with its name."""
        target = self._targets[name]
        stored = self._form.stored(target, blocks)
        assert len(stored) == target.num_bytes, f"{name}: {len(stored)} of {target.num_bytes} bytes"
        self._file.seek(self._base + target.offset)
        self._file.write(stored)
        self._file.flush()
        self.done[name] = note
        draft = self._journal.with_suffix(".new")
        draft.write_text(json.dumps({"identity": self._identity, "done": self.done}))
        os.replace(draft, self._journal)

    def read(self, name: str) -> bytes | Bytes:
        """The blocks of a tensor that was written."""
        target = self._targets[name]
        self._file.seek(self._base + target.offset)
        return self._form.blocks(target, self._file.read(target.num_bytes))

    def _resumed(self) -> dict[str, Any]:
        """What an earlier run of the same kind has done."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            values = json.loads(self._journal.read_text())
            is_whole = self._draft.stat().st_size == self._size
            if values["identity"] == self._identity and is_whole:
                return {
                    name: note for name, note in values["done"].items() if name in self._targets
                }
        return {}

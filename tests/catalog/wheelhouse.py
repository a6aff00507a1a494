"""Builds wheels that pip accepts, and a catalogue over them: a package index in a folder."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Running anything of a wheel would leave this file behind.
BOOBY_TRAP = "import pathlib; pathlib.Path({path!r}).write_text('code of a wheel was run')"


@dataclass(frozen=True)
class Wheelhouse:
    """A folder of wheels, served to pip through PIP_FIND_LINKS."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Makes pip see this folder and nothing else."""
        return {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder),
            "PIP_CONFIG_FILE": "/dev/null",
        }

    @property
    def trap(self) -> Path:
        """Exists only if some code of a wheel was run."""
        return self.folder / "trap"

    def add(self, package: str, members: dict[str, bytes]) -> None:
        """Add version 1.0 of a package with these members, and code that must never run."""
        module = package.replace("-", "_")
        info = f"{module}-1.0.dist-info"
        code = BOOBY_TRAP.format(path=str(self.trap)).encode()
        files = {
            f"{module}/__init__.py": code,
            "setup.py": code,
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{module}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)


def file_entry(name: str, data: bytes, parts: list[tuple[str, str]], **other: object) -> str:
    """A catalogue's text with one model made of parts."""
    size_bytes = other.get("size_bytes", len(data))
    sha256 = other.get("sha256", hashlib.sha256(data).hexdigest())
    rows = ", ".join(
        f'{{ package = "{package}", version = "1.0", member = "{member}" }}'
        for package, member in parts
    )
    return (
        f'[models.{name}]\nfile = "{name}.gguf"\nlicence = "MIT"\nsize_bytes = {size_bytes}\n'
        f'sha256 = "{sha256}"\nparts = [{rows}]\n'
    )


def folder_entry(name: str, weights: bytes, package: str, member: str) -> str:
    """A catalogue's text with one model kept as a folder of files."""
    return (
        f'[models.{name}]\nfile = "{name}"\nlicence = "MIT"\nsize_bytes = {len(weights)}\n'
        f'sha256 = "{hashlib.sha256(weights).hexdigest()}"\n'
        f'folder = {{ package = "{package}", version = "1.0", member = "{member}" }}\n'
    )

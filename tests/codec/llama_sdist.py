"""Vocabularies and chat templates that ship in the source distribution of llama-cpp-python.

Always true: the archive has the digest written here; none of its code is run by these tests.
``INSITU_TEST_LLAMA_SDIST`` names an archive that is there already.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_INSIDE = "/vendor/llama.cpp/models/"


@cache
def models_of_llama_cpp(folder: Path) -> Path:
    """The archive's models folder, fetched and unpacked below ``folder`` once."""
    unpacked = folder / f"llama-cpp-python-{VERSION}"
    if unpacked.is_dir():
        return unpacked
    named = os.environ.get("INSITU_TEST_LLAMA_SDIST")
    archive = Path(named) if named else _download(folder)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    staging = unpacked.with_suffix(".part")
    staging.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition(_INSIDE)[2]
            if inside and member.isfile():
                target = staging / inside
                target.parent.mkdir(exist_ok=True)
                data = tar.extractfile(member)
                assert data is not None
                target.write_bytes(data.read())
    staging.rename(unpacked)
    return unpacked


def _download(folder: Path) -> Path:
    wanted = f"llama-cpp-python=={VERSION}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, "--dest", str(folder), wanted], check=True)
    return folder / f"llama_cpp_python-{VERSION}.tar.gz"

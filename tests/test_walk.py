"""docs/walk.md, walked: one streamed chat through a two-layer random model, in this process.

Every function that the page names is called, and first called in the page's order.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tiny_model import write_gguf

import insitu
from insitu.llm.build import build
from insitu.policy.gate import LimitGate
from insitu.policy.limits import Limits
from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).parent.parent
STEP = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py)` `(?P<name>[\w.]+)`", re.MULTILINE)


def steps() -> list[tuple[str, str]]:
    """(file, function) of every numbered step of the page."""
    return STEP.findall((ROOT / "docs" / "walk.md").read_text())


def package_root() -> str:
    """Where the package lies, installed or not."""
    return str(Path(insitu.__file__).parent) + "/"


class Walk:
    """Notes each function's first call, in all threads begun after it was made."""

    def __init__(self) -> None:
        self.is_on = False
        self.called: dict[tuple[str, str], None] = {}
        self._root = package_root()

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """A profile function."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(self._root):
            self.called.setdefault((code.co_filename[len(self._root) :], code.co_qualname))


@pytest.fixture
def walk() -> Iterator[Walk]:
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    yield walk
    sys.setprofile(None)
    threading.setprofile(None)


def test_the_page_is_the_walk(walk: Walk, tmp_path: Path) -> None:
    path = tmp_path / "two-layers.gguf"
    write_gguf(path, num_layers=2)
    generator = build(path, name="tiny", threads=2)
    try:
        text = asyncio.run(
            ask(create_app(generator, ServerOptions(gate=LimitGate(lambda _: Limits()))), walk)
        )
    finally:
        generator.close()
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    finishes = [json.loads(one)["choices"][0]["finish_reason"] for one in events[:-1]]
    assert finishes[-1] in {"length", "stop"}
    named = steps()
    assert len(named) == 23
    called = list(walk.called)
    missing = [step for step in named if step not in walk.called]
    assert not missing
    assert sorted(named, key=called.index) == named


async def ask(app: Any, walk: Walk) -> str:
    """One streamed chat; the walk is watched from the request on."""
    transport = httpx.ASGITransport(app=app)
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "seed": 1,
        "stream": True,
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        walk.is_on = True
        answer = await client.post("/v1/chat/completions", json=body)
        walk.is_on = False
    assert answer.status_code == 200, answer.text
    return answer.text

"""A program that never closes its LLM ends as if it had: nothing said, no status of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from insitu.llm.front_door import LLM

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = """
import sys, threading, time
from insitu import LLM, SamplingParams
llm = LLM(sys.argv[1], threads=1)
llm.generate("hello", SamplingParams(max_tokens=2))
"""
ENDS = {
    "runs out": "",
    "leaves": "sys.exit(3)",
    "fails": "def f(mine):\n    raise KeyError(3)\ntry:\n    f(llm)\nexcept KeyError as kept:\n"
    "    error = kept\nsys.exit(3)",
    "is kept by a cycle": "class Node: pass\nnode = Node()\nnode.me, node.llm = node, llm\ndel llm",
    "runs a step": "more = SamplingParams(max_tokens=400, ignore_eos=True)\n"
    "ask = llm._generator\n"
    "from insitu.types import Request\n"
    "prepared = ask.preparer.prepare(Request('x', 'default', prompt='a', sampling=more))\n"
    "ask.submit(prepared, lambda output: None)\ntime.sleep(0.02)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nothing_is_said_when_a_program_ends_without_closing(random_path: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + end, str(random_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == (3 if "sys.exit(3)" in end else 0)


def test_an_llm_that_nobody_holds_ends_its_thread(random_path: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(random_path, threads=1)
    mine = [one for one in threading.enumerate() if one not in before]
    assert any(one.name == "insitu-engine" for one in mine)
    del llm
    for thread in mine:
        thread.join(timeout=10)
    assert not any(one.is_alive() for one in mine)

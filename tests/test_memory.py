"""A server under load holds what its plan says: never much more, and nearly all of it once it may.

Measured is what cannot be given back or shared: RssAnon and RssShmem of the server's process.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from held_memory import MemoryWatch, held_bytes, plan_of
from live_server import LiveServer, live_server

# Weights and KV are most of what is held, and 3,600 tokens fill the KV cache.
FLAGS = ("--kv-cache-bytes", "160MiB", "--kv-cache-dtype", "f32", "--max-body-bytes", "1MiB")
NUM_REQUESTS = 4
NUM_SAMPLED = 80  # long enough that all requests hold their blocks at once
TOLERANCE = 0.05
BLOCKS = "insitu_kv_blocks_used "

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc"),
]


class Watch(threading.Thread):
    """Follows the memory and the KV blocks in use of a server, keeping the most of each."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._is_over = threading.Event()
        self.most_bytes = 0
        self.most_blocks = 0

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            self.most_bytes = max(self.most_bytes, held_bytes(self._server.process.pid))
            self.most_blocks = max(self.most_blocks, blocks_used(self._server))

    def end(self) -> None:
        self._is_over.set()
        self.join()


def blocks_used(server: LiveServer) -> int:
    lines = server.client.get("/metrics").text.splitlines()
    return int(float(next(one for one in lines if one.startswith(BLOCKS)).split()[-1]))


LOADING = """
import sys
from pathlib import Path
import tokenizers
from insitu.codec.chat import load_chat_template
from insitu.codec.tokenizer import load_tokenizer
from insitu.engine.loop import tune_process
from insitu.kernels import native
from insitu.kernels.passes import lower
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

tune_process()
print("ready", flush=True)
input()
source = open_source(Path(sys.argv[1]))
model = load_model(source)
tokenizer = load_tokenizer(source)
template = load_chat_template(source, tokenizer)
limits = native.Limits(64, 16, 16, 64, 4)
loaded = native.Native(lower(model.program), kv=kv_layout(model.spec), limits=limits, num_threads=2)
print("loaded", flush=True)
input()
"""


def test_loading_holds_no_more_than_weights_and_vocabulary(smollm2_path: Path) -> None:
    """Nothing is held twice: neither what is packed nor what a vocabulary is built from."""
    items = {item["name"]: item["at_start_bytes"] for item in plan_of(smollm2_path)["items"]}
    command = [sys.executable, "-c", LOADING, str(smollm2_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before_bytes = held_bytes(process.pid)
        watch = MemoryWatch(process.pid, every_s=0.002)
        watch.start()
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "loaded\n"
        most_bytes = watch.end() - before_bytes
        print(file=process.stdin, flush=True)
    assert most_bytes <= items["weights"] + items["vocabulary"]
    assert most_bytes >= items["weights"]


def test_a_server_holds_what_its_plan_says(smollm2_path: Path) -> None:
    plan = plan_of(smollm2_path, *FLAGS)
    num_tokens = plan["num_blocks"] // NUM_REQUESTS * plan["block_size"]
    generator = random.Random(7)  # noqa: S311
    prompts = [
        [generator.randrange(100, 40_000) for _ in range(num_tokens - NUM_SAMPLED)]
        for _ in range(NUM_REQUESTS)
    ]
    with live_server(smollm2_path, *FLAGS) as server:
        at_start_bytes = held_bytes(server.process.pid)
        watch = Watch(server)
        watch.start()
        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            wanted = {"max_tokens": NUM_SAMPLED, "ignore_eos": True}
            list(pool.map(lambda prompt: server.complete(prompt, **wanted), prompts))
            server.complete(prompts[0][:9], max_tokens=2, guided_choice=["A", "B"])
        watch.end()
        after_bytes = held_bytes(server.process.pid)
    most_bytes = max(watch.most_bytes, after_bytes)
    print(f"{most_bytes / 2**20:.1f} of {plan['at_most_bytes'] / 2**20:.1f} MiB at most")  # noqa: T201
    assert watch.most_blocks >= 0.97 * plan["num_blocks"]
    assert at_start_bytes <= (1 + TOLERANCE) * plan["at_start_bytes"]
    assert most_bytes <= (1 + TOLERANCE) * plan["at_most_bytes"]
    assert after_bytes >= (1 - TOLERANCE) * plan["at_most_bytes"]


def test_large_bodies_stay_within_the_plan_and_are_given_back(smollm2_path: Path) -> None:
    """Prompts of 4 MB from many clients at once, beside a KV cache that is full."""
    flags = ("--kv-cache-bytes", "48MiB")
    plan = plan_of(smollm2_path, *flags)
    words = ("the quick brown fox jumps over it " * 2**17)[: 4 * 2**20]
    fields: list[dict[str, Any]] = [
        {"prompt": words},
        {"prompt": [5] * (2 * 10**6)},
        {"messages": [{"role": "user", "content": words}]},
    ]
    bodies = [json.dumps({"model": "default", "max_tokens": 2, **one}) for one in fields]
    with live_server(smollm2_path, *flags) as server:
        full = min(plan["max_model_len"], plan["kv_tokens"]) - 8
        server.complete([5] * full, max_tokens=2)
        before_bytes = held_bytes(server.process.pid)
        watch = MemoryWatch(server.process.pid, every_s=0.005)
        watch.start()

        def send(index: int) -> int:
            path = "/v1/chat/completions" if index % 3 == 2 else "/v1/completions"
            headers = {"content-type": "application/json"}
            answer = server.client.post(path, content=bodies[index % 3], headers=headers)
            return answer.status_code

        with ThreadPoolExecutor(16) as pool:
            statuses = set(pool.map(send, range(24)))
        most_bytes = watch.end()
        after_bytes = held_bytes(server.process.pid)
        server.complete([5] * 9, max_tokens=2)
    print(f"{before_bytes / 2**20:.1f}, {most_bytes / 2**20:.1f}, {after_bytes / 2**20:.1f} MiB")  # noqa: T201
    assert statuses <= {400, 503}
    assert 400 in statuses
    assert most_bytes <= (1 + TOLERANCE) * plan["at_most_bytes"]
    assert after_bytes <= (1 + TOLERANCE) * before_bytes

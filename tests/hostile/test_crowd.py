"""A crowd of clients at one server whose queue and KV cache are always nearly full.

Whoever behaves sees nothing but answers and 429; nothing is held afterwards; memory stays within
the plan; golden rows are the same to the last bit before, meanwhile and after.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from held_memory import MemoryWatch, plan_of
from hostile.crowd import Crowd
from live_server import LiveServer, live_server
from test_golden import SMOLLM2, ask, golden

FLAGS = ("--kv-cache-bytes", "48MiB", "--max-num-waiting", "44")
TOLERANCE = 0.05
IDLE_TIMEOUT_S = 15
# What must return to zero: see docs/metrics.md.
HELD = (
    "insitu_http_requests_active",
    "insitu_num_requests_running",
    "insitu_num_requests_waiting",
    "insitu_kv_blocks_used",
    "insitu_engine_step_age_seconds",
    "insitu_engine_sequences",
    "insitu_engine_requests_open",
    "insitu_engine_queued_items",
    "insitu_streams_open",
)

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc"),
]


def series(server: LiveServer) -> dict[str, float]:
    """Every series without labels; those with labels summed."""
    values: dict[str, float] = {}
    for line in server.client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def series_when_idle(server: LiveServer) -> dict[str, float]:
    until_s = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        values = series(server)
        held = {name: values[name] for name in HELD if values[name]}
        if not held:
            return values
        assert time.monotonic() < until_s, f"still held: {held}"
        time.sleep(0.1)


@pytest.mark.parametrize(
    "duration_s",
    [
        5,
        pytest.param(
            300,
            marks=[pytest.mark.slow(reason="five minutes of load"), pytest.mark.timeout(600)],
        ),
    ],
)
def test_nobody_is_touched_by_a_crowd(smollm2_path: Path, duration_s: float) -> None:
    plan = plan_of(smollm2_path, *FLAGS)
    rows = golden(SMOLLM2)["rows"]
    with live_server(smollm2_path, *FLAGS) as server:
        watch = MemoryWatch(server.process.pid)
        watch.start()
        before = [ask(server, row) for row in rows]
        place = urlsplit(server.url)
        bodies = [
            {
                "model": "default",
                "prompt": row["prompt_ids"],
                "max_tokens": len(row["steps"]),
                "temperature": 0,
                "seed": 0,
                "logprobs": 5,
                "return_token_ids": True,
            }
            for row in rows
        ]
        assert place.hostname is not None
        assert place.port is not None
        crowd = Crowd(place.hostname, place.port, list(zip(bodies, before, strict=True)))
        asyncio.run(crowd.run(duration_s))
        values = series_when_idle(server)
        after = [ask(server, row) for row in rows]
        most_bytes = watch.end()
        is_alive = server.process.poll() is None
    print(f"{dict(crowd.seen)}; {most_bytes / 2**20:.1f} MiB held")  # noqa: T201
    print({name: value for name, value in values.items() if name.endswith("_total")})  # noqa: T201
    assert not crowd.faults, f"{len(crowd.faults)} faults: " + "\n".join(crowd.faults[:5])
    assert is_alive
    assert after == before
    assert most_bytes <= (1 + TOLERANCE) * plan["at_most_bytes"]
    ended = ("finished", "aborted", "failed")
    assert values["insitu_engine_sequences_submitted_total"] == sum(
        values[f"insitu_engine_sequences_{how}_total"] for how in ended
    )
    assert values["insitu_engine_sequences_failed_total"] == 0
    assert values["insitu_requests_received_total"] == values["insitu_requests_total"]
    assert min(crowd.seen[one] for one in ("behaves: 200", "leaves", "rubbish", "holds")) > 0

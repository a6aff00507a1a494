"""Golden rows of a float32 reference, asked of a real server over HTTP.

A row's tokens must be the reference's for as long as the reference was sure (its margin to the
second-best token exceeds 0.35: 8-bit activations shift log-probabilities a little), and the first
step's log-probabilities must lie close to the reference's.
"""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live_server import LiveServer, live_server

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
SURE_MARGIN = 0.35
MAX_MEAN_DIFFERENCE = 0.1
MAX_ROW_DIFFERENCE = 0.2

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1"
OTHERS = (
    "gemma-3-270m-Q4_K_M",
    "qwen2.5-coder-0.5b-instruct",
    "qwen2.5-coder-1.5b-instruct",
)


def golden(name: str) -> dict[str, Any]:
    """The golden file of a model."""
    rows: dict[str, Any] = json.loads((GOLDEN / f"{name}.shared.json").read_text())
    return rows


def sure_tokens(row: dict[str, Any]) -> list[int]:
    """The row's tokens up to the first step at which the reference hesitated."""
    tokens = []
    for step in row["steps"]:
        if step["margin"] <= SURE_MARGIN:
            break
        tokens.append(step["token"])
    return tokens


def ask(server: LiveServer, row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Complete a row's prompt for as many tokens as the row has."""
    return server.complete(row["prompt_ids"], max_tokens=len(row["steps"]), **fields)


def first_step_difference(row: dict[str, Any], choice: dict[str, Any]) -> float:
    """Mean |log-probability difference| over the reference's five likeliest first tokens."""
    logprobs = choice["logprobs"]
    ours = dict(zip(logprobs["top_token_ids"][0], logprobs["top_token_logprobs"][0], strict=True))
    differences = [abs(ours[token] - value) for token, value in row["steps"][0]["top5"]]
    return float(sum(differences) / len(differences))


def check_rows(server: LiveServer, name: str) -> None:
    """Every row of a model: tokens, distance of log-probabilities, tokenising, rendering."""
    file = golden(name)
    differences = []
    for row in file["rows"]:
        choice = ask(server, row, logprobs=20)
        sure = [token for token in sure_tokens(row) if token not in file["eos"]]
        assert choice["token_ids"][: len(sure)] == sure, row["prompt_text"]
        differences.append(first_step_difference(row, choice))
        check_tokens_of(server, row)
    assert max(differences) <= MAX_ROW_DIFFERENCE, differences
    assert sum(differences) / len(differences) < MAX_MEAN_DIFFERENCE, differences


def check_tokens_of(server: LiveServer, row: dict[str, Any]) -> None:
    """``/v1/tokenize`` gives the row's ids, and a chat row's template its text."""
    body: dict[str, Any] = {"model": "default", "prompt": row["prompt_text"]}
    body["parse_special"] = row["kind"] == "chat"
    answer = server.client.post("/v1/tokenize", json=body).json()
    assert answer["tokens"] == row["prompt_ids"]
    assert answer["count"] == len(row["prompt_ids"])
    if row["kind"] == "chat":
        body = {"model": "default", "messages": row["messages"]}
        answer = server.client.post("/v1/tokenize", json=body).json()
        assert answer["prompt"] == row["prompt_text"]
        assert answer["tokens"] == row["prompt_ids"]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[LiveServer]:
    """SmolLM2 behind HTTP with every default."""
    with live_server(smollm2_path) as server:
        yield server


@pytest.mark.model
def test_smollm2_gives_the_golden_rows(smollm2: LiveServer) -> None:
    check_rows(smollm2, SMOLLM2)


@pytest.mark.model
def test_rows_sent_together_in_any_order_are_the_same_to_the_last_bit(smollm2: LiveServer) -> None:
    rows = golden(SMOLLM2)["rows"]
    alone = [ask(smollm2, row) for row in rows]
    generator = random.Random(7)  # noqa: S311
    for _ in range(3):
        order = list(range(len(rows)))
        generator.shuffle(order)
        delays = [generator.uniform(0, 0.1) for _ in order]

        def late(index: int, delay: float) -> dict[str, Any]:
            time.sleep(delay)
            return ask(smollm2, rows[index])

        with ThreadPoolExecutor(len(order)) as pool:
            together = list(pool.map(late, order, delays))
        for index, choice in zip(order, together, strict=True):
            assert choice == alone[index]


@pytest.mark.model
@pytest.mark.parametrize(
    ("isa", "threads"), [("avx512", "1"), ("avx2", "2")], ids=["avx512-1", "avx2-2"]
)
def test_instruction_sets_and_threads_give_the_same_bits(
    smollm2: LiveServer, smollm2_path: Path, isa: str, threads: str
) -> None:
    from insitu.kernels.native import available_isas

    if not any(available.startswith(isa) for available in available_isas()):
        pytest.skip(f"this processor lacks {isa}")
    rows = golden(SMOLLM2)["rows"]
    with live_server(smollm2_path, "--threads", threads, isa=isa) as other:
        for row in rows:
            assert ask(other, row) == ask(smollm2, row)


@pytest.mark.model
@pytest.mark.slow(reason="plain C++ runs a real model at a few tokens a second")
def test_generic_code_gives_the_same_bits(smollm2: LiveServer, smollm2_path: Path) -> None:
    with live_server(smollm2_path, isa="generic") as other:
        for row in golden(SMOLLM2)["rows"]:
            assert ask(other, row) == ask(smollm2, row)


@pytest.mark.slow(reason="needs models of up to 1.1 GB, named by INSITU_TEST_MODELS_DIR")
@pytest.mark.parametrize("name", OTHERS)
def test_others_give_the_golden_rows(name: str) -> None:
    path = Path(os.environ["INSITU_TEST_MODELS_DIR"]) / f"{name}.gguf"
    with live_server(path) as server:
        check_rows(server, name)

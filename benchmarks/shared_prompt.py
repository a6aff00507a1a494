"""Time to first token of a second request that begins like the first, against the first's.

    python benchmarks/shared_prompt.py smollm2-135m --runs 5

Each run is a system prompt of its own of ``--tokens`` tokens, and two questions after it, asked one
after the other of one server. Prints both times of each run, and the median ratio. Not a gate.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

import httpx
from serving import start, url_of

TEXT = (
    "you answer the user in short and plain words about a river, an old bridge, its stones and "
    "what people carry over it on market days when rain makes the road slow"
)
QUESTIONS = ("What do people carry over the bridge?", "When is the road slow, and why?")


def system_prompt(client: httpx.Client, chance: random.Random, num_tokens: int) -> str:
    """Random words that are so many tokens, or a few more."""
    known = TEXT.split()
    words = chance.choices(known, k=num_tokens // 2)
    while True:
        text = " ".join(words)
        answer = client.post("/tokenize", json={"model": "default", "prompt": text}).json()
        if answer["count"] >= num_tokens:
            return text
        words += chance.choices(known, k=max(1, (num_tokens - answer["count"]) // 2))


def first_token_s(client: httpx.Client, system: str, question: str) -> tuple[float, int, int]:
    """Seconds to the first token; the prompt's tokens, and how many of them were found."""
    body: dict[str, Any] = {
        "model": "default",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    elapsed = None
    with client.stream("POST", "/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if elapsed is None and any(one["delta"].get("content") for one in chunk["choices"]):
                elapsed = time.perf_counter() - started
            usage = chunk.get("usage")
    if elapsed is None:
        raise SystemExit("the answer has no text")
    return elapsed, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def measure(url: str, runs: int, num_tokens: int) -> list[dict[str, float]]:
    """One entry a run."""
    chance = random.Random(1000)
    results = []
    with httpx.Client(base_url=url, trust_env=False, timeout=300) as client:
        first_token_s(client, "Be brief.", "Hello?")  # the process is warm, the prompt is not
        for _ in range(runs):
            system = system_prompt(client, chance, num_tokens)
            first_s, prompt_tokens, _ = first_token_s(client, system, QUESTIONS[0])
            second_s, _, cached_tokens = first_token_s(client, system, QUESTIONS[1])
            results.append(
                {
                    "prompt_tokens": prompt_tokens,
                    "first_s": round(first_s, 4),
                    "second_s": round(second_s, 4),
                    "cached_tokens": cached_tokens,
                    "ratio": round(second_s / first_s, 4),
                }
            )
    return results


def main() -> None:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    process = start(options.model)
    try:
        runs = measure(url_of(process), options.runs, options.tokens)
    finally:
        process.terminate()
        process.communicate()
    ratio = statistics.median(run["ratio"] for run in runs)
    print(json.dumps({"runs": runs, "median_ratio": ratio}))


if __name__ == "__main__":
    main()

"""Compile every schema of public collections, make an answer of each, and judge it.

    python benchmarks/schemas.py MODEL jsonschema-4.23.0/json/tests bfcl/bfcl_eval/data

MODEL gives the vocabulary (a GGUF file or a folder). The collections are unpacked from the source
distribution of `jsonschema` (the JSON-Schema-Test-Suite) and the wheel of `bfcl-eval`; validators
are those of the `jsonschema` package, each draft its own. Answers are random walks under the mask,
which end as soon as they may.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # a package of its own: pip install jsonschema
import numpy as np

from insitu.codec.grammar import GrammarCompiler, grammar_of
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.refusal import Refusal
from insitu.types import Guide
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFTS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
# Names that BFCL writes for JSON schema's types.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
MOST_TOKENS = 300


@dataclass
class Tally:
    """What became of a collection's schemas."""

    times_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    valid: int = 0
    invalid: list[str] = field(default_factory=list)
    cut: int = 0
    failed: Counter[str] = field(default_factory=Counter)


def suite(folder: Path, draft: str) -> Iterator[Any]:
    """The schemas of a draft's folder, optional ones left out."""
    for path in sorted((folder / draft).glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            yield group["schema"]


def functions(folder: Path) -> Iterator[Any]:
    """The parameters of every function of BFCL."""
    for path in sorted(folder.rglob("*.json")):
        for line in path.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if not isinstance(entry, dict):
                continue
            given = entry.get("function", [entry] if "parameters" in entry else [])
            for one in given if isinstance(given, list) else [given]:
                if isinstance(one, dict) and isinstance(one.get("parameters"), dict):
                    yield typed(one["parameters"])


def typed(schema: Any) -> Any:
    """A schema in JSON schema's own words."""
    if isinstance(schema, list):
        return [typed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: typed(value) for key, value in schema.items()}
    kind = made.get("type")
    if isinstance(kind, str) and kind in TYPES:
        made["type"] = TYPES[kind]
        if made["type"] is None:
            del made["type"]
    return made


def compiled(schema: Any, compiler: GrammarCompiler, tally: Tally) -> Any:
    """Compile one schema; None where it is refused."""
    started_s = time.perf_counter()
    try:
        constraint = compiler.compile(grammar_of(Guide("json_schema", schema, "schema")), "schema")
    except Refusal as refusal:
        reason = refusal.message.removeprefix("schema cannot be compiled: ").split(":")[0][:60]
        tally.refused[reason] += 1
        return None
    tally.times_s.append(time.perf_counter() - started_s)
    return constraint


def answer(
    constraint: Any, schema: Any, tokenizer: Tokenizer, validator: Any, tally: Tally
) -> None:
    """Make one answer of a schema, and judge it."""
    try:
        text = walk(constraint, tokenizer, random.Random(0))
    except Exception as error:
        tally.failed[f"{type(error).__name__}: {str(error)[:60]}"] += 1
        return
    if text is None:
        tally.cut += 1
    elif is_valid(validator(schema), text):
        tally.valid += 1
    else:
        tally.invalid.append(f"{json.dumps(schema)[:200]} -> {text[:100]}")


def is_valid(validator: Any, text: str) -> bool:
    """Whether a text is JSON that its schema allows."""
    try:
        return bool(validator.is_valid(json.loads(text)))
    except Exception as error:
        print("  validator:", type(error).__name__, str(error)[:80])
        return False


@cache
def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that are a quote or a bracket that closes something."""
    known = range(tokenizer.vocab_size)
    return [one for one in known if tokenizer.token_bytes(one) in {b'"', b"}", b"]"}]


def walk(constraint: Any, tokenizer: Tokenizer, draw: random.Random) -> str | None:
    """A random answer; None where it is too long."""
    bits = np.zeros(-(-tokenizer.vocab_size // 32) * 4, np.uint8)
    ends, closings = sorted(tokenizer.end_ids), closing_ids(tokenizer)
    spelt = b""
    for _ in range(MOST_TOKENS):
        bits[:] = 0
        constraint.fill_mask(memoryview(bits.data))
        ids = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if np.isin(ends, ids).any():
            return spelt.decode()
        # A quote or a bracket that closes something ends sooner than another word.
        closing = [one for one in closings if bits[one // 8] >> one % 8 & 1]
        token_id = int(draw.choice(closing if closing and draw.random() < 0.7 else ids))
        constraint.advance(token_id)
        spelt += tokenizer.token_bytes(token_id)
    return None


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("suite", type=Path)
    parser.add_argument("bfcl", type=Path)
    parser.add_argument("--every", type=int, default=1, help="answers of every so many of BFCL")
    parser.add_argument("--only", help="one collection: a draft, or BFCL")
    given = parser.parse_args()
    tokenizer = load_tokenizer(open_source(given.model))
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    compiler.compile(grammar_of(Guide("json_object")), "warm")
    sets = {draft: (suite(given.suite, draft), DRAFTS[draft]) for draft in DRAFTS}
    sets["BFCL"] = (functions(given.bfcl), jsonschema.Draft202012Validator)
    print("| schemas | compiled | p50 ms | p99 ms | most ms | valid | cut | invalid | failed |")
    for name, (schemas, validator) in sets.items():
        if given.only not in {None, name}:
            continue
        tally = Tally()
        unique = {json.dumps(one, sort_keys=False): one for one in schemas}
        every = given.every if name == "BFCL" else 1
        for index, schema in enumerate(unique.values()):
            constraint = compiled(schema, compiler, tally)
            if constraint is not None and index % every == 0:
                answer(constraint, schema, tokenizer, validator, tally)
        times = np.array(tally.times_s) * 1e3
        low, high = np.percentile(times, [50, 99])
        row = [
            f"{name}: {len(unique)}",
            len(times),
            f"{low:.2f}",
            f"{high:.1f}",
            f"{times.max():.1f}",
        ]
        row += [tally.valid, tally.cut, len(tally.invalid), sum(tally.failed.values())]
        print("|", " | ".join(map(str, row)), "|")
        print("  refused:", dict(tally.refused.most_common()))
        for one in tally.invalid:
            print("  invalid:", one)
        if tally.failed:
            print("  failed:", dict(tally.failed))


if __name__ == "__main__":
    main()

"""`insitu bench native`: the report's shape, shares that can be true, refusals by name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernels.tiny_decoder import linear
from kernels.tiny_operators import over_rows
from tiny_model import TinyShape, write_gguf

from insitu.bench.cases import Case, Room, Wish
from insitu.bench.errors import BenchError
from insitu.bench.native import Effort, measure
from insitu.bench.plot import check_plot, draw
from insitu.bench.rig import chunks_of
from insitu.bench.work import Span, step_work, total
from insitu.engine.machine import Memory
from insitu.engine.plan import Wanted
from insitu.kernels.blocks import BlockType
from insitu.kernels.ceilings import Ceilings
from insitu.kernels.kv_layout import KVLayout
from insitu.kernels.native import available_isas, packed_bytes
from insitu.kernels.pack import Experts
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.bench.report import Report
    from insitu.kernels.program import Program, Tensor

BRIEF = Effort(seconds=0.01, max_repeats=3, profiled=1, peak_seconds=0.001, is_cold=False)
WISH = Wish(batches=(1, 3), contexts=(16, 200), prefills=(40,))
AMPLE = Memory(2**32, "a test")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    types = {"attn_q": BlockType.Q4_0, "ffn_down": BlockType.F16}
    write_gguf(made, block_types=types, max_model_len=256)
    return made


@pytest.fixture
def model(path: Path) -> Iterator[LoadedModel]:
    source = open_source(path)
    yield load_model(source)
    source.close()


def run(model: LoadedModel, wish: Wish = WISH, limit: Memory = AMPLE) -> Report:
    seen: list[tuple[str, int, int]] = []
    report = measure(
        model, Wanted(threads=2), wish, BRIEF, lambda *event: seen.append(event), limit
    )
    assert [event[1] for event in seen] == list(range(len(report.rows) + 1))
    return report


def test_every_case_is_measured_or_listed(model: LoadedModel) -> None:
    report = run(model)
    measured = [row.case for row in report.rows]
    left_out = [one.case for one in report.skipped]
    assert set(measured) | set(left_out) == set(WISH.cases())
    assert not set(measured) & set(left_out)
    # 200 tokens and 40 more fit 256; nothing here is too long.
    assert left_out == []
    # A tiny model's matrices are in the first cache, raw reads wake every thread: only the sign
    # and the order of magnitude of a share are certain.
    for row in report.rows:
        assert 0 < row.share_of_ceiling < 2
        assert row.tokens_per_s > 0
    for phase in ("decode", "prefill"):
        assert any(case.phase == phase for case in measured)
    assert report.peaks.int8 > 1e9
    assert report.peaks.float32 > 1e8


def test_json_has_the_promised_keys_and_no_others(model: LoadedModel) -> None:
    whole: dict[str, Any] = json.loads(json.dumps(run(model).as_json()))
    assert list(whole) == ["ceilings", "decode", "prefill", "operators"]
    assert list(whole["ceilings"]) == ["read_gbps", "int8_gops"]
    share = "share_of_ceiling"
    for row in whole["decode"]:
        assert list(row) == ["batch", "context", "tokens_per_s", "ms_per_step", share]
        assert row["tokens_per_s"] == pytest.approx(1e3 * row["batch"] / row["ms_per_step"], 0.01)
    for row in whole["prefill"]:
        assert list(row) == ["tokens", "context", "tokens_per_s", share]
    one = [r for r in whole["operators"] if (r.get("batch"), r["context"]) == (3, 200)]
    assert {r["operator"] for r in one} >= {"linear blk.*.attn_q", "attention", "sample"}
    assert sum(r["share_of_step"] for r in one) == pytest.approx(1, abs=0.01)
    shares = {r["operator"]: r[share] for r in one}
    assert shares["linear blk.*.attn_q"] > 0
    assert shares["attention"] > 0
    assert shares["sample"] is None  # nothing is counted for it


def test_what_does_not_fit_is_said(model: LoadedModel) -> None:
    wish = Wish(batches=(1, 4), contexts=(16, 300), prefills=(250,))
    report = run(model, wish)
    reasons = {str(one.case): one.reason for one in report.skipped}
    assert reasons["batch 1 at context 300"] == "the model holds 256 tokens, not 300"
    assert "prefill 250 at context 16" in reasons
    assert [str(row.case) for row in report.rows] == [
        "batch 1 at context 16", "batch 4 at context 16", "prefill 250 at context 0"
    ]  # fmt: skip


def test_memory_bounds_the_cases() -> None:
    room = Room(max_model_len=4096, max_num_blocks=10, block_size=32)
    cases = [Case("decode", 2, 1, 160), Case("decode", 2, 1, 161), Case("prefill", 1, 300, 21)]
    chosen, skipped = room.choose(cases)
    assert chosen == cases[:1]
    assert [one.case for one in skipped] == cases[1:]
    assert skipped[0].reason == "it takes 384 tokens of KV, and memory has room for 320"


def test_nothing_to_measure_is_refused(model: LoadedModel) -> None:
    with pytest.raises(BenchError, match=r"batch 1 at context 300: the model holds 256 tokens"):
        run(model, Wish(batches=(1,), contexts=(300,), prefills=()))
    with pytest.raises(BenchError, match="no batch and no prefill"):
        run(model, Wish(batches=(), contexts=(1,), prefills=()))


def test_work_is_counted_as_the_shapes_say(model: LoadedModel) -> None:
    shape, kv = TinyShape(), kv_layout(model.spec)
    spans = [Span(1, 100), Span(1, 50)]
    work = step_work(model.program, kv, spans, 2)
    attention = work["attention"]
    assert attention.read_bytes == 150 * kv.bytes_per_token
    width = shape.num_heads * shape.head_dim
    assert attention.attention_ops == shape.num_layers * 4 * width * 150
    down = work["linear blk.*.ffn_down"]
    ops = 2 * 2 * shape.num_layers * shape.hidden_size * shape.intermediate_size
    assert (down.int8_ops, down.float32_ops) == (0, ops)  # F16: float32 arithmetic
    weights = sum(packed_bytes(linear) for linear in model.linears)
    embedding = packed_bytes(model.linears[0])  # untied: a row is gathered, the rest is not read
    assert total(work).read_bytes == weights - embedding + attention.read_bytes
    without_logits = step_work(model.program, kv, spans, 0)
    head = "linear output"
    assert (
        without_logits[head].read_bytes == without_logits[head].int8_ops == 0 < work[head].int8_ops
    )


def test_of_a_mixture_the_chosen_experts_are_counted() -> None:
    rng = np.random.default_rng(0)
    q8 = BlockType.Q8_0
    experts = Experts(
        tuple(linear(rng, (q8, q8), (64, 64), 32) for _ in range(4)),
        tuple(linear(rng, (q8,), (32,), 64) for _ in range(4)),
    )
    rows = np.zeros((8, 32), np.float32)

    def record(p: Program, x: Tensor) -> Tensor:
        routing = p.route(x.split([4, 28])[0], 2, is_normalised=True)
        return p.experts("silu", x, routing, experts, 2)

    one = packed_bytes(experts.gate_up[0]) + packed_bytes(experts.down[0])
    for num_rows, num_read in ((1, 2), (8, 4)):
        kv = KVLayout(1, 1, 16)
        work = step_work(over_rows(rows, record), kv, [Span(num_rows, num_rows)], num_rows)
        assert work["experts"].read_bytes == num_read * one
        assert work["experts"].int8_ops == 2 * num_rows * 2 * 3 * 64 * 32


def test_a_prompt_is_taken_in_the_engines_chunks() -> None:
    chunks = chunks_of(Case("prefill", 1, 1200, 100), 512)
    assert chunks == [[Span(512, 612)], [Span(512, 1124)], [Span(176, 1300)]]
    assert sum(span.num_pairs(0) for [span] in chunks) == sum(range(101, 1301))
    assert Span(4, 12).num_pairs(window=10) == 9 + 10 + 10 + 10
    assert Span(4, 12).num_read(window=10) == 12
    assert Span(1, 12).num_read(window=10) == 10
    assert chunks_of(Case("decode", 2, 1, 7), 512) == [[Span(1, 7), Span(1, 7)]]


@pytest.mark.parametrize("isa", [*available_isas()])
def test_peaks_grow_with_the_instruction_set(
    model: LoadedModel, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSITU_ISA", isa)
    wish = Wish(batches=(1,), contexts=(16,), prefills=())
    report = run(model, wish)
    assert report.machine == f"2 threads, {isa}"
    floors = {"generic": 5e8, "avx2": 1e10, "avx512": 2e10}
    assert report.peaks.int8 > floors.get(isa, 1e9)


def test_reads_outside_the_buffer_are_refused(model: LoadedModel) -> None:
    from insitu.engine.plan import make_plan
    from insitu.engine.start import make_native

    native = make_native(model, make_plan(model, Wanted(threads=2, max_num_seqs=1), AMPLE))
    ceilings = Ceilings(native, 1000)
    assert ceilings.num_bytes == 1024
    assert ceilings.read_seconds(64, 960) > 0
    for first, num_bytes in ((0, 1025), (1088, 1), (8, 64)):
        with pytest.raises(ValueError, match="outside the buffer"):
            ceilings.read_seconds(first, num_bytes)
    native.close()
    with pytest.raises(RuntimeError, match="closed"):
        ceilings.read_seconds(0, 64)


def test_a_plot_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BenchError, match=r"ends in one of \.png, \.svg, \.pdf"):
        check_plot(tmp_path / "roof.bmp")
    with pytest.raises(BenchError, match="there is no folder"):
        check_plot(tmp_path / "none" / "roof.svg")
    monkeypatch.setattr("insitu.bench.plot.find_spec", lambda _: None)
    with pytest.raises(BenchError, match=r"pip install 'insitu\[bench\]'"):
        check_plot(tmp_path / "roof.svg")


def insitu(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "insitu", "bench", "native", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_json_alone(path: Path) -> None:
    few = ("--batch", "1,2", "--context", "16,999", "--prefill", "8", "--warm", "--quick")
    done = insitu(path, *few, "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["batch"], row["context"]) for row in rows["decode"]] == [(1, 16), (2, 16)]
    assert "not measured: batch 1 at context 999: the model holds 256" in done.stderr


def test_the_command_prints_tables(path: Path) -> None:
    few = ("--batch", "2", "--context", "16", "--prefill", "8", "--warm", "--quick")
    done = insitu(path, *few)
    assert done.returncode == 0, done.stderr
    for word in ("int8", "decode", "prefill", "linear blk.*.attn_q", "all others"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-model"], "no-such-model"),
        (["x.gguf", "--batch", "0"], "--batch: whole numbers from 1 to 1024"),
        (["x.gguf", "--context", "1,,x"], "--context: whole numbers"),
        (["x.gguf", "--plot", "roof.bmp"], "--plot roof.bmp"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    done = insitu(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_roofline_is_drawn_where_matplotlib_is(model: LoadedModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roof.svg"
    check_plot(path)
    draw(run(model), "tiny", path)
    assert "3 at 200" in path.read_text("utf-8")

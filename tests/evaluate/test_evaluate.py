"""How a model is judged: figures by hand, windows, beside another file, beside its definition."""

from __future__ import annotations

import json
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cli.test_cli import insitu
from tiny_model import Vocabulary, write_gguf

from insitu.evaluate.errors import EvaluateError
from insitu.evaluate.figures import Figures
from insitu.evaluate.models import ROWS, How, opened_native
from insitu.evaluate.run import Evaluation, Wish, evaluate
from insitu.evaluate.text import SAMPLE, cut
from insitu.kernels.blocks import BlockType
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 150  # more than two chunks of rows, and no multiple of either


def run(path: Path, *, how: How | None = None, **wanted: object) -> Evaluation:
    wish = Wish(path, how or How(WINDOW), **{"max_num_tokens": 400, **wanted})  # type: ignore[arg-type]
    return evaluate(wish, lambda *_: None)


def test_figures_of_two_rows_are_those_done_by_hand() -> None:
    ours = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], np.float32))
    theirs = np.log(np.array([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]], np.float32))
    figures = Figures()
    figures.take(ours, theirs, np.array([0], np.int32))
    figures.take(ours[:1], theirs[:1], np.array([1], np.int32))
    report = figures.report(3)
    kl = 0.25 * log(0.25 / 0.5) + 0.5 * log(0.5 / 0.25)
    assert report.perplexity == pytest.approx(exp((log(2) + log(4)) / 2))
    assert report.against_perplexity == pytest.approx(exp((log(4) + log(2)) / 2))
    assert report.kl_mean == pytest.approx(2 * kl / 3)
    assert report.kl_max == pytest.approx(kl)
    assert report.top1_agreement == pytest.approx(1 / 3)
    (middle,) = [one for one in report.calibration if one.count]
    assert (middle.low, middle.count) == (0.5, 2)
    assert middle.confidence == pytest.approx(0.5)
    assert middle.accuracy == 0.5
    assert report.calibration_error == pytest.approx(0, abs=1e-7)


def test_a_calibration_that_is_off_by_half_says_so() -> None:
    figures = Figures()
    logits = np.zeros((4, 2), np.float32)  # half a chance each, id 0 likeliest by its number
    figures.take(logits, None, np.array([1, 1, 1, 1], np.int32))
    report = figures.report(5)
    assert report.calibration_error == pytest.approx(0.5)
    assert report.kl_mean is None
    assert report.top1_agreement is None


def test_windows_start_as_prompts_do(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, pairs={"tokenizer.ggml.add_bos_token": True})
    source = open_source(path)
    windows = cut(source, SAMPLE.read_text(), window=50, max_num_tokens=120)
    source.close()
    assert windows.num_lead == 1
    assert [len(ids) for ids in windows.ids] == [50, 50, 23]
    assert len({int(ids[0]) for ids in windows.ids}) == 1
    text = np.concatenate([ids[1:] for ids in windows.ids])
    source = open_source(path)
    assert np.array_equal(
        cut(source, SAMPLE.read_text(), window=121, max_num_tokens=120).ids[0][1:], text
    )
    source.close()


def test_perplexity_does_not_depend_on_how_rows_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    report = run(path).report
    losses: list[float] = []
    source = open_source(path)
    windows = cut(source, SAMPLE.read_text(), window=WINDOW, max_num_tokens=400)
    source.close()
    with opened_native(path, How(WINDOW, threads=1)) as subject:
        for ids in windows.ids:
            rows = np.concatenate(list(subject.logits(ids))).astype(np.float64)
            assert len(ids) != ROWS
            rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
            losses.extend(-rows[np.arange(len(ids) - 1), ids[1:]])
    assert report.tokens == 400
    assert report.perplexity == pytest.approx(exp(np.mean(losses)), rel=1e-6)


def test_a_file_beside_itself_has_no_distance(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    report = run(path, against=path).report
    assert (report.kl_mean, report.kl_max, report.top1_agreement) == (0.0, 0.0, 1.0)
    assert report.against_perplexity == report.perplexity


def test_float_weights_are_their_own_definition_and_8_bit_inputs_are_not(tmp_path: Path) -> None:
    exact, rounded = tmp_path / "f32.gguf", tmp_path / "q8.gguf"
    write_gguf(exact, block_types=BlockType.F32)
    write_gguf(rounded, block_types=BlockType.Q8_0)
    how = How(WINDOW, "f32")
    close, far = (run(p, how=how, against_definition=True).report for p in (exact, rounded))
    assert close.kl_max is not None
    assert close.kl_max < 1e-6
    assert far.kl_mean is not None
    assert 1e-6 < far.kl_mean < 0.05


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_keys_and_values_of_8_bits_judge_a_text_nearly_alike(
    tmp_path: Path, head_dim: int, window: int
) -> None:
    path = tmp_path / "tiny.gguf"
    pairs = {"llama.attention.sliding_window": window}
    write_gguf(path, block_types=BlockType.F32, head_dim=head_dim, pairs=pairs)
    wide, narrow = (run(path, how=How(WINDOW, dtype)).report for dtype in ("f32", "int8"))
    assert narrow.perplexity != wide.perplexity
    assert narrow.perplexity == pytest.approx(wide.perplexity, rel=0.02)


def test_what_cannot_be_judged_is_named(tmp_path: Path) -> None:
    path, other, text = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "text"
    write_gguf(path)
    write_gguf(other, vocabulary=Vocabulary(("extra",)))
    with pytest.raises(EvaluateError, match="vocabularies differ"):
        run(path, against=other)
    write_gguf(other, pairs={"tokenizer.ggml.add_bos_token": True})
    with pytest.raises(EvaluateError, match="into other tokens"):
        run(path, against=other)
    with pytest.raises(EvaluateError, match="--window 600: the model takes 512"):
        run(path, how=How(600))
    text.write_bytes(b"good \xff")
    with pytest.raises(EvaluateError, match=r"not UTF-8 \(at byte 5\)"):
        run(path, text=text)
    text.write_bytes(b"")
    with pytest.raises(EvaluateError, match="none to foretell"):
        run(path, text=text)


def test_the_verb_prints_json_and_a_table(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    done = insitu("evaluate", path, "--tokens", "100", "--against", "reference", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["tokens"] == 100
    assert said["against"] == "reference"
    assert 0 < said["kl_mean"] <= said["kl_p99"] <= said["kl_max"]
    assert 0 <= said["top1_agreement"] <= 1
    table = insitu("evaluate", path, "--tokens", "100").stdout
    assert f"perplexity         {said['perplexity']:.4f}" in table
    assert "KL" not in table
    refused = insitu("evaluate", path, "--plot", tmp_path / "x.txt")
    assert refused.returncode == 2
    assert "ends in one of .png" in refused.stderr

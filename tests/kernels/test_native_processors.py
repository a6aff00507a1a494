"""Edits and masks against their definition, and what log-probabilities are of."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.tiny_decoder import Float32, sampling

from insitu.kernels.native import available_isas, sample
from insitu.kernels.reference_processors import Edit, Penalties, changed
from insitu.kernels.reference_sampling import Draw, choose, log_probabilities
from insitu.kernels.sampling import (
    NO_MASK,
    NO_PENALTY,
    EditArrays,
    MaskArrays,
    RowStatus,
    UInt32,
    num_mask_words,
)

INFINITY = float("inf")
NONE = Penalties()


def edit_arrays(edits: list[list[Edit]], penalties: list[Penalties] | None = None) -> EditArrays:
    """Rows of edits as the arrays of a step."""
    flat = [one for row in edits for one in row]
    each = penalties or [NONE] * len(edits)
    return EditArrays(
        row_start=np.cumsum([0, *map(len, edits)]).astype(np.int32),
        token_id=np.array([one.token_id for one in flat], np.int32),
        count=np.array([NO_PENALTY if one.count is None else one.count for one in flat], np.int32),
        value=np.array([one.value for one in flat], np.float64),
        repetition=np.array([one.repetition for one in each]),
        presence=np.array([one.presence for one in each]),
        frequency=np.array([one.frequency for one in each]),
    )


def mask_arrays(allowed: list[list[int] | None], vocab: int) -> MaskArrays:
    """Masks of the rows that have a list of allowed ids."""
    masks: list[UInt32] = []
    of_row = []
    for ids in allowed:
        of_row.append(NO_MASK if ids is None else len(masks))
        if ids is not None:
            bits = np.zeros(num_mask_words(vocab) * 32, np.uint8)
            bits[ids] = 1
            masks.append(np.packbits(bits, bitorder="little").view(np.uint32))
    shape = (len(masks), num_mask_words(vocab))
    return MaskArrays(np.array(of_row, np.int32), np.array(masks, np.uint32).reshape(shape))


def _logits(rows: int, vocab: int) -> Float32:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    logits[:, 3] = -np.inf
    return logits


@pytest.mark.parametrize("vocab", [77, 9001])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_same_token_as_the_definition(vocab: int, temperature: float) -> None:
    rows = 24
    rng = np.random.default_rng(6)
    logits = _logits(rows, vocab)
    edits, penalties, allowed = [], [], []
    for row in range(rows):
        likely = np.argsort(-logits[row])[:20]
        ids = [*likely.tolist(), 3, int(likely[0]), *rng.integers(vocab, size=8).tolist()]
        some = [
            Edit(token_id, float(rng.normal() * 4), [None, 0, 1, 5][at % 4])
            for at, token_id in enumerate(ids)
        ]
        edits.append([] if row % 4 == 0 else [*some, Edit(int(likely[1]), -INFINITY)])
        penalties.append(Penalties(1 + row / 10, row % 3 - 1.0, row % 5 / 4))
        chosen = rng.permutation(vocab)[: vocab // 2].tolist()
        allowed.append(None if row % 3 == 0 else [int(likely[0]), int(likely[2]), *chosen])
    masks = mask_arrays(allowed, vocab)
    draws = [Draw(temperature, top_k=row % 3 * 5, seed=8, position=row) for row in range(rows)]
    wanted = []
    for row in range(rows):
        mask = None if allowed[row] is None else masks.bits[masks.of_row[row]]
        wanted.append(choose(changed(logits[row], edits[row], penalties[row], mask), draws[row]))
    arrays = sampling(
        rows,
        temperature=temperature,
        top_k=[draw.top_k for draw in draws],
        seed=8,
        position=np.arange(rows),
        num_logprobs=3,
        edits=edit_arrays(edits, penalties),
        masks=masks,
    )
    results = [
        sample(logits, arrays, num_threads=threads, isa=isa)
        for isa in available_isas()
        for threads in (1, 3)
    ]
    assert results[0].token_ids.tolist() == wanted
    for result in results:
        assert result.token_ids.tolist() == wanted
        assert result.logprobs.tobytes() == results[0].logprobs.tobytes()
        assert result.top_ids.tobytes() == results[0].top_ids.tobytes()


def test_log_probabilities_are_those_of_the_model_before_any_change() -> None:
    logits = _logits(2, 500)
    best = int(logits[0].argmax())
    edits = [[Edit(best, -50.0), Edit(7, 90.0), Edit(7, -1.0)]] * 2
    masks = mask_arrays([[7, 8], None], 500)
    arrays = sampling(2, num_logprobs=2, edits=edit_arrays(edits), masks=masks)
    result = sample(logits, arrays)
    plain = sample(logits, sampling(2, num_logprobs=2))
    assert result.token_ids.tolist() == [7, 7]
    for row in range(2):
        assert result.logprobs[row] == pytest.approx(log_probabilities(logits[row])[7], abs=2e-6)
    assert result.top_ids.tolist() == plain.top_ids.tolist()
    assert result.top_logprobs.tobytes() == plain.top_logprobs.tobytes()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_allowed_the_row_says_so_and_hurts_no_other(temperature: float) -> None:
    logits = _logits(4, 300)
    bans = [[], [Edit(token_id, -INFINITY) for token_id in range(300)], [], []]
    masks = mask_arrays([None, None, [], [3]], 300)  # token 3 is impossible
    arrays = sampling(
        4, temperature=temperature, num_logprobs=1, edits=edit_arrays(bans), masks=masks
    )
    result = sample(logits, arrays)
    assert result.status.tolist() == [RowStatus.CHOSEN, *[RowStatus.NOTHING_ALLOWED] * 3]
    alone = sample(logits[:1], sampling(1, temperature=temperature))
    assert result.token_ids[0] == alone.token_ids[0]


def test_a_row_that_is_not_finite_is_so_whatever_its_mask_hides() -> None:
    logits = _logits(1, 300)
    logits[0, 9] = np.nan
    result = sample(logits, sampling(1, masks=mask_arrays([[1, 2]], 300)))
    assert result.status.tolist() == [RowStatus.NOT_FINITE]


def test_a_logit_never_becomes_infinite() -> None:
    logits = np.array([[3e38, 1.0, -3e38]], np.float32)
    edits = [[Edit(0, 1e308, 0), Edit(2, -1e308, 9)]]
    arrays = sampling(1, edits=edit_arrays(edits, [Penalties(1e-6, 1e6, 1e6)]), num_logprobs=0)
    result = sample(logits, arrays)
    assert result.status.tolist() == [RowStatus.CHOSEN]
    assert result.token_ids.tolist() == [0]
    assert changed(logits[0], edits[0], Penalties(1e-6, 1e6, 1e6)).tolist() == [
        pytest.approx(3.4028235e38), 1.0, pytest.approx(-3.4028235e38)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "name"),
    [
        ([[Edit(300, 1.0)]], "edits.token_id"),
        ([[Edit(-1, 1.0)]], "edits.token_id"),
        ([[Edit(0, INFINITY)]], "edits.value"),
        ([[Edit(0, float("nan"))]], "edits.value"),
        ([[Edit(0, 0.0, -2)]], "edits.count"),
    ],
)
def test_an_edit_that_could_hurt_is_refused(edits: list[list[Edit]], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        sample(_logits(1, 300), sampling(1, edits=edit_arrays(edits)))


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    masks = mask_arrays([[1]], 600)
    with pytest.raises(ValueError, match=r"masks\.bits"):
        sample(_logits(1, 300), sampling(1, masks=masks))
    masks = MaskArrays(np.array([1], np.int32), mask_arrays([[1]], 300).bits)
    with pytest.raises(ValueError, match=r"masks\.of_row"):
        sample(_logits(1, 300), sampling(1, masks=masks))

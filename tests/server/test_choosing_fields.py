"""Fields that say how tokens are chosen: what is out of range is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from server.asking import CHAT, TEXT, chat_body, error_of, post, text_body
from server.scripted_generator import Scripted

WRONG: list[tuple[str, Any]] = [
    ("typical_p", 0),
    ("top_n_sigma", -1),
    ("xtc_probability", 1.5),
    ("xtc_threshold", 0),
    ("repetition_penalty", 0),
    ("repetition_penalty", "1.1"),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("penalty_last_n", 4097),
    ("dry_multiplier", -1),
    ("dry_base", 0.5),
    ("dry_allowed_length", 0),
    ("dry_last_n", -1),
    ("dry_sequence_breakers", [""]),
    ("logit_bias", {"foo": 0}),
    ("logit_bias", {"-1": 0}),
    ("logit_bias", {"1.0": 0}),
    ("logit_bias", {"7": 1, "07": 2}),
    ("logit_bias", {"5": 100.5}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", [[5, 1]]),
    ("bad_words", [""]),
    ("bad_words", ["a"] * 65),
    ("min_tokens", -1),
    ("min_tokens", 5.0),
    ("sampling_preset", "sglang"),
    ("logprobs_mode", "logits"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_what_is_out_of_range_names_its_field(field: str, value: Any) -> None:
    generator = Scripted()
    for path, body in ((CHAT, chat_body), (TEXT, text_body)):
        response = post(path, body(**{field: value}), generator=generator)
        error = error_of(response)
        assert (response.status_code, error["code"]) == (400, "invalid_value")
        assert error["param"].split("[")[0].split(".")[0] == field
    assert not generator.asked


@pytest.mark.parametrize(
    ("field", "value"), [("mirostat", 1), ("mirostat_tau", 5.0), ("mirostat_eta", 0.1)]
)
def test_mirostat_is_refused_by_name(field: str, value: Any) -> None:
    error = error_of(post(CHAT, chat_body(**{field: value})))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert post(CHAT, chat_body(mirostat=0)).status_code == 200


@pytest.mark.parametrize("more", [{"stream": True}, {"n": 3}])
def test_best_of_is_for_whole_answers_and_no_fewer_than_n(more: dict[str, Any]) -> None:
    error = error_of(post(TEXT, text_body(best_of=2, **more)))
    assert (error["param"], error["code"]) == ("best_of", "invalid_value")

"""Record transformers' logits of the tiny checkpoints: `python tests/families/record.py [CASE...]`.

Not run by the tests: it needs torch and transformers. It writes recorded/CASE.json: the shapes of
the checkpoint as transformers saves it, and the logits of some rows of one prefill, in float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from families.cases import CASES, weights, write_folder

if TYPE_CHECKING:
    from families.cases import Case

RECORDED = Path(__file__).parent / "recorded"


def saved_by_transformers(folder: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The config.json that transformers would save, and the tensors' names and shapes."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.save_pretrained(folder / "saved")
    config = json.loads((folder / "saved" / "config.json").read_text())
    with safe_open(folder / "saved" / "model.safetensors", "np") as file:
        shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    return config, shapes


def record(case: Case) -> dict[str, Any]:
    """What recorded/CASE.json holds."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(case.config_json()))
        config, shapes = saved_by_transformers(folder)
        write_folder(folder, case.config_json(), weights(shapes))
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        left = {key: value for key, value in info.items() if value}
        if left:
            raise SystemExit(f"the checkpoint does not fit: {left}")
        model.eval()
        with torch.no_grad():
            ids = torch.tensor(case.tokens().astype(np.int64))[None]
            logits = model(ids, use_cache=False).logits[0].float().numpy()
    rows = [[float(f"{x:.6g}") for x in logits[row].tolist()] for row in case.rows()]
    return {"config": config, "shapes": shapes, "logits": rows}


def main() -> None:
    """Record the cases named, or all."""
    for name in sys.argv[1:] or CASES:
        answer = record(CASES[name])
        text = json.dumps(answer, separators=(",", ":")).replace("],[", "],\n[")
        (RECORDED / f"{name}.json").write_text(text + "\n")
        spread = np.std(answer["logits"])
        print(f"{name}: {len(text)} bytes, logits spread {spread:.2f}")  # noqa: T201


if __name__ == "__main__":
    main()

"""The learner benchmark times the products that an update really makes, and writes what it promises."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flowrl.algorithms.sqam import SQAM

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learner.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    """The script's names. Its dataclasses look their module up, so it gets one."""
    sys.modules["learner_benchmark"] = module = type(sys)("learner_benchmark")
    module.__dict__.update(runpy.run_path(str(SCRIPT), run_name="learner_benchmark"))
    return module.__dict__


def test_timed_matrix_products_are_those_of_one_update(benchmark: dict[str, Any]) -> None:
    sizes = benchmark["Sizes"](batch=8, width=16, depth=2, heads=3, flow_steps=4)
    sqam, batches = benchmark["learner"](SQAM, sizes, CPU), benchmark["OneBatch"](sizes, CPU)
    with FlopCounterMode(display=False) as counter:
        sqam.update(batches)
    products = benchmark["MatrixProducts"](sizes, CPU)
    products()
    assert products.gigaflops * 1e9 == counter.get_total_flops()


def test_benchmark_writes_its_numbers(
    benchmark: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "learner.json"
    options = ["--quick", "--repetitions", "1", "--batch", "8", "--width", "16", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["learner.py", *options])
    benchmark["main"]()
    result = json.loads(out.read_text(encoding="utf-8"))
    for key in ("updates_per_s", "ratio_to_matmul", "exact_over_scalar"):
        assert result[key] > 0
    assert (result["batch"], result["width"], result["threads"]) == (8, 16, 1)
    assert "updates per second" in capsys.readouterr().out

"""The benchmark's arithmetic on curves written by hand, and that it writes what it promises."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scratch.py"


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    """The script's names. Its dataclasses look their module up, so it gets one."""
    sys.modules["scratch_benchmark"] = module = type(sys)("scratch_benchmark")
    module.__dict__.update(runpy.run_path(str(SCRIPT), run_name="scratch_benchmark"))
    return module.__dict__


def curve(benchmark: dict[str, Any], returns: list[float], pace: float, final: list[float]) -> Any:
    steps = tuple(100.0 * i for i in range(len(returns)))
    seconds = tuple(pace * i for i in range(len(returns)))
    return benchmark["Curve"](0, steps, seconds, tuple(returns), tuple(final), seconds[-1], 9)


def test_the_common_return_and_the_ratios(benchmark: dict[str, Any]) -> None:
    """From 10, both reach 110 at least: the level is 100. One gets there at its third, one at its fourth."""
    curves = {
        "a": [curve(benchmark, [10, 50, 120, 130], pace=2.0, final=[150.0, 170.0])],
        "b": [curve(benchmark, [10, 90, 95, 110], pace=3.0, final=[80.0])],
    }
    found = benchmark["summary"](curves)
    assert found["common_return"] == pytest.approx(100)
    assert (found["a"]["seconds"], found["b"]["seconds"]) == (4.0, 9.0)
    assert (found["a"]["steps"], found["b"]["steps"]) == (200.0, 300.0)
    assert found["final_ratio"] == pytest.approx(2.0)
    assert found["seconds_ratio"] == pytest.approx(4 / 9)


def test_what_has_no_ratio_is_null(benchmark: dict[str, Any]) -> None:
    assert math.isnan(benchmark["ratio"](3.0, -1.0))
    assert math.isnan(benchmark["ratio"](math.inf, 2.0))
    assert benchmark["finite"]({"a": [math.nan, 1.0]}) == {"a": [None, 1.0]}
    assert curve(benchmark, [0, 1], 1.0, [1.0]).first(5.0, "seconds") == math.inf


@pytest.mark.slow
def test_it_trains_both_and_writes_numbers_and_figures(
    benchmark: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("envpool")
    monkeypatch.setattr(sys, "argv", ["scratch.py", "--quick", "--out", str(tmp_path)])
    benchmark["main"]()
    found = json.loads((tmp_path / "scratch.json").read_text())
    assert found["task"] == "half_cheetah"
    for recipe in ("humanoid_qf3", "humanoid_td3"):
        (run,) = found[recipe]["runs"]
        assert run["steps"] == [0, 400, 800, 1200]
        assert len(run["final"]) == 4
    assert (tmp_path / "scratch.png").stat().st_size > 10_000
    monkeypatch.setattr(sys, "argv", ["scratch.py", "--draw", str(tmp_path)])
    before = found["humanoid_qf3"]
    benchmark["main"]()
    assert json.loads((tmp_path / "scratch.json").read_text())["humanoid_qf3"] == before

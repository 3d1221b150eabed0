"""The benchmark of the adjoints measures what it says, and writes what it promises."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flowrl.policies.interface import Context
from tests.algorithms.analytic import LinearFlow
from tests.algorithms.rest import discrete_factors

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return import_module("adjoints")


def test_on_a_gaussian_the_adjoints_are_parallel_and_their_ratio_is_known(benchmark: ModuleType) -> None:
    policy = LinearFlow(3, 20, 0.5)
    base = benchmark.Base("a Gaussian", policy.velocity, Context(torch.ones(16, 3)), 3)
    rows, factors = benchmark.accuracy(base, 20), discrete_factors(0.5, 20)
    assert [row["t"] for row in rows] == pytest.approx([k / 10 for k in range(1, 11)])
    for row in rows:
        assert row["angle_degrees"] < 0.1
        factor = factors[round(20 * row["t"])]
        assert row["norm_ratio"] == pytest.approx(row["t"] / factor, rel=1e-4)
        assert row["exact_growth_max"] == pytest.approx(factor, rel=1e-4)


def test_mixtures_velocity_is_that_of_a_gaussian_near_one_mode(benchmark: ModuleType) -> None:
    base, mode = benchmark.mixture(4), benchmark.MODES[0]
    x, t = mode + 0.02 * torch.randn(4, 2), torch.full((4, 1), 0.98)
    slope = (0.98 * 0.01 - 0.02) / (0.02**2 + 0.98**2 * 0.01)
    torch.testing.assert_close(base.velocity(base.context, x, t), mode + slope * (x - 0.98 * mode))


def test_benchmark_writes_its_numbers(
    benchmark: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "adjoints.json"
    monkeypatch.setattr(
        sys, "argv", ["adjoints.py", "--quick", "--rows", "32", "--rounds", "1", "--json", str(out)]
    )
    benchmark.main()
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [row["flow_steps"] for row in result["cost"]] == [5, 10, 20]
    assert all(row["sqam_ms"] > 0 and row["trqam_ms"] > 0 for row in result["cost"])
    assert [len(rows) for rows in result["accuracy"].values()] == [10, 10]
    assert "mean angle" in capsys.readouterr().out

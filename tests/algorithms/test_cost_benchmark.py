"""The cost benchmark states in closed form what every algorithm evaluates; real updates are counted."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import torch

from flowrl.config import load_recipe
from flowrl.learner.config import AlgorithmConfig, RunConfig
from tests.algorithms.pages import DOCS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BATCH, STEPS, WIDTH = 8, 4, 16


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """The script as a module, beside the one it imports."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import algorithms
    finally:
        sys.path.remove(str(BENCHMARKS))
    return algorithms


def recipes() -> list[str]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from algorithms import RECIPES
    finally:
        sys.path.remove(str(BENCHMARKS))
    return list(RECIPES)


@pytest.mark.parametrize("recipe", recipes())
def test_rows_of_an_update_are_those_expected(benchmark: ModuleType, recipe: str) -> None:
    sizes = benchmark.Sizes(batch=BATCH, width=WIDTH, depth=2, heads=3, flow_steps=STEPS)
    config, algorithm = benchmark.build(recipe, sizes, WIDTH)
    batches = benchmark.OneBatch(sizes, torch.device("cpu"))
    with benchmark.counting() as counted:
        algorithm.update(batches)
    assert asdict(counted) == asdict(benchmark.expected_rows(config, BATCH, STEPS))


def test_every_algorithm_is_measured(benchmark: ModuleType) -> None:
    measured = {load_recipe(RunConfig, recipe).algorithm.kind for recipe in benchmark.RECIPES}
    assert measured == {config.kind for config in get_args(get_args(AlgorithmConfig)[0])}


def test_the_benchmark_prints_and_writes(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = benchmark.Sizes(batch=BATCH, width=WIDTH, depth=2, heads=3, flow_steps=STEPS)
    for name, value in {"SIZES": sizes, "CRITIC_WIDTH": WIDTH, "RECIPES": ("lift_bc", "lift_sqam")}.items():
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(sys, "argv", ["algorithms.py", "--quick", "--json", str(tmp_path / "costs.json")])
    benchmark.main()
    found = json.loads((tmp_path / "costs.json").read_text())["algorithms"]
    assert found["lift_bc"]["rows"] == {
        "velocity": 0,
        "velocity_gradient": BATCH,
        "critic": 0,
        "critic_gradient": 0,
    }
    bc = found["lift_bc"]
    # The first layer needs no gradient of its input: a row with gradient costs a little less than three.
    assert 0.6 * bc["gigaflops_of_rows"] < bc["gigaflops_counted"] <= bc["gigaflops_of_rows"]
    assert "imitation" in capsys.readouterr().out


def test_the_page_quotes_the_command() -> None:
    assert "python benchmarks/algorithms.py" in (DOCS / "algorithms" / "README.md").read_text(
        encoding="utf-8"
    )

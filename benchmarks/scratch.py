"""QF3 against TD3 from scratch: the same trainer, task, critic and budget, another actor.

    python benchmarks/scratch.py [--quick] [--seconds S | --steps N] [--seeds 0 1] [--processes 2]
                                 [--out DIR] [OVERRIDE ...]

Every pair of recipe and seed is one run of ``flowrl train`` under DIR; ``--draw DIR`` reads such runs again and
trains nothing. Writes ``scratch.json``, ``scratch.png`` and ``scratch.svg`` there and prints a table. Overrides
go to both recipes.

Keys of the JSON object: for each recipe ``final_return`` (mean over seeds of the reported evaluation), its
``interval`` over all episodes, ``seconds`` and ``steps`` to the common return, and its ``runs`` with their
curves; and ``common_return``, ``final_ratio`` and ``seconds_ratio``, the first recipe's over the second's.
The common return is nine tenths of the way from the untrained policy to the best that both reached. Seconds are
those of training, evaluations not counted; processes that run side by side slow each other on few cores alike.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from flowrl.learner.metrics import read_metrics
from flowrl.learner.run import Run
from flowrl.scratch.loop import run_config
from flowrl.statistics import bootstrap_interval

Array = NDArray[np.float64]
COLOURS = ("#0b6e99", "#c8553d", "#5c8d3f", "#7d5ba6")
QUICK = (
    "environment.name=half_cheetah",
    "environment.settings={max_steps: 50}",
    "environment.count=4",
    "budget={env_steps: 1200, wall_s: null, updates: null}",
    "update.start_steps=200",
    "update.batch_size=32",
    "critic.width=16",
    "actor.width=16",
    "evaluation={episodes: 2, every_steps: 400, final_episodes: 4}",
)


@dataclass(frozen=True)
class Curve:
    """One run: the returns of its evaluations by step and second of training, and its reported evaluation."""

    seed: int
    steps: tuple[float, ...]
    seconds: tuple[float, ...]
    returns: tuple[float, ...]
    final: tuple[float, ...]
    """Returns of the episodes of the reported evaluation."""
    train_s: float
    updates: int

    @classmethod
    def of(cls, run: Run) -> Curve:
        """Read a finished run."""
        metrics, result = read_metrics(run.metrics), run.read_json("result.json")
        found = np.isfinite(metrics["evaluation/return"])
        columns = (metrics[name][found].tolist() for name in ("step", "wall_s", "evaluation/return"))
        steps, seconds, returns = (tuple(column) for column in columns)
        final, seed = tuple(result["final"]["returns"]), run_config(run).seed
        return cls(seed, steps, seconds, returns, final, result["train_s"], result["updates"])

    def first(self, level: float, axis: str) -> float:
        """The first second or step at which an evaluation reached ``level``; infinite if none did."""
        reached = np.flatnonzero(np.asarray(self.returns) >= level)
        return float(getattr(self, axis)[reached[0]]) if len(reached) else math.inf


Curves = dict[str, list[Curve]]
"""The runs of each recipe, by seed."""


def train(recipe: str, seed: int, overrides: Sequence[str], out: Path) -> Curve:
    """Run ``flowrl train`` in a process of its own. Raises RuntimeError with its last words when it fails."""
    command = [sys.executable, "-m", "flowrl", "train", recipe, *overrides, f"seed={seed}"]
    command += [f"name={recipe}-seed{seed}", "--runs", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed:\n{done.stderr[-2000:]}")
    return Curve.of(Run(newest(out, recipe, seed)))


def newest(out: Path, recipe: str, seed: int) -> Path:
    """The latest run of a recipe and a seed."""
    runs = out.glob(f"{recipe}-seed{seed}-*")
    return max(runs, key=lambda path: int(path.name.rpartition("-")[2]))


def train_all(
    recipes: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], out: Path, processes: int
) -> Curves:
    """Train every pair of recipe and seed, ``processes`` at a time, the recipes side by side."""
    with ThreadPoolExecutor(processes) as pool:
        jobs = {(r, s): pool.submit(train, r, s, overrides, out) for s in seeds for r in recipes}
        return {recipe: [jobs[recipe, seed].result() for seed in seeds] for recipe in recipes}


def read_all(recipes: Sequence[str], seeds: Sequence[int], out: Path) -> Curves:
    """The runs that an earlier call left in ``out``."""
    return {r: [Curve.of(Run(newest(out, r, s))) for s in seeds] for r in recipes}


def common_return(curves: Curves) -> float:
    """Nine tenths of the way from the untrained policy to the best evaluation that every run reached."""
    runs = [curve for group in curves.values() for curve in group]
    start = float(np.mean([curve.returns[0] for curve in runs]))
    return start + 0.9 * (min(max(curve.returns) for curve in runs) - start)


def ratio(first: float, second: float) -> float:
    """``first / second``; not a number where that says nothing."""
    sensible = math.isfinite(first) and math.isfinite(second) and second > 0
    return first / second if sensible else math.nan


def summary(curves: Curves) -> dict[str, Any]:
    """The JSON object."""
    level = common_return(curves)
    found: dict[str, Any] = {"common_return": level}
    for recipe, group in curves.items():
        episodes = [value for curve in group for value in curve.final]
        found[recipe] = {
            "final_return": float(np.mean([np.mean(curve.final) for curve in group])),
            "interval": bootstrap_interval(episodes),
            "seconds": float(np.mean([curve.first(level, "seconds") for curve in group])),
            "steps": float(np.mean([curve.first(level, "steps") for curve in group])),
            "runs": [asdict(curve) for curve in group],
        }
    first, second = (found[recipe] for recipe in list(curves)[:2])
    found["final_ratio"] = ratio(first["final_return"], second["final_return"])
    found["seconds_ratio"] = ratio(first["seconds"], second["seconds"])
    return found


def figure(curves: Curves, task: str) -> Figure:
    """Return against seconds and against environment steps, a line per run."""
    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True)
    for axes, axis, label in zip(panels, ("seconds", "steps"), ("seconds of training", "steps"), strict=True):
        for colour, (recipe, group) in zip(COLOURS, curves.items(), strict=False):
            for i, curve in enumerate(group):
                line = {"color": colour, "marker": "o", "markersize": 3, "label": None if i else recipe}
                axes.plot(getattr(curve, axis), curve.returns, **line)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("return, deployed policy")
    panels[0].legend(frameon=False)
    drawing.suptitle(task)
    return drawing


def table(result: dict[str, Any], recipes: Sequence[str]) -> Iterator[Table | str]:
    """The result for people."""
    rows = Table("recipe", "final return", "95 % over episodes", "s to common", "steps to common", "updates")
    for recipe in recipes:
        one = result[recipe]
        low, high = one["interval"]
        updates = ", ".join(f"{run['updates']:,}" for run in one["runs"])
        spent = f"{one['seconds']:.0f}", f"{one['steps']:,.0f}"
        rows.add_row(recipe, f"{one['final_return']:.1f}", f"{low:.1f} to {high:.1f}", *spent, updates)
    yield rows
    yield f"common return {result['common_return']:.1f}; {recipes[0]} over {recipes[1]}: "
    yield f"  final return {result['final_ratio']:.2f}, seconds to the common return {result['seconds_ratio']:.2f}"


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("overrides", nargs="*", help="dotted overrides of both recipes")
    parser.add_argument(
        "--recipes", nargs=2, default=["humanoid_qf3", "humanoid_td3"], help="the two to compare"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="runs of each")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=float, help="seconds of training of each run")
    budget.add_argument("--steps", type=int, help="environment steps of each run")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="runs side by side")
    parser.add_argument("--out", type=Path, help="where runs and results go; default: a new folder")
    parser.add_argument("--draw", type=Path, help="read the runs there again")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    return parser.parse_args()


def budget_overrides(options: argparse.Namespace) -> list[str]:
    """The budget as an override: one limit alone."""
    if options.seconds is not None:
        return [f"budget={{wall_s: {options.seconds}, env_steps: null, updates: null}}"]
    if options.steps is not None:
        return [f"budget={{env_steps: {options.steps}, wall_s: null, updates: null}}"]
    return []


def main() -> None:
    """Train or read, then write and print."""
    options = arguments()
    out = options.draw or options.out or Path(tempfile.mkdtemp(prefix="flowrl-scratch-"))
    overrides = [*(QUICK if options.quick else ()), *budget_overrides(options), *options.overrides]
    if options.draw is None:
        curves = train_all(options.recipes, options.seeds, overrides, out, options.processes)
    else:
        curves = read_all(options.recipes, options.seeds, out)
    result = summary(curves)
    task = run_config(Run(newest(out, options.recipes[0], options.seeds[0]))).environment.name
    drawn = figure(curves, task)
    for suffix in ("png", "svg"):
        drawn.savefig(out / f"scratch.{suffix}", dpi=150)
    said = {"task": task, "recipes": options.recipes, "overrides": overrides}
    (out / "scratch.json").write_text(json.dumps(said | finite(result), indent=2, allow_nan=False) + "\n")
    console = Console()
    for part in table(result, options.recipes):
        console.print(part)
    console.print(f"written: {out}")


def finite(value: Any) -> Any:
    """A JSON value with null in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()

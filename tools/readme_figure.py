"""The README's picture, drawn from the runs that `make demo SEEDS=3` leaves.

.venv/bin/python tools/readme_figure.py runs/demo-1 runs/demo-2 runs/demo-3 --to docs/images/demo.png
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from flowrl.evaluation import Evaluation
from flowrl.learner.metrics import read_metrics
from flowrl.learner.run import Run
from flowrl.report.filmstrip import stored

BLUE, GREY = "#2f6fbb", "#8a8f98"


def draw(runs: list[Run], to: Path) -> None:
    """Filmstrips of the first run, then success against environment steps for every run."""
    strips = stored(runs[0])
    figure = plt.figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 2.3], width_ratios=[2.4, 1])
    for row, strip in enumerate(strips):
        axes = figure.add_subplot(grid[row, :])
        axes.imshow(plt.imread(io.BytesIO(strip.png)))
        axes.set_title(f"{strip.title}: {'success' if strip.success else 'failure'}", loc="left", fontsize=11)
        axes.axis("off")
    draw_curves(figure.add_subplot(grid[2, 0]), runs)
    draw_bars(figure.add_subplot(grid[2, 1]), runs)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=110)


def draw_curves(axes: plt.Axes, runs: list[Run]) -> None:
    """Success of the newest 50 collected episodes while training."""
    for run in runs:
        columns = read_metrics(run.metrics)
        use = (columns["run/updates"] > 0) & (columns["collect/recent_episodes"] >= 50)
        label = f"seed {run.config().seed}"
        axes.plot(columns["run/env_steps"][use], 100 * columns["collect/recent_success"][use], label=label)
    axes.set(xlabel="environment steps", ylabel="% success", ylim=(0, 102))
    axes.set_title("while training: last 50 collected episodes (best of 16 samples)", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)


def draw_bars(axes: plt.Axes, runs: list[Run]) -> None:
    """Base and tuned success of every run, one sample, with 95 % intervals."""
    for index, run in enumerate(runs):
        result = run.read_json("result.json")
        for offset, name, colour in ((-0.2, "base", GREY), (0.2, "tuned", BLUE)):
            evaluation = Evaluation.from_json(result[name])
            rate = 100 * evaluation.success_rate
            low, high = (100 * bound for bound in evaluation.interval)
            label = name if index == 0 else None
            axes.bar(index + offset, rate, 0.38, color=colour, label=label)
            axes.errorbar(index + offset, rate, [[rate - low], [high - rate]], color="black", capsize=3, lw=1)
            axes.text(index + offset, 3, f"{rate:.0f}", ha="center", color="white", fontsize=10)
    axes.set_xticks(np.arange(len(runs)), [f"seed {run.config().seed}" for run in runs])
    axes.set(ylim=(0, 102))
    axes.set_title("50 unseen starts, one sample", loc="left", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    draw([Run(path) for path in arguments.runs], arguments.to)

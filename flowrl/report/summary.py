"""A page over several runs of one recipe that differ in their seed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from markupsafe import Markup
from matplotlib.ticker import PercentFormatter

from flowrl.errors import UsageError
from flowrl.evaluation import Evaluation
from flowrl.learner.run import Run
from flowrl.report import words
from flowrl.report.comparison import pair
from flowrl.report.data import Findings
from flowrl.report.page import write_page
from flowrl.report.svg import color, drawing, to_svg
from flowrl.statistics import bootstrap_interval


@dataclass(frozen=True)
class SeedRow:
    """One run: its evaluations and where its own report is."""

    name: str
    seed: int
    base: Evaluation
    tuned: Evaluation
    link: str

    @property
    def gain(self) -> float:
        """Tuned minus base success."""
        return self.tuned.success_rate - self.base.success_rate

    @property
    def test(self) -> str:
        """The paired test of this run."""
        return words.probability(pair(self.base, self.tuned).p_value)


@dataclass(frozen=True)
class Mean:
    """The mean over seeds with its bootstrap interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of one number per seed."""
        return cls(fmean(values), *bootstrap_interval(values))


def write_summary(runs: Sequence[Run], path: Path) -> Path:
    """Write one page over finished runs: a row per seed, means with intervals over seeds, one plot.

    Raises UsageError when no run has both evaluations; runs that lack one are named on the page.
    """
    found = [Findings.read(run) for run in runs]
    rows = [
        SeedRow(f.run.name, f.config.seed, f.base, f.tuned, _link(f.run, path))
        for f in found
        if f.base is not None and f.tuned is not None
    ]
    if not rows:
        names = ", ".join(run.name for run in runs) or "none"
        raise UsageError(f"no finished run to summarise (given: {names}); finish them with --resume")
    finished = {row.name for row in rows}
    first = found[0]
    context = {
        "title": f"{first.config.environment.name} with {words.algorithm_name(first)}, {len(rows)} seeds",
        "task": first.config.environment.name,
        "algorithm": words.algorithm_name(first),
        "rows": rows,
        "base": Mean.of([row.base.success_rate for row in rows]),
        "tuned": Mean.of([row.tuned.success_rate for row in rows]),
        "gain": Mean.of([row.gain for row in rows]),
        "rules": sorted({row.tuned.rule for row in rows} | {row.base.rule for row in rows}),
        "missing": [f.run.name for f in found if f.run.name not in finished],
        "plot": _plot(rows),
    }
    return write_page("summary.html", context, path)


def _plot(rows: Sequence[SeedRow]) -> Markup:
    height = 1.0 + 0.36 * len(rows)
    with drawing(4.8, height) as (figure, axes):
        positions = range(len(rows))
        for y, row in zip(positions, rows, strict=True):
            axes.plot([row.base.success_rate, row.tuned.success_rate], [y, y], color=color("grid"), lw=5)
        for name in ("base", "tuned"):
            evaluations = [getattr(row, name) for row in rows]
            rates = [e.success_rate for e in evaluations]
            # A Wilson interval can exclude its rate by a rounding error at 0 and 1.
            spread = [
                [max(0.0, e.success_rate - e.interval[0]) for e in evaluations],
                [max(0.0, e.interval[1] - e.success_rate) for e in evaluations],
            ]
            axes.errorbar(rates, positions, xerr=spread, fmt="o", ms=6, lw=1.6, color=color(name), label=name)
        axes.set_yticks(list(positions), [f"seed {row.seed}" for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
        words_for_plot = "; ".join(
            f"seed {r.seed} from {r.base.success_rate:.0%} to {r.tuned.success_rate:.0%}" for r in rows
        )
        return to_svg(figure, "seeds", f"Success before and after, with 95% intervals: {words_for_plot}")


def _link(run: Run, path: Path) -> str:
    """Where the run's report is, relative to the page; empty when there is none."""
    if not run.report.is_file():
        return ""
    return quote(os.path.relpath(run.report, path.parent))

"""The report of a comparison: ``report.html``, self-contained, in the style of a run's report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowrl.comparison.figures import figures
from flowrl.comparison.findings import Comparison, Summary
from flowrl.comparison.place import Place
from flowrl.comparison.runs import RunFound
from flowrl.comparison.table import COLUMNS, rows, title
from flowrl.comparison.words import caveats, deviations, points, verdicts
from flowrl.report.comparison import pair
from flowrl.report.page import write_page
from flowrl.report.words import paired_sentence, percent


@dataclass(frozen=True)
class RunRow:
    """One run as the page lists it."""

    run: RunFound
    link: str
    base: str
    tuned: str
    changed: str


def write_report(comparison: Comparison, place: Place) -> Path:
    """Write ``report.html`` and the figures' files; returns the page's path."""
    return write_page("comparison.html", _context(comparison, place), place.directory / "report.html")


def _context(comparison: Comparison, place: Place) -> dict[str, Any]:
    config = comparison.plan.contenders[0].config
    return {
        "title": title(comparison),
        "task": config.environment.name,
        "recipes": [summary.recipe for summary in comparison.summaries],
        "seeds": comparison.plan.seeds,
        "verdicts": verdicts(comparison),
        "columns": COLUMNS,
        "rows": rows(comparison),
        "rules": {s.recipe: _rule(s) for s in comparison.summaries if s.finished},
        "gains": {s.recipe: points(s.gain) for s in comparison.summaries if s.gain is not None},
        "figures": figures(comparison, place),
        "runs": [_run_row(run, place) for summary in comparison.summaries for run in summary.runs],
        "deviations": deviations(comparison),
        "caveats": caveats(comparison),
    }


def _rule(summary: Summary) -> str:
    return summary.finished[0].evaluation("tuned").rule


def _run_row(run: RunFound, place: Place) -> RunRow:
    if not run.finished:
        return RunRow(run, "", "", "", "")
    report = place.run(run.recipe, run.seed).report
    link = quote(os.path.relpath(report, place.directory)) if report.is_file() else ""
    base, tuned = run.evaluation("base_own"), run.evaluation("tuned")
    return RunRow(
        run,
        link,
        percent(base.success_rate),
        percent(tuned.success_rate),
        paired_sentence(pair(base, tuned)),
    )

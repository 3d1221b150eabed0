"""The table of a comparison: the same cells for the terminal, ``table.md`` and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.comparison.findings import Comparison, Summary
from flowrl.comparison.place import Place
from flowrl.comparison.runs import RunFound
from flowrl.comparison.words import caveats, deviations, judged, percent, points, span, verdicts

COLUMNS = (
    "recipe",
    "seeds",
    "base",
    "base, own rule",
    "tuned, own rule",
    "tuned, plain",
    "against the first",
    "against, plain",
    "parameters",
    "ms/update",
    "env steps",
    "updates",
    "seconds",
)
"""Explained one by one in docs/compare.md."""
UNKNOWN = "-"


@dataclass(frozen=True)
class Row:
    """A recipe's cells, in the order of `COLUMNS`."""

    cells: tuple[str, ...]


def rows(comparison: Comparison) -> list[Row]:
    """One row per recipe, the unfinished ones included."""
    total = len(comparison.plan.seeds)
    return [Row(_cells(summary, total)) for summary in comparison.summaries]


def _cells(summary: Summary, total: int) -> tuple[str, ...]:
    against = summary.against
    return (
        summary.recipe,
        f"{len(summary.finished)} of {total}",
        _rate(summary, "base"),
        _own_base(summary),
        _rate(summary, "tuned"),
        _rate(summary, "tuned_common"),
        UNKNOWN if against is None else f"{points(against.own)}, {judged(against.own)}",
        UNKNOWN if against is None else f"{points(against.common)}, {judged(against.common)}",
        _parameters(summary),
        _update_ms(summary),
        _number(summary.mean(lambda run: run.result["steps"])),
        _number(summary.mean(lambda run: run.result["updates"])),
        _number(summary.mean(lambda run: run.result["train_s"])),
    )


def _rate(summary: Summary, name: str) -> str:
    if name not in summary.rates:
        return UNKNOWN
    rate = summary.rates[name]
    return f"{percent(rate.mean)} ({span(rate.low, rate.high)})"


def _own_base(summary: Summary) -> str:
    if not summary.finished:
        return UNKNOWN
    if any(run.own_base_measured for run in summary.finished):
        return _rate(summary, "base_own")
    same = all(run.evaluation("tuned").rule == run.evaluation("base").rule for run in summary.finished)
    return "the same" if same else "not possible"


def _parameters(summary: Summary) -> str:
    if not summary.finished:
        return UNKNOWN
    counts = summary.finished[0].measured["parameters"]
    return f"{counts['acting']:,} acting, {counts['trained']:,} trained"


def _update_ms(summary: Summary) -> str:
    mean, median = (summary.mean(lambda run, name=name: _ms(run, name)) for name in ("mean", "median"))
    return UNKNOWN if mean is None or median is None else f"{mean:.1f}, median {median:.1f}"


def _ms(run: RunFound, name: str) -> float | None:
    return run.measured["update_ms"][name]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def markdown(comparison: Comparison) -> str:
    """``table.md``: the verdicts, the table, what failed, deviations and caveats."""
    lines = ["# " + title(comparison), "", *(f"- {text}" for text in verdicts(comparison)), ""]
    lines += _line(COLUMNS), _line(["---"] * len(COLUMNS))
    lines += [_line(row.cells) for row in rows(comparison)]
    lines += ["", "Success rates are means over seeds with 95 % intervals over seeds and starts.", ""]
    if comparison.unfinished:
        lines += ["Not finished:", ""]
        lines += [f"- {run.recipe}, seed {run.seed}: {run.reason}" for run in comparison.unfinished]
        lines.append("")
    for recipe, texts in deviations(comparison).items():
        if texts:
            lines.append(f"- {recipe} deviates from its publication: {'; '.join(texts)}")
    lines += [f"- {text}" for text in caveats(comparison)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def title(comparison: Comparison) -> str:
    """What is compared on which task."""
    names = [summary.recipe for summary in comparison.summaries]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{comparison.plan.contenders[0].config.environment.name}: {listed}"


def write_markdown(comparison: Comparison, place: Place) -> None:
    """Write ``table.md`` in one step."""
    path = place.directory / "table.md"
    aside = path.with_name(f".{path.name}")
    aside.write_text(markdown(comparison))
    aside.replace(path)

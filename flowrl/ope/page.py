"""The page of a ranking: one drawing, the table, and what it does not show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flowrl.ope.result import TITLES, Ranked, Ranking
from flowrl.report.figures import Figure
from flowrl.report.svg import color, drawing, to_svg
from flowrl.report.words import percent

_COLORS = {"fqe": "tuned", "wpdis": "c3"}
CAVEATS = (
    "An estimate from logged data is no measurement: measure the chosen policy before you rely on it.",
    "Intervals cover the choice of initial states and the randomness of the fits. They do not cover the bias of "
    "a critic that extrapolates, nor that all fits share one data set.",
    "Differences between neighbours are paired, so that they can be told apart where their intervals overlap.",
)


def number(value: float) -> str:
    """Three digits; a hyphen where there is no number."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def verdict(ranking: Ranking) -> str:
    """The ranking in one sentence."""
    pairs = ranking.neighbours[ranking.primary]
    if not pairs:
        return "There are fewer than two estimates, so that nothing is ranked."
    best = ranking.ranked[0].name
    if pairs[0].apart:
        return f"{best} ranks first, clearly above {pairs[0].worse}."
    return f"{best} has the highest estimate, but these data do not tell it apart from {pairs[0].worse}."


def write_page(ranking: Ranking, path: Path) -> None:
    """Write the self-contained page in one step, in the style of a run's report."""
    jinja = Environment(
        loader=ChoiceLoader([PackageLoader("flowrl.ope"), PackageLoader("flowrl.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"percent": percent, "number": number}
    text = jinja.get_template("ope.html").render(
        title=f"Policies of {Path(ranking.run).name}, ranked from logged data",
        ranking=ranking,
        verdict=verdict(ranking),
        estimators=list(ranking.neighbours),
        titles=TITLES,
        measured=any(row.truth is not None for row in ranking.ranked),
        drawing=estimates_figure(ranking),
        caveats=[*ranking.notes, *CAVEATS],
    )
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def estimates_figure(ranking: Ranking) -> Figure:
    """Estimates with their intervals against updates, or by name where updates are not known."""
    rows = sorted(ranking.ranked, key=lambda row: -1 if row.updates is None else row.updates)
    known = [row.updates for row in rows if row.updates is not None]
    by_updates = len(known) == len(rows) and len(set(known)) == len(rows)
    places = np.array(known if by_updates else range(len(rows)), float)
    with drawing(6.4, 3.2) as (figure, axes):
        gap = 0.0 if len(rows) < 2 else 0.012 * float(np.ptp(places))
        for index, name in enumerate(ranking.neighbours):
            _estimates(axes, name, rows, places + index * gap)
        values = [math.nan if row.truth is None else row.truth.value for row in rows]
        if not np.isnan(values).all():
            axes.plot(places, values, "D", ms=5, color=color("base"), label="measured")
        if by_updates:
            axes.set_xlabel("updates")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        else:
            axes.set_xticks(places, [row.name for row in rows], rotation=20, ha="right")
        axes.set_ylabel("discounted success" if "success" in ranking.quantity else "discounted return")
        axes.legend(loc="lower center", ncols=4, bbox_to_anchor=(0.5, 1.0))
        svg = to_svg(figure, "estimates", f"Estimates: {_in_words(ranking.primary, rows)}")
    caption = "Points are estimates, bars their 95% intervals" + (
        "; diamonds are measured in the environment." if not np.isnan(values).all() else "."
    )
    return Figure("Value of each policy", caption, svg)


def _estimates(axes: Axes, name: str, rows: Sequence[Ranked], places: NDArray[np.float64]) -> None:
    found = [row.estimates[name] for row in rows]
    values = np.array([e.value for e in found])
    spread = np.array([[e.value - e.low for e in found], [e.high - e.value for e in found]]).clip(min=0)
    ink = color(_COLORS[name])
    axes.errorbar(places, values, spread, fmt="o-", ms=5, lw=1, elinewidth=1.6, color=ink, label=TITLES[name])


def _in_words(name: str, rows: Sequence[Ranked]) -> str:
    return "; ".join(f"{row.name} {number(row.estimates[name].value)}" for row in rows)

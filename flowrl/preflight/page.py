"""The page of a check: findings by subject, and where the data lies in what the policy knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes

from flowrl.preflight.findings import SUBJECTS, Checked, Dimension
from flowrl.report.figures import Figure
from flowrl.report.svg import color, drawing, to_svg

_MOST = 40
"""Dimensions in one drawing."""
_CLIP = 2.5
"""How far beyond the policy's range, in half ranges, a bar is drawn."""


def write_page(checked: Checked, path: Path) -> None:
    """Write the self-contained page in one step, in the style of a run's report."""
    jinja = Environment(
        loader=ChoiceLoader([PackageLoader("flowrl.preflight"), PackageLoader("flowrl.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = jinja.get_template("check.html").render(
        title="Check of " + ", ".join(checked.compared),
        checked=checked,
        subjects=[(title, checked.about(subject)) for subject, title in SUBJECTS.items()],
        drawings=drawings(checked),
    )
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def drawings(checked: Checked) -> list[Figure]:
    """A drawing of all state dimensions, and one of the action's, where there is something to compare with."""
    found: list[Figure] = []
    for kind, words in (("state", "the policy's 1 % to 99 % quantiles"), ("action", "-1 to 1 of the policy")):
        those = [d for d in checked.dimensions if d.kind == kind and d.low is not None]
        for first in range(0, len(those), _MOST):
            found.append(_ranges(those[first : first + _MOST], f"{kind}-{first}", kind.capitalize(), words))
    return found


def _ranges(dimensions: Sequence[Dimension], key: str, title: str, words: str) -> Figure:
    """Bars from the 1 % to the 99 % quantile of the data, in units of the policy's range."""
    with drawing(width=6.4, height=1.1 + 0.2 * len(dimensions)) as (figure, axes):
        axes.axvspan(-1, 1, color=color("base"), alpha=0.18, linewidth=0, label="policy")
        places = np.arange(len(dimensions))[::-1]
        for place, each in zip(places, dimensions, strict=True):
            _bar(axes, float(place), each)
        axes.set_yticks(places, [each.name for each in dimensions])
        axes.set_xlim(-_CLIP - 0.1, _CLIP + 0.1)
        axes.set_ylim(-0.7, len(dimensions) - 0.3)
        axes.set_xlabel("position in the policy's range, from -1 to 1")
        outside = [f"{d.name} {d.outside:.0%}" for d in dimensions if d.outside > 0]
        svg = to_svg(figure, key, f"{title}: share outside: {', '.join(outside) or 'none'}")
    caption = (
        f"Bars are the data's 1 % to 99 % quantiles, dots its median; the shade is {words}. "
        "Bars that go on beyond the drawing are cut."
    )
    return Figure(title, caption, svg)


def _bar(axes: Axes, place: float, each: Dimension) -> None:
    assert each.low is not None
    assert each.high is not None
    centre, half = (each.low + each.high) / 2, max((each.high - each.low) / 2, 1e-9)
    low, median, high = (
        float(np.clip((value - centre) / half, -_CLIP, _CLIP)) for value in (each.q01, each.median, each.q99)
    )
    axes.plot([low, high], [place, place], color=color("tuned"), linewidth=4, solid_capstyle="butt")
    axes.plot([median], [place], "o", color=color("ink"), markersize=3)

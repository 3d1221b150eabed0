"""The drawings of a run's report: the learning curve and one panel per group of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from flowrl.evaluation import Evaluation
from flowrl.report.data import Curve, Findings
from flowrl.report.panels import Panel, panels
from flowrl.report.svg import color, drawing, to_svg

_COLORS = ("tuned", "base", "c3", "c4", "c5")


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption."""

    title: str
    caption: str
    svg: Markup


def learning_curves(found: Findings) -> list[Figure]:
    """Success while training against environment steps and against seconds; none without metrics."""
    collected = found.curve("collect/recent_success", "run/online_steps")
    if not collected:
        return []
    return [_against_steps(found, collected), *_against_seconds(found)]


def metric_figures(found: Findings) -> list[Figure]:
    """A figure for every panel of which at least one metric was logged."""
    figures = (_draw_panel(found, panel) for panel in panels(found))
    return [figure for figure in figures if figure is not None]


def _against_steps(found: Findings, collected: Curve) -> Figure:
    with drawing() as (figure, axes):
        _success_axes(axes)
        if found.warm_up_steps:
            axes.axvspan(0, found.warm_up_steps, color=color("grid"), alpha=0.45, linewidth=0)
            axes.text(found.warm_up_steps, 0.03, "warm-up ", ha="right", color=color("muted"), fontsize=8)
        axes.plot(collected.x, collected.y, color=color("c3"), label="collected")
        _evaluations(axes, found, "evaluation/env_steps", found.warm_up_steps)
        _levels(axes, found)
        axes.set_xlim(0, float(collected.x.max()) or 1.0)
        axes.set_xlabel("environment steps, warm-up included")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        svg = to_svg(figure, "curve-steps", f"Success against environment steps. {_in_words(found)}")
    caption = (
        "Success of the newest collected episodes (at most 50), under the rule for collection. The lines are "
        "the reported evaluations with their 95% intervals."
    )
    return Figure("Learning curve, by experience", caption, svg)


def _against_seconds(found: Findings) -> list[Figure]:
    collected = found.curve("collect/recent_success", "run/seconds")
    training = found.curve("run/updates", "run/seconds").y > 0
    if not found.trained or len(training) != len(collected.x):
        return []
    seconds = collected.x[training]
    with drawing() as (figure, axes):
        _success_axes(axes)
        axes.plot(seconds, collected.y[training], color=color("c3"), label="collected")
        _evaluations(axes, found, "evaluation/seconds", 0.0)
        _levels(axes, found)
        axes.set_xlim(0, float(seconds.max()) or 1.0)
        axes.set_xlabel("seconds of training, after the warm-up")
        svg = to_svg(figure, "curve-seconds", f"Success against seconds of training. {_in_words(found)}")
    return [Figure("Learning curve, by time", "The same against the clock of this machine.", svg)]


def _success_axes(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _evaluations(axes: Axes, found: Findings, x: str, offset: float) -> None:
    success, low, high = (found.curve(f"evaluation/{name}", x) for name in ("success", "low", "high"))
    if not success:
        return
    error = np.stack([success.y - low.y, high.y - success.y]).clip(min=0)
    ink = color("ink")
    axes.errorbar(success.x + offset, success.y, error, fmt="o", ms=3.5, lw=1, color=ink, label="evaluated")


def _levels(axes: Axes, found: Findings) -> None:
    for name, evaluation in (("base", found.base), ("tuned", found.tuned)):
        if evaluation is not None:
            _level(axes, name, evaluation)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, labels, loc="lower center", ncols=4, bbox_to_anchor=(0.5, 1.0))


def _level(axes: Axes, name: str, evaluation: Evaluation) -> None:
    axes.axhspan(*evaluation.interval, color=color(name), alpha=0.13, linewidth=0)
    axes.axhline(evaluation.success_rate, color=color(name), linestyle=(0, (4, 2)), linewidth=1.3, label=name)


def _in_words(found: Findings) -> str:
    last = found.last("collect/recent_success")
    parts = [f"collected episodes ended at {last:.0%}"] if last is not None else []
    if found.base is not None:
        parts.append(f"base {found.base.success_rate:.0%}")
    if found.tuned is not None:
        parts.append(f"tuned {found.tuned.success_rate:.0%}")
    return ", ".join(parts)


def _draw_panel(found: Findings, panel: Panel) -> Figure | None:
    lines = [(_updates(found.curve(metric)), label) for metric, label in panel.lines]
    drawn = [(curve, label) for curve, label in lines if curve]
    if not drawn:
        return None
    with drawing() as (figure, axes):
        if panel.band is not None:
            _band(axes, found, panel)
        dot = "o" if max(len(curve.x) for curve, _ in drawn) == 1 else None
        for (curve, label), shade in zip(drawn, _COLORS, strict=False):
            axes.plot(curve.x, curve.y, color=color(shade), label=label, marker=dot, ms=4)
        for label, value in panel.limits:
            axes.axhline(value, color=color("muted"), linestyle=(0, (2, 2)), linewidth=1.1, label=label)
        if panel.logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
            low, high = axes.get_ylim()
            axes.yaxis.set_minor_formatter(
                FuncFormatter(_two_and_five) if high < 30 * low else NullFormatter()
            )
        if panel.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("updates")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.legend(loc="lower center", ncols=4, bbox_to_anchor=(0.5, 1.0))
        svg = to_svg(figure, panel.name, f"{panel.title}, against updates. {_ends(drawn)}")
    return Figure(panel.title, panel.caption, svg)


def _updates(curve: Curve) -> Curve:
    """The rows of training: not the warm-up's, and not a last interval too short for a mean."""
    keep = curve.x > 0
    if keep.sum() > 2 and curve.x[-1] - curve.x[-2] < 0.5 * float(np.median(np.diff(curve.x[keep]))):
        keep[-1] = False
    return Curve(curve.x[keep], curve.y[keep])


def _plain(value: float, position: int | None = None) -> str:
    return f"{value:g}"


def _two_and_five(value: float, position: int | None = None) -> str:
    """Labels between the powers of ten, where a logarithmic axis spans about one."""
    return _plain(value) if f"{value:e}"[0] in "25" else ""


def _band(axes: Axes, found: Findings, panel: Panel) -> None:
    assert panel.band is not None
    metric, label = panel.band
    centre, half = _updates(found.curve(panel.lines[0][0])), _updates(found.curve(metric))
    if centre and len(centre.x) == len(half.x):
        low, high = centre.y - half.y, centre.y + half.y
        axes.fill_between(centre.x, low, high, color=color("tuned"), alpha=0.18, linewidth=0, label=label)


def _ends(drawn: Sequence[tuple[Curve, str]]) -> str:
    return "; ".join(f"{label} from {curve.y[0]:.3g} to {curve.y[-1]:.3g}" for curve, label in drawn)

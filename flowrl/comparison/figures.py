"""The drawings of a comparison: success while training, and the final rates with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from flowrl.comparison.findings import Comparison, Point, Rate, Summary
from flowrl.comparison.place import Place
from flowrl.report.figures import Figure
from flowrl.report.svg import PAPER, VARIABLES, color, drawing, save, to_svg

Palette = Mapping[str, str]
_PAGE: Palette = {name: color(name) for name in VARIABLES}
_LINES = ("tuned", "c3", "c4", "c6", "c7", "c5")
_DASHES = ("-", (0, (5, 1.5)), (0, (2, 1.5)))
_MARKS = "osD^vX"


@dataclass(frozen=True)
class _Axis:
    """A way to count how far training is."""

    name: str
    label: str
    value: Callable[[Point], float]


AXES = (
    _Axis("env-steps", "environment steps, after the warm-up", lambda point: point.env_steps),
    _Axis("updates", "updates", lambda point: point.updates),
    _Axis("seconds", "seconds of training, periodic evaluations included", lambda point: point.seconds),
)


def figures(comparison: Comparison, place: Place) -> list[Figure]:
    """Every figure for the page; each is also written as SVG and PNG file into ``figures/``."""
    if not any(summary.finished for summary in comparison.summaries):
        return []
    place.figures.mkdir(exist_ok=True)
    found = [_curves(comparison, place, axis) for axis in AXES]
    return [*found, _bars(comparison, place)]


def _curves(comparison: Comparison, place: Place, axis: _Axis) -> Figure:
    summaries = [summary for summary in comparison.summaries if summary.curve]

    def draw(axes: Axes, palette: Palette) -> None:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        base = _base(summaries)
        axes.axhline(base, color=palette["base"], linestyle=(0, (4, 2)), linewidth=1.3, label="base")
        for index, summary in enumerate(summaries):
            _curve(axes, palette, summary, axis, index)
        axes.set_xlim(left=0)
        axes.set_xlabel(axis.label)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.legend(loc="lower center", ncols=3, bbox_to_anchor=(0.5, 1.0))

    ends = "; ".join(f"{s.recipe} ends at {s.curve[-1].success:.0%}" for s in summaries)
    words = f"Success against {axis.label}: base {_base(summaries):.0%}; {ends}"
    caption = (
        "Means over seeds under each recipe's evaluation rule; bands are 95% intervals over seeds and episodes. "
        "The last point of a line is the reported evaluation, the others are periodic ones from other starts."
    )
    title = f"Success against {axis.label.split(',')[0]}"
    return Figure(title, caption, _twice(place, f"success-{axis.name}", words, (5.4, 3.1), draw))


def _curve(axes: Axes, palette: Palette, summary: Summary, axis: _Axis, index: int) -> None:
    x = [axis.value(point) for point in summary.curve]
    shade, low = palette[_LINES[index % len(_LINES)]], [point.low for point in summary.curve]
    rates, high = [point.success for point in summary.curve], [point.high for point in summary.curve]
    dash = _DASHES[index // len(_LINES) % len(_DASHES)]
    axes.fill_between(x, low, high, color=shade, alpha=0.16, linewidth=0)
    mark = _MARKS[index % len(_MARKS)]
    axes.plot(x, rates, color=shade, linestyle=dash, marker=mark, ms=3.5, label=summary.recipe)


def _base(summaries: Sequence[Summary]) -> float:
    """The base's rate over the most seeds that a recipe finished; all recipes share each seed's base."""
    return max(summaries, key=lambda summary: len(summary.finished)).rates["base"].mean


def _bars(comparison: Comparison, place: Place) -> Figure:
    summaries = [summary for summary in comparison.summaries if summary.finished]
    kinds = (
        ("base", "base, one plain sample", "base", "o"),
        ("base_own", "base, the recipe's rule", "c5", "D"),
        ("tuned_common", "tuned, one plain sample", "c3", "s"),
        ("tuned", "tuned, the recipe's rule", "tuned", "o"),
    )

    def draw(axes: Axes, palette: Palette) -> None:
        for row, summary in enumerate(summaries):
            shown = _distinct(summary)
            for step, (name, _, shade, mark) in enumerate(kinds):
                if name not in shown:
                    continue
                y = row + 0.18 * (step - 1.5)
                _bar(axes, summary.rates[name], y, palette[shade], mark, palette["muted"])
        for _, label, shade, mark in kinds:
            axes.plot([], [], mark, color=palette[shade], label=label)
        axes.set_yticks(range(len(summaries)), [summary.recipe for summary in summaries])
        axes.set_ylim(len(summaries) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))

    words = "; ".join(
        f"{s.recipe} from {s.rates['base'].mean:.0%} to {s.rates['tuned'].mean:.0%}" for s in summaries
    )
    caption = (
        "Means over seeds; thick bars are 95% intervals over seeds and starts, thin ones Wilson intervals of all "
        "episodes together (which take seeds for alike), small dots single seeds."
    )
    height = 1.1 + 0.75 * len(summaries)
    svg = _twice(place, "final", f"Final success: {words}", (5.4, height), draw)
    return Figure("Final success", caption, svg)


def _distinct(summary: Summary) -> set[str]:
    """The evaluations that are measurements of their own, not the plain one under another name."""
    run = summary.finished[0]
    names = {"base", "tuned"}
    if run.evaluation("tuned").rule != run.evaluation("tuned_common").rule:
        names.add("tuned_common")
    return names | {"base_own"} if run.own_base_measured else names


def _bar(axes: Axes, rate: Rate, y: float, shade: str, mark: str, muted: str) -> None:
    axes.plot(rate.wilson, [y, y], color=shade, linewidth=1, alpha=0.7)
    axes.plot(rate.bootstrap, [y, y], color=shade, linewidth=4, alpha=0.4)
    axes.plot(rate.by_seed, [y] * len(rate.by_seed), ".", color=muted, ms=3)
    axes.plot([rate.mean], [y], mark, color=shade, ms=5)


def _twice(
    place: Place, name: str, words: str, size: tuple[float, float], draw: Callable[[Axes, Palette], None]
) -> Markup:
    """The drawing for the page, after writing it into files of its own."""
    with drawing(*size, palette=PAPER) as (figure, axes):
        draw(axes, PAPER)
        _save(figure, place, name)
    with drawing(*size) as (figure, axes):
        draw(axes, _PAGE)
        return to_svg(figure, name, words)


def _save(figure: Drawing, place: Place, name: str) -> None:
    save(figure, place.figures / name)

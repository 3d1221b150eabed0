"""Drawings of matplotlib as inline SVG that takes its colours from the page, so that one drawing fits
light, dark and paper.

Colours are drawn as placeholders and replaced by the page's CSS variables; text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

VARIABLES = ("ink", "muted", "grid", "base", "tuned", "c3", "c4", "c5", "c6", "c7")
"""The page's CSS variables that a drawing may use."""

_PLACEHOLDERS = {name: f"#fe{index:02x}ef" for index, name in enumerate(VARIABLES)}
_LIGHT = "#17202b #5b6775 #dfe3e9 #c2620a #0b7f72 #5b4fd0 #c02f6b #64748b #2563a8 #8a6d00"
PAPER: Mapping[str, str] = dict(zip(VARIABLES, _LIGHT.split(), strict=True))
"""The page's light colours, for drawings that stand in files of their own."""


def _style(palette: Mapping[str, str]) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "flowrl",
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": palette["grid"],
        "axes.labelcolor": palette["muted"],
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": palette["grid"],
        "grid.linewidth": 0.6,
        "xtick.color": palette["grid"],
        "ytick.color": palette["grid"],
        "xtick.labelcolor": palette["muted"],
        "ytick.labelcolor": palette["muted"],
        "xtick.major.size": 0.0,
        "ytick.major.size": 0.0,
        "xtick.minor.size": 0.0,
        "ytick.minor.size": 0.0,
        "text.color": palette["ink"],
        "text.parse_math": False,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "legend.handlelength": 1.4,
        "lines.linewidth": 1.7,
        "lines.solid_capstyle": "round",
    }


def color(name: str) -> str:
    """The drawing colour that becomes the page's variable ``name``."""
    return _PLACEHOLDERS[name]


@contextmanager
def drawing(
    width: float = 4.4, height: float = 2.7, palette: Mapping[str, str] = _PLACEHOLDERS
) -> Generator[tuple[Figure, Axes]]:
    """A figure with one pair of axes, in inches, in the page's style; no global state is touched.

    ``palette`` colours it by the names of `VARIABLES`; with the default, `to_svg` leaves that to the page.
    """
    with mpl.rc_context(_style(palette)):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        yield figure, axes


def to_svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an ``<svg>`` element to put into a page. Call it inside `drawing`.

    ``name`` makes the element ids unique on the page; ``description`` is what a reader who does not
    see the drawing is told.
    """
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Inline SVG needs no namespaces, and its only ids of use are those it refers to.
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    for variable, placeholder in _PLACEHOLDERS.items():
        text = text.replace(placeholder, f"var(--{variable})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = Markup('<svg role="img" aria-label="{}" ').format(description)
    return head + Markup(box[0] + text[text.index(">") :])


def save(figure: Figure, path: Path) -> None:
    """Write a figure drawn with `PAPER` as files ending in .svg and .png, on white. Call it inside `drawing`."""
    figure.patch.set(visible=True, facecolor="white")
    FigureCanvasSVG(figure).print_svg(path.with_suffix(".svg"), metadata={"Date": None})
    figure.set_dpi(160)
    FigureCanvasAgg(figure).print_png(path.with_suffix(".png"), metadata={"Software": None})

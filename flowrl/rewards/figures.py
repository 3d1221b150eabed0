"""The drawings of a classifier: its ROC curve, and the scores along validation episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from flowrl.report.svg import PAPER, drawing, save
from flowrl.rewards.metrics import roc_curve
from flowrl.rewards.validation import EpisodeResult, Validation

_SHOWN = 20
"""Episodes of each kind in the drawing of scores."""


def write_figures(validation: Validation, directory: Path) -> None:
    """Write ``roc`` and ``scores`` as .svg and .png files into a new directory."""
    directory.mkdir()
    _roc(validation, directory / "roc")
    _scores(validation, directory / "scores")


def _roc(validation: Validation, path: Path) -> None:
    false, true = roc_curve(*validation.arrays())
    frames = validation.frames
    with drawing(3.6, 3.2, PAPER) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=PAPER["grid"], linewidth=1)
        axes.plot(false, true, color=PAPER["tuned"], drawstyle="steps-post", clip_on=False)
        axes.plot(
            [frames.false_positive_rate],
            [frames.recall],
            "o",
            color=PAPER["base"],
            clip_on=False,
            label=f"threshold {validation.threshold:.3g}",
        )
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(-0.01, 1.01)
        axes.set_xlabel("share of other frames called a success")
        axes.set_ylabel("share of success frames found")
        axes.set_title(f"ROC AUC {validation.auc:.3f}", fontsize=9, loc="left")
        axes.legend(loc="lower right")
        save(figure, path)


def _scores(validation: Validation, path: Path) -> None:
    with drawing(6.4, 3.0, PAPER) as (figure, axes):
        for success, ink, label in ((False, "base", "failed"), (True, "tuned", "successful")):
            chosen = [result for result in validation.results if result.success == success]
            for index, result in enumerate(chosen[:_SHOWN]):
                _episode(axes, result, PAPER[ink], label if index == 0 else None)
        axes.axhline(validation.threshold, color=PAPER["ink"], linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            "threshold",
            (1, validation.threshold),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("steps taken")
        axes.set_ylabel("score")
        axes.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
        save(figure, path)


def _episode(axes: Axes, result: EpisodeResult, ink: str, label: str | None) -> None:
    """The scores of one validation episode; a dot where it is called a success."""
    axes.plot(np.arange(len(result.scores)), result.scores, color=ink, linewidth=1, alpha=0.8, label=label)
    if result.detected is not None:
        axes.plot([result.detected], [result.scores[result.detected]], "o", ms=4, color=ink)

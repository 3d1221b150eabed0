"""What a classifier does on episodes it was not trained on; the threshold is chosen there, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from flowrl.rewards.metrics import Counts, Scores, Truth


def first_success(scores: Scores, threshold: float) -> int | None:
    """The number of steps after which an episode is a success, by the scores (F,) of its observations.

    The first observation comes before any step, so it cannot end one. None when no score reaches the threshold.
    """
    reached = np.flatnonzero(scores[1:] >= threshold)
    return int(reached[0]) + 1 if len(reached) else None


@dataclass(frozen=True)
class EpisodeResult:
    """One validation episode: what it is, what the classifier says, and the scores of its observations.

    ``detected`` is the number of steps after which it is called a success, None when it is not.
    """

    stream: str
    episode: int
    success: bool
    steps: int
    detected: int | None
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Validation:
    """The table of a classifier: over ``frames`` with and without success, and over whole ``episodes``.

    ``frame_scores`` and ``frame_truth`` (N,) are what ``auc`` and the threshold come from.
    """

    threshold: float
    false_positives: float
    auc: float
    frames: Counts
    episodes: Counts
    results: tuple[EpisodeResult, ...]
    frame_scores: tuple[float, ...]
    frame_truth: tuple[bool, ...]

    @property
    def early(self) -> list[int]:
        """By how many steps each success that was found was found before the end of its episode."""
        return [r.steps - r.detected for r in self.results if r.success and r.detected is not None]

    def arrays(self) -> tuple[Scores, Truth]:
        """Scores and truth of the frames (N,)."""
        return np.array(self.frame_scores, np.float64), np.array(self.frame_truth, bool)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave. Raises KeyError or TypeError when it is something else."""
        return cls(
            data["threshold"],
            data["false_positives"],
            data["auc"],
            Counts(**data["frames"]),
            Counts(**data["episodes"]),
            tuple(EpisodeResult(**result) for result in data["results"]),
            tuple(data["frame_scores"]),
            tuple(data["frame_truth"]),
        )

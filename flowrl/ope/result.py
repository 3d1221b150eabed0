"""What a ranking found, as values and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowrl.evaluation import Evaluation
from flowrl.ope.agreement import regret_at, sharpe_ratio_at, spearman

FORMAT = 1
"""Version of the JSON layout; it grows when a key changes its meaning or goes."""
MAX_K = 3
TITLES = {"fqe": "fitted-Q", "wpdis": "importance sampling"}


@dataclass(frozen=True)
class Estimate:
    """An estimator's answer for one candidate, with a 95 % interval.

    ``details`` are its diagnostics by name, ``warnings`` say in words when not to trust it.
    """

    value: float
    low: float
    high: float
    details: Mapping[str, float]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """The truth by episodes in the environment.

    ``value`` is in the unit of the estimates where that is known (success rewards), NaN otherwise;
    ``low`` and ``high`` are the Wilson interval of the success rate.
    """

    episodes: int
    success_rate: float
    low: float
    high: float
    value: float

    @classmethod
    def of(cls, evaluation: Evaluation, discount: float | None) -> Measured:
        """From an evaluation. ``discount`` is given where estimates are of the discounted success."""
        low, high = evaluation.interval
        value = math.nan
        if discount is not None:
            earned = [discount ** (e.length - 1) * e.success for e in evaluation.episodes]
            value = sum(earned) / len(earned)
        return cls(len(evaluation.episodes), evaluation.success_rate, low, high, value)

    @property
    def comparable(self) -> float:
        """What estimates are ranked against: ``value`` where known, else the success rate."""
        return self.success_rate if math.isnan(self.value) else self.value


@dataclass(frozen=True)
class Ranked:
    """A candidate with its estimates by estimator and, where measured, the truth."""

    name: str
    directory: str
    updates: int | None
    also: tuple[str, ...]
    estimates: Mapping[str, Estimate]
    truth: Measured | None


@dataclass(frozen=True)
class Neighbours:
    """Two candidates that follow each other in the ranking, and the interval of their difference."""

    better: str
    worse: str
    difference: float
    low: float
    high: float

    @property
    def apart(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.low > 0

    def __str__(self) -> str:
        verb = "is above" if self.apart else "is not told apart from"
        interval = f"{self.low:.3g} to {self.high:.3g}"
        return (
            f"{self.better} {verb} {self.worse}: difference {self.difference:.3g}, 95 % interval {interval}"
        )


@dataclass(frozen=True)
class Agreement:
    """How an estimator's ranking agrees with the truth; lists run over k = 1, 2, 3."""

    rank_correlation: float
    regret: tuple[float, ...]
    sharpe_ratio: tuple[float, ...]

    @classmethod
    def of(cls, estimates: Sequence[float], truth: Sequence[float], baseline: float) -> Agreement:
        """Of the candidates with an estimate. ``baseline`` is the true value of the base."""
        ks = range(1, min(MAX_K, len(estimates)) + 1)
        return cls(
            spearman(estimates, truth),
            tuple(regret_at(k, estimates, truth) for k in ks),
            tuple(sharpe_ratio_at(k, estimates, truth, baseline) for k in ks),
        )


@dataclass(frozen=True)
class Ranking:
    """A ranking of candidates from logged data.

    Attributes:
        run, replay: where the candidates and the data lie.
        quantity: what is estimated, in words.
        rule: the acting rule under which the candidates are valued.
        discount: gamma per environment step.
        episodes, rows, held_out: episodes and steps used, and the episodes among them held out.
        returns: smallest, mean and largest logged return.
        primary: the estimator that ranks.
        ranked: candidates, the best estimate first; those without one last.
        neighbours: by estimator, each candidate against the next of that estimator's ranking.
        agreement: by estimator, where the truth was measured.
        notes: what concerns the whole ranking.
        settings: the options used.
    """

    run: str
    replay: str
    quantity: str
    rule: str
    discount: float
    episodes: int
    rows: int
    held_out: int
    returns: tuple[float, float, float]
    primary: str
    ranked: tuple[Ranked, ...]
    neighbours: Mapping[str, tuple[Neighbours, ...]]
    agreement: Mapping[str, Agreement]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As JSON values, numbers that are not finite as null."""
        return _finite({"format": FORMAT, **asdict(self)})


def write_json(ranking: Ranking, path: Path) -> None:
    """Write a ranking in one step."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(ranking.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

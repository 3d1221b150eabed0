"""What a comparison found: read from its run directories, summarised, and stored as ``comparison.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from flowrl.comparison.place import Place
from flowrl.comparison.plan import Plan
from flowrl.comparison.runs import RunFound
from flowrl.comparison.statistics import (
    Array,
    Difference,
    crossed_interval,
    curve_interval,
    paired_difference,
)
from flowrl.evaluation import Evaluation
from flowrl.learner.config import AsynchronousConfig
from flowrl.statistics import wilson_interval

FORMAT = 1


@dataclass(frozen=True)
class Rate:
    """A success rate over seeds.

    ``low`` and ``high`` span both intervals: the two-way ``bootstrap``, which has no width where all
    outcomes are equal, and Wilson's of all episodes together, which takes seeds for alike.
    """

    mean: float
    low: float
    high: float
    bootstrap: tuple[float, float]
    wilson: tuple[float, float]
    by_seed: tuple[float, ...]

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> Rate:
        """Over one evaluation per seed, all from the same starts."""
        outcomes = outcome_matrix(evaluations)
        wilson = wilson_interval(int(outcomes.sum()), outcomes.size)
        bootstrap = crossed_interval(outcomes)
        means = tuple(e.success_rate for e in evaluations)
        return cls(float(outcomes.mean()), *span_of(bootstrap, wilson), bootstrap, wilson, means)


@dataclass(frozen=True)
class Point:
    """A point of a success curve: means over the seeds that have it, and a 95 % band."""

    updates: float
    env_steps: float
    seconds: float
    success: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Against:
    """A recipe against the first one, over the seeds that both finished, once per acting rule."""

    seeds: tuple[int, ...]
    own: Difference
    """Each under its own rule."""
    common: Difference
    """Both by one plain sample."""


@dataclass(frozen=True)
class Summary:
    """One recipe over its finished seeds; ``runs`` holds the unfinished ones, too."""

    recipe: str
    algorithm: str
    runs: tuple[RunFound, ...]
    rates: Mapping[str, Rate]
    """By evaluation: base, base_own, tuned, tuned_common."""
    gain: Difference | None
    """Tuned against base, both under the recipe's rule where the base could be measured so."""
    against: Against | None
    """None for the first recipe and where no seed is finished on both sides."""
    curve: tuple[Point, ...]

    @property
    def finished(self) -> tuple[RunFound, ...]:
        """The finished runs, by seed."""
        return tuple(run for run in self.runs if run.finished)

    def mean(self, value: Callable[[RunFound], float | None]) -> float | None:
        """The mean of a number over finished runs; None when one lacks it or there is none."""
        found = [value(run) for run in self.finished]
        known = [each for each in found if each is not None]
        return fmean(known) if known and len(known) == len(found) else None


@dataclass(frozen=True)
class Comparison:
    """All recipes of a comparison, the first being the one the others are held against."""

    plan: Plan
    summaries: tuple[Summary, ...]

    @property
    def unfinished(self) -> list[RunFound]:
        """Runs that failed or are missing, with their reasons."""
        return [run for summary in self.summaries for run in summary.runs if not run.finished]

    @classmethod
    def read(
        cls, plan: Plan, place: Place, reasons: Mapping[tuple[str, int], str] | None = None
    ) -> Comparison:
        """Read a comparison's directory. ``reasons`` say by recipe and seed why a run is not finished."""
        reasons = reasons or {}
        summaries: list[Summary] = []
        for contender in plan.contenders:
            name = contender.name
            runs = [
                RunFound.read(place, name, seed, reasons.get((name, seed), "not run yet"))
                for seed in plan.seeds
            ]
            first = summaries[0] if summaries else None
            kind = contender.config.algorithm.kind
            periodic = contender.config.evaluation.periodic_episodes
            summaries.append(summarise(name, kind, runs, periodic, first))
        return cls(plan, tuple(summaries))

    def to_json(self) -> dict[str, Any]:
        """Everything, as ``comparison.json`` holds it (docs/compare.md)."""
        return {
            "format": FORMAT,
            "recipes": [summary.recipe for summary in self.summaries],
            "seeds": list(self.plan.seeds),
            "driver": self.plan.contenders[0].config.driver.kind,
            "budget": asdict(self.plan.contenders[0].config.budget),
            "episodes": self.plan.contenders[0].config.evaluation.episodes,
            "summaries": [_summary_json(summary) for summary in self.summaries],
            "runs": [run.to_json() for summary in self.summaries for run in summary.runs],
        }

    @property
    def asynchronous(self) -> bool:
        """Whether a recipe kept the asynchronous driver."""
        return any(isinstance(c.config.driver, AsynchronousConfig) for c in self.plan.contenders)


def summarise(
    recipe: str, algorithm: str, runs: Sequence[RunFound], periodic_episodes: int, first: Summary | None
) -> Summary:
    """Summarise a recipe's runs and hold them against the first recipe's, if it is not the first."""
    done = [run for run in runs if run.finished]
    names = ("base", "base_own", "tuned", "tuned_common") if done else ()
    rates = {name: Rate.of([run.evaluation(name) for run in done]) for name in names}
    gain = _difference([(run.evaluation("base_own"), run.evaluation("tuned")) for run in done])
    against = _against(first, done) if first is not None else None
    return Summary(recipe, algorithm, tuple(runs), rates, gain, against, curve(done, periodic_episodes))


def _against(first: Summary, runs: Sequence[RunFound]) -> Against | None:
    reference = {run.seed: run for run in first.finished}
    both = [(reference[run.seed], run) for run in runs if run.seed in reference]
    own, common = (
        _difference([(a.evaluation(name), b.evaluation(name)) for a, b in both])
        for name in ("tuned", "tuned_common")
    )
    if own is None or common is None:
        return None
    return Against(tuple(run.seed for _, run in both), own, common)


def _difference(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> Difference | None:
    if not pairs:
        return None
    before, after = (outcome_matrix([pair[side] for pair in pairs]) for side in (0, 1))
    return paired_difference(before, after)


def outcome_matrix(evaluations: Sequence[Evaluation]) -> Array:
    """Successes (S, E) of evaluations from the same starts, in the order of the starts."""
    rows = [[float(e.success) for e in sorted(found.episodes, key=_start)] for found in evaluations]
    starts = {tuple(sorted(e.seed for e in found.episodes)) for found in evaluations}
    assert len(starts) == 1, "evaluations of a comparison share their starts"
    return np.array(rows)


def _start(episode: Any) -> int:
    return episode.seed


def curve(runs: Sequence[RunFound], periodic_episodes: int) -> tuple[Point, ...]:
    """Success while training, averaged over seeds at equal numbers of updates, and at the end.

    A periodic point is kept where every seed has it. The last point is the reported evaluation. Where the
    recipe acts by one plain sample, the curve begins at the base, which is then its first evaluation.
    """
    if not runs:
        return ()
    rows: list[tuple[list[Mapping[str, float]], int]] = []
    if all(run.evaluation("tuned").rule == run.evaluation("base").rule for run in runs):
        zero = {"updates": 0.0, "env_steps": 0.0, "seconds": 0.0}
        start = [{**zero, "success": run.evaluation("base").success_rate} for run in runs]
        rows.append(([*start], len(runs[0].evaluation("base").episodes)))
    by_updates = [{point["updates"]: point for point in run.points[:-1]} for run in runs]
    shared = sorted(set.intersection(*(set(points) for points in by_updates)))
    rows += [([points[at] for points in by_updates], periodic_episodes) for at in shared]
    rows.append(([run.points[-1] for run in runs], len(runs[0].evaluation("tuned").episodes)))
    return tuple(_point(points, episodes) for points, episodes in rows)


def _point(points: Sequence[Mapping[str, float]], episodes: int) -> Point:
    means = {name: fmean(point[name] for point in points) for name in ("updates", "env_steps", "seconds")}
    rates = [point["success"] for point in points]
    wilson = wilson_interval(round(sum(rates) * episodes), len(rates) * episodes)
    low, high = span_of(curve_interval(rates, episodes), wilson)
    return Point(**means, success=fmean(rates), low=low, high=high, seeds=len(points))


def span_of(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The shortest interval that holds both."""
    return min(one[0], other[0]), max(one[1], other[1])


def _summary_json(summary: Summary) -> dict[str, Any]:
    def difference(found: Difference | None) -> dict[str, Any] | None:
        return None if found is None else {**asdict(found), "direction": found.direction}

    against = summary.against
    return {
        "recipe": summary.recipe,
        "algorithm": summary.algorithm,
        "seeds": [run.seed for run in summary.finished],
        "rates": {name: asdict(rate) for name, rate in summary.rates.items()},
        "gain": difference(summary.gain),
        "against_first": against
        and {
            "seeds": list(against.seeds),
            "own": difference(against.own),
            "common": difference(against.common),
        },
        "curve": [asdict(point) for point in summary.curve],
    }


def write_json(comparison: Comparison, place: Place) -> None:
    """Write ``comparison.json`` in one step."""
    path = place.directory / "comparison.json"
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(comparison.to_json(), indent=2) + "\n")
    aside.replace(path)

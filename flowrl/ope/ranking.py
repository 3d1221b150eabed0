"""Rank policies from logged data: candidates, data, estimators, bootstrap, truth, in this order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flowrl.acting import Actor
from flowrl.config import configclass, to_mapping
from flowrl.errors import ReplayError, UsageError
from flowrl.evaluation import Evaluation
from flowrl.learner.progress import Progress, Quiet
from flowrl.learner.run import Run
from flowrl.ope import trust
from flowrl.ope.behaviour import attribute
from flowrl.ope.candidates import Candidate, find_candidates
from flowrl.ope.data import EpisodeSubset, LoggedData, RewardChoice, reward_column, split
from flowrl.ope.fqe import FQE, FQEConfig, FQEValues
from flowrl.ope.intervals import Counts, Interval, resample, two_way_means
from flowrl.ope.likelihood import tractable
from flowrl.ope.result import Agreement, Estimate, Measured, Neighbours, Ranked, Ranking
from flowrl.ope.work import Counter, in_threads
from flowrl.ope.wpdis import Decisions, Weighted
from flowrl.replay.reader import ReplayReader

Measure = Callable[[Actor], Evaluation]
"""Evaluates an actor in the environment."""


@configclass
class OPEConfig:
    """How candidates are ranked."""

    method: Literal["fqe", "wpdis", "all"] = "fqe"
    """Estimators: fitted-Q, importance sampling, or both; fitted-Q then ranks."""
    fqe: FQEConfig = FQEConfig()
    """The critics of fitted-Q evaluation."""
    discount: float | None = None
    """gamma per environment step; None takes the run's."""
    reward: RewardChoice = "auto"
    """raw, success (1 on the last step of a success), or auto: success where the raw reward says no more."""
    held_out: float = 0.2
    """Share of the episodes that fitting never sees."""
    bootstrap: int = 2000
    """Bootstrap draws of the intervals."""
    zero_noise: bool = False
    """Value the policies when they act without their own noise."""
    seed: int = 0
    """Seed of the split, the fits and the bootstrap."""
    jobs: int = 1
    """Candidates that are fitted at the same time."""


@dataclass(frozen=True)
class _Answer:
    """An estimator's answer for one candidate: value, bootstrap samples (R,), diagnostics, warnings."""

    value: float
    samples: Counts
    details: Mapping[str, float]
    warnings: tuple[str, ...]

    def estimate(self) -> Estimate:
        if math.isnan(self.value):
            return Estimate(self.value, math.nan, math.nan, self.details, self.warnings)
        interval = Interval.of(self.samples)
        moved = abs(self.details.get("drift", 0.0))
        warnings = (*self.warnings, *trust.drift(moved, interval.half_width))
        return Estimate(self.value, interval.low, interval.high, self.details, warnings)


def rank(
    run: Run,
    config: OPEConfig,
    *,
    policies: Sequence[Path] = (),
    replay: Path | None = None,
    behaviour: Path | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Rank a run's policies, or the given ``policies`` with its base, from its replay or the given one.

    ``behaviour`` is the policy that collected the replay, for importance sampling. ``measure`` adds the
    truth.

    Raises:
        UsageError: nothing to rank, too few episodes, or no densities where only ``wpdis`` was asked for.
        ReplayError: the replay holds nothing.
        SpecMismatch: a policy does not fit the data or another policy; every difference is named.
    """
    progress = progress or Quiet()
    reader = ReplayReader(replay or run.replay)
    if not reader.episodes:
        raise ReplayError(f"replay {str(reader.path)!r} holds no finished episode; collect or import first")
    candidates = find_candidates(run, policies, reader.spec)
    discount = run.config().algorithm.discount if config.discount is None else config.discount
    data = split(reader, config.held_out, discount, config.reward, config.seed)
    actors = [Actor(candidate.policy, zero_noise=config.zero_noise) for candidate in candidates]
    notes = [*trust.on_data(data, actors[0]), *_other_rule(run, actors[0])]
    answers = dict[str, list[_Answer]]()
    if config.method != "wpdis":
        answers["fqe"] = _fitted(actors, data, config, progress)
    if config.method != "fqe":
        try:
            answers["wpdis"] = _weighted(candidates, reader, run, behaviour, data, config, progress)
        except UsageError as error:
            if config.method == "wpdis":
                raise
            notes.append(f"No importance sampling: {error}.")
    truth = [None if measure is None else measure(actor) for actor in actors]
    return _ranking(run, reader, config, data, actors[0].rule, candidates, answers, truth, notes)


def _fitted(
    actors: Sequence[Actor], data: LoggedData, config: OPEConfig, progress: Progress
) -> list[_Answer]:
    """Fitted-Q evaluation of every candidate, with the same bootstrap draws for all."""
    fits = [FQE(actor, data, config.fqe, config.seed) for actor in actors]
    total = len(fits) * config.fqe.seeds * config.fqe.updates
    progress.phase(f"fitting the values of {len(fits)} policies", total)
    counter = Counter(lambda done: progress.advance(done, f"{done:,} of {total:,} updates"))
    found = in_threads([lambda fit=fit: fit.run(counter.add) for fit in fits], config.jobs, counter.stop)
    units = resample(data.episodes, config.bootstrap, config.seed)
    refits = resample(config.fqe.seeds, config.bootstrap, config.seed + 1)
    return [_fqe_answer(values, found[0], data, units, refits) for values in found]


def _fqe_answer(
    values: FQEValues, base: FQEValues, data: LoggedData, units: Counts, refits: Counts
) -> _Answer:
    details = {
        "td_error": values.td_error,
        "distance": values.distance,
        "outside": values.outside,
        "drift": values.drift,
        "seed_std": float(values.values.mean(axis=1).std()),
    }
    samples = two_way_means(values.values, units, refits)
    return _Answer(values.estimate, samples, details, trust.on_fit(values, base, data))


def _weighted(
    candidates: Sequence[Candidate],
    reader: ReplayReader,
    run: Run,
    behaviour: Path | None,
    data: LoggedData,
    config: OPEConfig,
    progress: Progress,
) -> list[_Answer]:
    """Importance sampling on the episodes whose policy is known, with the same draws for all."""
    if config.zero_noise:
        raise UsageError("a policy that acts without noise has no density; leave out --zero-noise")
    collected = attribute(reader, run, behaviour)
    if not tractable(collected.policy):
        raise UsageError(f"a policy of kind {collected.policy.kind!r} has no density that is known here")
    episodes = EpisodeSubset(reader, collected.episodes, reward_column(reader, data.rewarded))
    decisions = Decisions.of(episodes, collected.policy.chunk.length, data.discount)
    progress.phase("densities of the logged chunks", len(candidates) + 1)
    behind = decisions.densities(collected.policy)
    counts = resample(episodes.episodes, config.bootstrap, config.seed)
    answers = list[_Answer]()
    for done, candidate in enumerate(candidates, start=1):
        progress.advance(done, candidate.name)
        if not tractable(candidate.policy):
            why = f"a policy of kind {candidate.policy.kind!r} has no density that is known here"
            answers.append(_Answer(math.nan, np.empty(0), {}, (why,)))
            continue
        ahead = decisions.densities(candidate.policy)
        weighted = Weighted(decisions.log_ratios(ahead, behind), decisions.rewards)
        answers.append(_wpdis_answer(weighted, counts, trust.on_weights(weighted, ahead, behind)))
    if all(math.isnan(answer.value) for answer in answers):
        raise UsageError(f"no candidate has an estimate; {answers[0].warnings[0]}")
    return answers


def _wpdis_answer(weighted: Weighted, counts: Counts, warnings: tuple[str, ...]) -> _Answer:
    details = {
        "episodes": float(weighted.usable.sum()),
        "of": float(len(weighted.usable)),
        "effective_share": weighted.effective_share,
        "effective_first": float(weighted.effective[0]),
    }
    return _Answer(weighted.estimate, weighted.resampled(counts), details, warnings)


def _ranking(
    run: Run,
    reader: ReplayReader,
    config: OPEConfig,
    data: LoggedData,
    rule: str,
    candidates: Sequence[Candidate],
    answers: Mapping[str, Sequence[_Answer]],
    truth: Sequence[Evaluation | None],
    notes: Sequence[str],
) -> Ranking:
    known = data.discount if data.rewarded == "success" else None
    measured = [None if found is None else Measured.of(found, known) for found in truth]
    primary = next(iter(answers))
    ranked = [
        Ranked(
            candidate.name,
            str(candidate.directory),
            candidate.updates,
            candidate.also,
            {name: found[i].estimate() for name, found in answers.items()},
            measured[i],
        )
        for i, candidate in enumerate(candidates)
    ]
    returns = data.returns()
    return Ranking(
        run=str(run.directory),
        replay=str(reader.path),
        quantity=_quantity(data),
        rule=rule,
        discount=data.discount,
        episodes=data.episodes,
        rows=data.rows,
        held_out=data.held_out.episodes,
        returns=(float(returns.min()), float(returns.mean()), float(returns.max())),
        primary=primary,
        ranked=tuple(ranked[i] for i in _order(answers[primary])),
        neighbours={name: _neighbours(candidates, found) for name, found in answers.items()},
        agreement={name: _agreement(found, measured) for name, found in answers.items() if measured[0]},
        notes=tuple(notes),
        settings=_settings(config),
    )


def _other_rule(run: Run, actor: Actor) -> list[str]:
    """A note where the run evaluated its tuned policy by another rule than the candidates are valued by."""
    if not run.policy.is_dir() or (rule := run.tuned_actor().rule) == actor.rule:
        return []
    return [f"The run evaluated its tuned policy by {rule}; here every policy is valued by {actor.rule}."]


def _quantity(data: LoggedData) -> str:
    if data.rewarded == "success":
        return f"success, discounted by {data.discount:g} per step until it comes"
    return f"return in the raw reward, discounted by {data.discount:g} per step"


def _settings(config: OPEConfig) -> Mapping[str, Any]:
    """Everything the numbers depend on."""
    return {key: value for key, value in to_mapping(config).items() if key != "jobs"}


def _order(answers: Sequence[_Answer]) -> list[int]:
    """Positions by falling value; equal values keep their order, those without a value come last."""
    values = [-math.inf if math.isnan(answer.value) else answer.value for answer in answers]
    return sorted(range(len(values)), key=lambda i: -values[i])


def _neighbours(candidates: Sequence[Candidate], answers: Sequence[_Answer]) -> tuple[Neighbours, ...]:
    """Each candidate against the next; draws are shared, so that differences are paired."""
    order = [i for i in _order(answers) if not math.isnan(answers[i].value)]
    found = list[Neighbours]()
    for better, worse in pairwise(order):
        first, second = answers[better], answers[worse]
        interval = Interval.of(first.samples - second.samples)
        names = candidates[better].name, candidates[worse].name
        found.append(Neighbours(*names, first.value - second.value, interval.low, interval.high))
    return tuple(found)


def _agreement(answers: Sequence[_Answer], measured: Sequence[Measured | None]) -> Agreement:
    pairs = [
        (answer.value, truth.comparable)
        for answer, truth in zip(answers, measured, strict=True)
        if truth is not None and not math.isnan(answer.value)
    ]
    base = measured[0]
    assert base is not None
    return Agreement.of([value for value, _ in pairs], [truth for _, truth in pairs], base.comparable)

"""Summaries, verdicts and measured times of synthetic runs with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.comparison import Comparison, Contender, Plan
from flowrl.comparison.findings import Rate, Summary, curve, summarise
from flowrl.comparison.measure import periodic_points, update_ms
from flowrl.comparison.runs import RunFound
from flowrl.comparison.words import caveats, verdicts
from flowrl.config import load_recipe
from flowrl.learner.config import RunConfig
from flowrl.learner.metrics import JsonlSink, Metrics
from flowrl.learner.run import Run
from flowrl.statistics import wilson_interval
from tests.report.builders import RULE, rate

BEST = "best of 8 ODE samples by the critic's mean, random noise, 5 Euler steps"


def run(recipe: str, seed: int, tuned: int, rule: str = RULE, base_own: int | None = None) -> RunFound:
    """A run whose base succeeds from 20 of 50 starts."""
    points = [
        {"updates": at, "env_steps": 10 * at + seed, "seconds": 1.0, "success": 0.5}
        for at in (10, 20, 30 + seed)
    ]
    return RunFound(
        recipe,
        seed,
        f"runs/{recipe}-{seed}",
        base=rate(20),
        base_own=rate(20 if base_own is None else base_own, rule=rule),
        own_base_measured=base_own is not None,
        tuned=rate(tuned, rule=rule),
        tuned_common=rate(20),
        result={"steps": 100, "updates": 40, "train_s": 2.0, "deviations": [f"seed {seed}", "both"]},
        measured={"parameters": {"acting": 1, "trained": 2}, "update_ms": {"mean": 1.0, "median": 1.0}},
        points=[*points, {"updates": 40, "env_steps": 400, "seconds": 2.0, "success": tuned / 50}],
    )


def against(tuned: int, seeds: int = 3) -> Comparison:
    """A recipe at 60 % and another one, on every seed."""
    config = load_recipe(RunConfig, "lift_sqam")
    first = summarise("a", "sqam", [run("a", s, 30) for s in range(seeds)], 20, None)
    other = summarise("b", "sqam", [run("b", s, tuned) for s in range(seeds)], 20, first)
    return Comparison(
        Plan((Contender("a", config), Contender("b", config)), tuple(range(seeds))), (first, other)
    )


@pytest.mark.parametrize(
    ("tuned", "words"),
    [
        (45, "b is better than a, each under its own rule: +30 points"),
        (15, "b is worse than a, each under its own rule: -30 points"),
        (30, "b and a are not told apart, each under its own rule: +0 points (+0 to +0)."),
    ],
)
def test_a_verdict_says_what_the_difference_shows(tuned: int, words: str) -> None:
    (sentence,) = verdicts(against(tuned))
    assert sentence.startswith(words)
    assert "By one plain sample they are not told apart: +0 points" in sentence or tuned == 30


def test_few_seeds_and_time_limits_are_open_questions() -> None:
    assert "One seed compares two runs" in " ".join(caveats(against(45, seeds=1)))
    text = " ".join(caveats(against(45)))
    assert "3 seeds: intervals over so few are rough" in text
    assert "limit of 210 s" in text


def test_nothing_is_said_without_a_common_seed() -> None:
    first = summarise("a", "sqam", [run("a", 0, 30), RunFound("a", 1, "", "failed")], 20, None)
    other = summarise("b", "sqam", [RunFound("b", 0, "", "failed"), run("b", 1, 45)], 20, first)
    assert other.against is None
    plan = against(45, 2).plan
    assert "nothing can be said" in verdicts(Comparison(plan, (first, other)))[0]


def test_the_gain_is_measured_under_the_rule_of_the_recipe() -> None:
    (summary,) = (summarise("a", "sqam", [run("a", 0, 40, BEST, base_own=35)], 20, None),)
    assert summary.gain is not None
    assert summary.gain.mean == pytest.approx(0.1)
    assert (summary.gain.gained, summary.gain.lost) == (5, 0)


def test_a_curve_keeps_what_every_seed_has_and_starts_at_the_base_only_under_its_rule() -> None:
    plain = curve([run("a", 0, 40), run("a", 1, 30)], 20)
    assert [point.updates for point in plain] == [0, 10, 20, 40]
    assert [point.env_steps for point in plain] == [0, 100.5, 200.5, 400]
    assert [point.success for point in plain] == pytest.approx([0.4, 0.5, 0.5, 0.7])
    chosen = curve([run("a", 0, 40, BEST)], 20)
    assert [point.updates for point in chosen] == [10, 20, 30, 40]


def test_a_rule_that_the_base_cannot_have_is_named() -> None:
    comparison = against(45)
    odd = summarise("odd", "x", [run("odd", 0, 40, "one decoded sample")], 20, None)
    plan = comparison.plan
    found = Comparison(plan, (comparison.summaries[0], odd))
    assert "odd acts by one decoded sample; its base cannot" in " ".join(caveats(found))


def test_equal_outcomes_still_have_an_interval() -> None:
    found = Rate.of([rate(0, 10), rate(0, 10)])
    assert found.bootstrap == (0.0, 0.0)
    assert (found.low, found.high) == wilson_interval(0, 20)
    never = [{"updates": 1.0, "env_steps": 1.0, "seconds": 1.0, "success": 0.0}]
    (first, _) = curve([RunFound("a", 0, "", base=rate(20), tuned=rate(0, rule=BEST), points=never * 2)], 10)
    assert (first.low, first.high) == wilson_interval(0, 10)


def test_a_mean_is_unknown_when_one_run_lacks_the_number() -> None:
    summary: Summary = against(45).summaries[0]
    assert summary.mean(lambda each: each.result["updates"]) == 40
    assert summary.mean(lambda each: None if each.seed else 1.0) is None


def logged(directory: Path, lines: list[tuple[int, dict[str, float]]]) -> Run:
    run = Run(directory)
    metrics = Metrics([JsonlSink(run.metrics)])
    for step, values in lines:
        metrics.write(step, values)
    metrics.close()
    return run


def test_the_time_of_an_update_is_weighted_by_the_updates_of_its_interval(tmp_path: Path) -> None:
    lines = [(0, {"warm_up/x": 1.0}), (10, {"run/update_ms": 2.0}), (20, {"run/update_ms": 4.0})]
    run = logged(tmp_path, [*lines, (22, {"run/update_ms": 9.0})])
    assert update_ms(run) == {"mean": pytest.approx((20 + 40 + 18) / 22), "median": 4.0}


def test_metrics_without_times_leave_them_unknown(tmp_path: Path) -> None:
    assert update_ms(logged(tmp_path, [(10, {"x": 1.0})])) == {"mean": None, "median": None}
    assert periodic_points(logged(tmp_path, [(10, {"x": 1.0})])) == []


def test_periodic_evaluations_are_read_in_order(tmp_path: Path) -> None:
    def values(steps: float, success: float) -> dict[str, float]:
        return {
            "evaluation/env_steps": steps,
            "evaluation/seconds": steps / 10,
            "evaluation/success": success,
        }

    run = logged(tmp_path, [(5, values(50, 0.25)), (7, {"x": 1.0}), (10, values(90, 0.5))])
    assert periodic_points(run) == [
        {"updates": 5, "env_steps": 50, "seconds": 5, "success": 0.25},
        {"updates": 10, "env_steps": 90, "seconds": 9, "success": 0.5},
    ]

"""Synthetic runs, written through the classes that real runs use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowrl.config import load_recipe
from flowrl.evaluation import Evaluation
from flowrl.learner.config import RunConfig
from flowrl.learner.metrics import JsonlSink, Metrics
from flowrl.learner.run import Run
from flowrl.rollout import Episode

RULE = "one ODE sample, random noise, 5 Euler steps"


def evaluation(outcomes: Sequence[bool], rule: str = RULE) -> Evaluation:
    """One episode per outcome, from the same starts every time."""
    episodes = [Episode(200_000 + i, good, 30 if good else 100) for i, good in enumerate(outcomes)]
    return Evaluation(rule, tuple(episodes))


def rate(successes: int, episodes: int = 50, rule: str = RULE) -> Evaluation:
    """The first starts succeed, the others fail."""
    return evaluation([i < successes for i in range(episodes)], rule)


def empty_run(root: Path, name: str = "lift_sqam", seed: int = 0) -> Run:
    """A run that ended before it measured anything."""
    return Run.create(load_recipe(RunConfig, "lift_sqam", [f"name={name}", f"seed={seed}"]), root)


def finished_run(root: Path, seed: int = 0, base: int = 23, tuned: int = 47, **result: Any) -> Run:
    """A run with both evaluations and a little of every metric."""
    run = empty_run(root, seed=seed)
    run.write_json("spec.json", {"settings": {"simulator": "robosuite", "control_decimation": 5}})
    log(run)
    run.write_json(
        "result.json",
        {
            "base": rate(base).to_json(),
            "tuned": rate(tuned).to_json(),
            "steps": 12345,
            "warm_up_steps": 2600,
            "updates": 4321,
            "train_s": 149.6,
            "weights_changed": True,
            "deviations": ["collects with the best of 16 samples"],
            "shares": {"demonstrations": 0.25, "online": 0.75},
            **result,
        },
    )
    return run


def log(run: Run) -> None:
    """Metrics of a warm-up and 300 updates, with one periodic evaluation."""
    now = [0.0]
    metrics = Metrics([JsonlSink(run.metrics)], clock=lambda: now[0])
    for row in range(8):
        now[0] += 10.0
        updates = max(0, row - 1) * 50
        counters = {
            "run/env_steps": 100.0 * updates / 50 if updates else 1300.0 * (row + 1),
            "run/online_steps": 2600.0 + 100.0 * updates / 50 if updates else 1300.0 * (row + 1),
            "run/updates": float(updates),
            "run/seconds": now[0] - 20.0 if updates else now[0],
            "collect/recent_success": row / 10,
            "collect/recent_episodes": 50.0,
        }
        metrics.set(counters)
        if updates:
            metrics.add({"critic/q_data": -4.0, "critic/head_std": 0.2, "dual/lambda": 0.1})
        metrics.log(updates)
    evaluated = {"success": 0.6, "low": 0.4, "high": 0.8, "env_steps": 500.0, "seconds": 50.0}
    metrics.write(300, {f"evaluation/{name}": value for name, value in evaluated.items()})
    metrics.close()

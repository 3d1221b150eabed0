"""Every algorithm that ends with a policy of another kind than its base: a whole run, its files, its resume."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flowrl.acting import load_actor
from flowrl.config import load
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import finetune
from flowrl.learner.run import Run
from flowrl.policies.io import read_description
from tests.learner.conftest import SETTINGS, weights

MakeRun = Callable[[RunConfig], Run]
POLICIES = {"fql": "one_step", "dsrl": "steered", "expo": "edited", "rlpd": "gaussian"}


def config(kind: str, updates: int) -> RunConfig:
    critic = {"heads": 2, "width": 16, "depth": 1}
    changed = {"algorithm": {"kind": kind, "discount": 0.95, "critic": critic}, "checkpoint_every": 4}
    return load(RunConfig, {**SETTINGS, **changed, "budget": {"env_steps": None, "updates": updates}})


@pytest.mark.parametrize("kind", POLICIES)
def test_a_run_saves_what_it_evaluated_and_resumes_to_the_last_bit(
    kind: str, new_run: MakeRun, simulation: Simulation
) -> None:
    whole, halted = new_run(config(kind, 8)), new_run(config(kind, 4))
    result = finetune(whole, whole.config(), simulation)
    finetune(halted, halted.config(), simulation)
    finetune(halted, config(kind, 8), simulation)
    assert result.changed
    assert read_description(whole.policy)["kind"] == POLICIES[kind]
    both = [weights(run) for run in (whole, halted)]
    assert all(np.array_equal(value, both[1][name]) for name, value in both[0].items())
    if whole.actor.exists():
        assert load_actor(whole.actor).rule == result.tuned.rule

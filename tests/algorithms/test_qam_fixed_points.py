"""Where QAM and TRQAM drive a policy when the critic is known, and that SQAM goes elsewhere.

The rest points are the closed forms of `tests.algorithms.rest`, which share no code with the algorithms.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flowrl.algorithms.adjoint_matching import AdjointMatching, adjoint_matching_loss, squared_noise_scale
from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.qam import (
    QAM,
    TRQAM,
    PathDraws,
    QAMConfig,
    TRQAMConfig,
    memoryless_path,
    path_times,
)
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, LinearFlow
from tests.algorithms.rest import (
    bandit_value,
    bridge_rest,
    path_rest,
    scalar_factor,
    tilt,
    with_known_critic,
)
from tests.helpers import chunk_batch

CRITIC = CriticConfig(heads=2, width=4, depth=1)
BETA = 10.0
CURVATURE = 2 * BETA
"""Of beta times the bandit's reward -||a - 0.5 c||^2."""


def qam(std: float, steps: int, **options: Any) -> QAM:
    return QAM(QAMConfig(critic=CRITIC, inverse_temperature=BETA, **options), LinearFlow(2, steps, std))


def trqam(std: float, steps: int, **options: Any) -> TRQAM:
    """At the same temperature, held there."""
    config = TRQAMConfig(critic=CRITIC, dual_initial=1 / (3 * BETA), dual_rate=0.0, **options)
    return TRQAM(config, LinearFlow(2, steps, std))


def sqam(std: float, steps: int, **options: Any) -> SQAM:
    """At the same temperature, held there, without the value penalty."""
    config = SQAMConfig(
        critic=CRITIC, dual_initial=1 / (3 * BETA), dual_rate=0.0, value_penalty=0.0, **options
    )
    return SQAM(config, LinearFlow(2, steps, std))


def rest(learner: QAM | TRQAM, rows: int = 2048, iterations: int = 30) -> tuple[float, float]:
    """Std and mean (per 0.5 c) once every time's velocity minimises the matching loss on its own paths.

    The last half of the iterations is averaged; each minimises exactly on fresh paths.
    """
    fast = with_known_critic(learner, bandit_value)
    generator = torch.Generator().manual_seed(0)
    history = []
    for _ in range(iterations):
        context = Context(torch.rand(rows, 2, generator=generator) * 2 - 1)
        draws = PathDraws.sample(rows, 2, fast.flow_steps, generator, fast.device)
        loss, info, _ = learner.actor_loss(context, draws)
        fast.minimise(loss, 0.5)
        history.append(fast.moments())
    assert info["actor/saturated"] < 3e-3  # the closed forms have no clip
    std, mean = torch.tensor(history[iterations // 2 :]).mean(dim=0).tolist()
    return std, mean / 0.5


@pytest.mark.parametrize("make", [qam, trqam])
def test_released_step_count_rests_at_the_closed_form(make: Any) -> None:
    """The clip of the action, which the closed form lacks, is worth a percent."""
    assert rest(make(0.3, 10)) == pytest.approx(path_rest(0.3, CURVATURE, 10), rel=0.03)


def test_closed_form_at_ten_steps_is_the_number_of_the_page() -> None:
    assert path_rest(0.3, 20.0, 10) == pytest.approx((0.0988, 0.7442), abs=1e-4)
    assert path_rest(0.3, 10.0, 10) == pytest.approx((0.1527, 0.5396), abs=1e-4)
    assert path_rest(1.0, 1.0, 10) == pytest.approx((0.6280, 0.4344), abs=1e-4)


def test_many_steps_bring_the_policy_to_the_tilt() -> None:
    assert rest(qam(0.3, 100), rows=512, iterations=16) == pytest.approx(tilt(0.3, CURVATURE), rel=0.04)


@pytest.mark.parametrize("std", [0.1, 0.3, 1.0, 2.0])
def test_linear_critic_moves_the_mean_by_beta_times_the_variance(std: float) -> None:
    """One minimisation is exact, because the gradient is the same everywhere; wide bases rule out the clip.

    The grid of K = 200 is off by up to 4.1 %, for std 2.
    """
    steps, rows, strength = 200, 64, 0.5
    base, fast = LinearFlow(1, steps, std), LinearFlow(1, steps, std)
    context = Context(torch.ones(rows, 1))
    generator = torch.Generator().manual_seed(0)
    draws = PathDraws.sample(rows, 1, steps, generator, fast.device)
    with torch.no_grad():
        path = memoryless_path(fast.velocity, base.velocity, context, draws.start, draws.steps)
    gradient = torch.full((rows, 1), strength)
    adjoint = exact_adjoint(base.velocity, context, path, gradient, steps)[:-1].flatten(0, 1)
    t, x, tiled = path_times(steps, rows), path[:-1].flatten(0, 1), context.tile(steps)
    shift = fast.velocity(tiled, x, t) - base.velocity(tiled, x, t).detach()
    squared_scale = squared_noise_scale(t, 1 / steps)
    fast.minimise(adjoint_matching_loss(shift, BETA * adjoint, squared_scale, 1.0, rows))
    assert fast.moments()[1] / (BETA * strength) == pytest.approx(std**2, rel=0.05)


def contexts(count: int, source: str | None) -> ChunkBatch:
    generator = torch.Generator().manual_seed(count)
    state = torch.rand(512, 2, generator=generator) * 2 - 1
    return chunk_batch(state, torch.zeros(512, 1, 2), torch.zeros(512, 1))


def trained(learner: AdjointMatching[Any], updates: int) -> tuple[float, float]:
    """Std and mean (per 0.5 c) of the last 50 policies of a run of updates by Adam."""
    fast = with_known_critic(learner, bandit_value)
    batches, history = FixedBatches(contexts), []
    for _ in range(updates):
        learner.update(batches)
        history.append(fast.moments())
    std, mean = torch.tensor(history[-50:]).mean(dim=0).tolist()
    return std, mean / 0.5


def test_training_separates_the_exact_adjoint_from_the_scalar_one() -> None:
    """The bandit of 9.7 at beta = 10 and K = 10: same base, same critic, two adjoints, two policies."""
    options = {"freeze_base": True, "gradient_clip": 1e9, "learning_rate": 0.06}
    exact = trained(qam(0.3, 10, **options), 250)
    scalar = trained(sqam(0.3, 10, **options), 200)
    assert scalar == pytest.approx((0.1256, 0.8038), rel=0.03)
    assert scalar == pytest.approx(bridge_rest(scalar_factor, 0.3, CURVATURE, 10), rel=0.03)
    assert exact == pytest.approx(path_rest(0.3, CURVATURE, 10), rel=0.04)
    assert exact[0] < 0.9 * scalar[0]
    assert exact[1] < 0.95 * scalar[1]


def test_trust_region_at_rest_trains_as_the_fixed_temperature_does() -> None:
    """lambda_eff L_QAM = L_TRQAM at beta = 1 / lambda_eff, and Adam does not see the factor."""
    options = {"freeze_base": True, "gradient_clip": 1e9, "learning_rate": 0.06}
    fixed, dual = (trained(make(0.3, 10, **options), 60) for make in (qam, trqam))
    assert dual == pytest.approx(fixed, rel=1e-3)

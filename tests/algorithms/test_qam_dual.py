"""The trust region of TRQAM: where its dual variable comes to rest, and what scaling the critic does to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.qam import TRQAM, PathDraws, TRQAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context
from tests.algorithms.analytic import LinearFlow
from tests.algorithms.rest import with_known_critic

ROWS = 64


def learner(strength: float, std: float, **options: float) -> TRQAM:
    """A critic with the gradient ``strength`` (1, 1) / sqrt(2) everywhere inside [-1, 1]^2."""
    config = TRQAMConfig(critic=CriticConfig(heads=2, width=4, depth=1), **options)
    trqam = TRQAM(config, LinearFlow(2, 10, std))
    with_known_critic(trqam, lambda context, action: strength / 2**0.5 * action.sum(dim=1))
    return trqam


def flatten(trqam: TRQAM) -> None:
    """Let neither velocity depend on x or on the time: the flow of a constant, whose SDE stays narrow."""
    for policy in (trqam.fast, trqam.slow_target):
        assert isinstance(policy, LinearFlow)
        with torch.no_grad():
            policy.slope.zero_()
            policy.gain.zero_()


def still(generator: torch.Generator) -> PathDraws:
    """Draws so small that no path leaves the square where the critic has its gradient."""
    draws = PathDraws.sample(ROWS, 2, 10, generator, torch.device("cpu"))
    return PathDraws(0.01 * draws.start, 0.01 * draws.steps, draws.base_noise, draws.base_time)


def path_kl_at_the_optimum(trqam: TRQAM, context: Context, draws: PathDraws) -> float:
    """Minimise the loss exactly, then return the path KL."""
    fast = trqam.fast
    assert isinstance(fast, LinearFlow)
    loss: Tensor = trqam.actor_loss(context, draws)[0]
    fast.minimise(loss)
    return trqam.actor_loss(context, draws)[2]


@pytest.mark.parametrize(("strength", "dual_effective"), [(0.1, 1.0), (0.25, 0.7), (0.25, 3.0)])
def test_path_kl_at_ten_steps_has_the_coefficient_0_17015(strength: float, dual_effective: float) -> None:
    """``sum_k h g_k^2 t_k^2 / 2`` at t = 0, h, ..., 1 - h; SQAM's bridges at h, ..., 1 give 0.17924."""
    trqam = learner(strength, 0.3, dual_initial=dual_effective / 3)
    flatten(trqam)
    context = Context(torch.ones(ROWS, 2))
    found = path_kl_at_the_optimum(trqam, context, still(torch.Generator().manual_seed(0)))
    assert found == pytest.approx(0.17015 * strength**2 / dual_effective**2, rel=1e-3)


def settled(strength: float, updates: int = 120) -> tuple[float, float]:
    """lambda_eff and path KL at rest, every policy the best one for its lambda."""
    budget = 0.02
    trqam = learner(strength, 0.3, dual_initial=strength, dual_rate=strength / 2, kl_budget=budget)
    flatten(trqam)
    generator = torch.Generator().manual_seed(0)
    context, kl = Context(torch.ones(ROWS, 2)), float("nan")
    for _ in range(updates):
        kl = path_kl_at_the_optimum(trqam, context, still(generator))
        trqam.adapt(kl)
    return trqam.dual_effective, kl


def test_scaling_the_critic_scales_lambda_and_leaves_the_path_kl_at_the_budget() -> None:
    (small, kl_small), (large, kl_large) = settled(0.1), settled(0.4)
    assert small == pytest.approx(0.1 * (0.17015 / 0.02) ** 0.5, rel=0.02)
    assert large == pytest.approx(4 * small, rel=0.02)
    assert kl_small == pytest.approx(0.02, rel=0.02)
    assert kl_large == pytest.approx(0.02, rel=0.02)

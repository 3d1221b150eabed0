"""The tilt of a policy over a few actions (section 9.4), and that QAM moves the masses of modes towards it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.qam import QAM, PathDraws, QAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.networks import mlp
from flowrl.policies.observation import Observation
from flowrl.training import adam, clipped_step
from tests.algorithms.rest import KnownTarget
from tests.helpers import identity_spec

MODES, BASE, STD = torch.tensor([-0.7, 0.0, 0.7]), torch.tensor([0.5, 0.3, 0.2]), 0.08


def tilted(base: Tensor, values: Tensor, beta: float) -> Tensor:
    """``p_i exp(beta Q_i) / Z``."""
    return (base.log() + beta * values).softmax(dim=0)


def kl(p: Tensor, q: Tensor) -> float:
    return float((p * (p / q).log()).sum())


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
def test_kl_of_the_tilt_is_beta_times_its_value_less_the_log_partition(beta: float) -> None:
    values = torch.tensor([1.0, -0.5, 2.0])
    best = tilted(BASE, values, beta)
    partition = (BASE * (beta * values).exp()).sum()
    assert kl(best, BASE) == pytest.approx(float(beta * best @ values - partition.log()), abs=1e-6)


def test_nothing_beats_the_tilt_at_value_less_kl_over_beta() -> None:
    beta, values = 1.5, torch.tensor([1.0, -0.5, 2.0])
    best = tilted(BASE, values, beta)
    reached = float(best @ values) - kl(best, BASE) / beta
    partition = (BASE * (beta * values).exp()).sum()
    assert reached == pytest.approx(float(partition.log()) / beta, abs=1e-6)
    for other in torch.distributions.Dirichlet(torch.ones(3)).sample((200,)):
        assert float(other @ values) - kl(other, BASE) / beta <= reached + 1e-6


class ThreeModes(FlowPolicy):
    """The exact flow to three narrow Gaussians on a line, plus a network that starts at zero."""

    kind = "three_modes"

    def __init__(self) -> None:
        super().__init__(identity_spec(1, 1, 1), flow_steps=10)
        self.network = mlp(3, 64, 2, 1, zero_init_last=True)

    def encode(self, observation: Observation) -> Context:
        return Context(observation.state)

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        variance, off = (1 - t) ** 2 + t**2 * STD**2, x - t * MODES
        weight = (BASE.log() - off.square() / (2 * variance)).softmax(dim=1)
        slope = (t * STD**2 - (1 - t)) / variance
        exact = (weight * (MODES + slope * off)).sum(dim=1, keepdim=True)
        return exact + self.network(torch.cat([x, t, t * t], dim=1))

    def config(self) -> dict[str, Any]:
        return {}


def masses(policy: FlowPolicy, rows: int = 20_000) -> Tensor:
    """Shares of samples nearest to each mode, at the same noise every time."""
    noise = torch.randn(rows, 1, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        nearest = (policy.sample(Context(torch.zeros(rows, 1)), noise) - MODES).abs().argmin(dim=1)
    return torch.bincount(nearest, minlength=3) / rows


def test_qam_moves_the_masses_of_narrow_modes_towards_the_tilt() -> None:
    """Q = a, so that -0.7, 0 and 0.7 are worth as much; beta = 1. Ten Euler steps shift masses by up to 0.05 alone."""
    torch.manual_seed(0)
    learner = QAM(
        QAMConfig(critic=CriticConfig(heads=1, width=4, depth=1), inverse_temperature=1.0), ThreeModes()
    )
    KnownTarget.replace(learner.critic, lambda features, action: action[:, 0])
    before, goal = masses(learner.fast), tilted(BASE, MODES, 1.0)
    optimiser = adam({"fast": learner.fast}, {"fast": 3e-3})
    generator, context = torch.Generator().manual_seed(0), Context(torch.zeros(256, 1))
    for _ in range(150):
        draws = PathDraws.sample(256, 1, 10, generator, torch.device("cpu"))
        clipped_step(optimiser, learner.actor_loss(context, draws)[0], 1e9)
    after = masses(learner.fast)
    assert float((before - BASE).abs().max()) < 0.05
    assert float(after[0]) < float(before[0]) - 0.1
    assert float(after[2]) > float(before[2]) + 0.1
    assert float((after - goal).abs().sum()) < 0.5 * float((before - goal).abs().sum())

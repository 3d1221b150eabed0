"""The loss of QF3: its gradient, its identities, its two limits and where a free velocity comes to rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.qf3 import (
    LossWeights,
    PathPoint,
    gap_by_time,
    in_clip,
    qf3_loss,
    value_through_action,
)
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.samplers import flow_matching_loss
from tests.helpers import identity_spec

ROWS, SIZE, STATE = 64, 6, 3


@pytest.fixture(autouse=True)
def double() -> object:
    """Identities to 1e-6 and fixed points need float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def point() -> PathPoint:
    return PathPoint.sample(torch.randn(ROWS, SIZE).clamp(-1, 1), torch.Generator().manual_seed(1))


@pytest.fixture
def velocity(point: PathPoint) -> Tensor:
    """Gaps of standard deviation 1, so that a clip of 0.7 lets about half of them through."""
    return (point.action - point.noise + torch.randn(ROWS, SIZE)).requires_grad_(True)


@pytest.fixture
def value() -> Callable[[Tensor], Tensor]:
    wide = {"low": [-99.0] * SIZE, "high": [99.0] * SIZE}
    critic = CriticEnsemble(STATE + SIZE, heads=3, width=16, depth=2, action=wide)
    features = torch.randn(ROWS, STATE)
    return lambda action: critic(features, action).mean(dim=0)


def gradient(loss: Tensor, velocity: Tensor) -> Tensor:
    return torch.autograd.grad(loss, velocity)[0]


def test_the_prediction_is_the_action_plus_the_remaining_gap(point: PathPoint, velocity: Tensor) -> None:
    expected = point.action + (1 - point.t) * point.gap(velocity)
    torch.testing.assert_close(point.prediction(velocity), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(point.clipped_prediction(velocity, 1e9), expected, rtol=0, atol=1e-6)


def test_the_q_gradient_passes_the_clip_alone(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    loss, info = qf3_loss(value, velocity, point, LossWeights(clip=0.7, flow=0.0))
    prediction = point.clipped_prediction(velocity, 0.7).detach().requires_grad_(True)
    q_gradient = torch.autograd.grad(value(prediction).sum(), prediction)[0]
    inside = point.gap(velocity).abs() < 0.7
    assert 0.3 < inside.double().mean() < 0.7
    assert info["actor/in_clip"] == pytest.approx(float(inside.double().mean()))
    expected = -(1 - point.t) * inside * q_gradient / ROWS
    found = gradient(loss, velocity)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert (found[~inside] == 0).all()
    assert (found[inside] != 0).all()


def test_the_flow_gradient_is_not_clipped(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    both = gradient(qf3_loss(value, velocity, point, LossWeights(0.7, 0.3))[0], velocity)
    critic_alone = gradient(qf3_loss(value, velocity, point, LossWeights(0.7, 0.0))[0], velocity)
    torch.testing.assert_close(both - critic_alone, 2 * 0.3 * point.gap(velocity).detach() / ROWS)


def test_every_dimension_enters_the_critic_those_outside_the_clip_at_its_edge(
    point: PathPoint, velocity: Tensor
) -> None:
    seen: list[Tensor] = []

    def value(action: Tensor) -> Tensor:
        seen.append(action.detach())
        return action.sum(dim=1)

    qf3_loss(value, velocity, point, LossWeights(0.7, 0.0))
    expected = point.action + (1 - point.t) * point.gap(velocity).clamp(-0.7, 0.7)
    torch.testing.assert_close(seen[0], expected)


def test_alpha_zero_is_flow_matching(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    loss, info = qf3_loss(value, velocity, point, LossWeights(clip=0.0, flow=1.0))
    context = Context(torch.zeros(ROWS, STATE))
    matching = flow_matching_loss(lambda c, x, t: velocity, context, point.action, point.noise, point.t)
    torch.testing.assert_close(gradient(loss, velocity), gradient(SIZE * matching, velocity))
    assert info["actor/in_clip"] == 0


def test_a_huge_alpha_is_direct_q(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    loss, info = qf3_loss(value, velocity, point, LossWeights(clip=1e9, flow=0.2))
    direct = -value(point.x + (1 - point.t) * velocity) + 0.2 * point.gap(velocity).square().sum(dim=1)
    torch.testing.assert_close(loss, direct.mean())
    torch.testing.assert_close(gradient(loss, velocity), gradient(direct.mean(), velocity))
    assert info["actor/in_clip"] == 1


def test_a_constant_added_to_the_critic_changes_no_gradient(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    weights = LossWeights(0.7, 0.1)
    before, _ = qf3_loss(value, velocity, point, weights)
    after, _ = qf3_loss(lambda action: value(action) + 7, velocity, point, weights)
    assert (after - before).item() == pytest.approx(-7)
    torch.testing.assert_close(gradient(after, velocity), gradient(before, velocity), rtol=1e-9, atol=1e-12)


def test_no_parameter_of_the_critic_receives_a_gradient(point: PathPoint, velocity: Tensor) -> None:
    critic = CriticEnsemble(SIZE, heads=2, width=8, depth=1)
    empty = torch.zeros(ROWS, 0)
    qf3_loss(lambda a: critic(empty, a).min(dim=0).values, velocity, point, LossWeights(1.0, 0.1))[
        0
    ].backward()
    assert velocity.grad is not None
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_the_value_through_an_action_is_the_value() -> None:
    action = torch.randn(4, 2, requires_grad=True)
    found = value_through_action(lambda a: a.square().sum(dim=1), action)
    torch.testing.assert_close(found, action.square().sum(dim=1))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), action)[0], 2 * action)


def test_the_base_pulls_by_twice_its_weight_times_the_shift(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    base = torch.randn(ROWS, SIZE)
    without = gradient(qf3_loss(value, velocity, point, LossWeights(0.7, 0.1))[0], velocity)
    loss, info = qf3_loss(value, velocity, point, LossWeights(0.7, 0.1, base=5.0), base)
    shift = (velocity - base).detach()
    torch.testing.assert_close(gradient(loss, velocity) - without, 2 * 5.0 * shift / ROWS)
    assert info["actor/base_shift"] == pytest.approx(float(shift.square().sum(dim=1).mean()))


def test_rows_of_weight_zero_do_not_count(
    point: PathPoint, velocity: Tensor, value: Callable[[Tensor], Tensor]
) -> None:
    weight = (torch.arange(ROWS) < 10).double()
    found = gradient(qf3_loss(value, velocity, point, LossWeights(0.7, 0.1), row_weight=weight)[0], velocity)
    whole = gradient(qf3_loss(value, velocity, point, LossWeights(0.7, 0.1))[0], velocity)
    torch.testing.assert_close(found, whole * weight[:, None])


# Where a velocity that is free at every (x_t, t, a) comes to rest (derived in docs/algorithms/qf3.md).

TIMES = torch.tensor([0.0, 0.25, 0.5, 0.9], dtype=torch.float64)


def rest(
    value: Callable[[Tensor], Tensor],
    weights: LossWeights,
    base_gap: float | None = None,
    action: float = 0.2,
    *,
    rate: float = 0.05,
) -> Tensor:
    """delta after gradient descent by steps of ``rate`` / weight, at each of `TIMES`; one dimension."""
    count = len(TIMES)
    point = PathPoint(torch.full((count, 1), action), torch.linspace(-1, 1, count)[:, None], TIMES[:, None])
    target = point.action - point.noise
    gap = torch.zeros(count, 1, requires_grad=True)
    # v_base = u - d0, so that v - v_base = delta + d0.
    base = None if base_gap is None else target - base_gap
    step = rate / (weights.flow + weights.base)
    for _ in range(int(12.5 / rate)):
        loss, _ = qf3_loss(value, target + gap, point, weights, base)
        with torch.no_grad():
            gap -= step * count * torch.autograd.grad(loss, gap)[0]
    return gap.detach()[:, 0]


def test_a_linear_critic_shifts_the_gap_by_its_slope() -> None:
    found = rest(lambda a: 0.5 * a[:, 0], LossWeights(clip=2.0, flow=0.2))
    torch.testing.assert_close(found, (1 - TIMES) * 0.5 / (2 * 0.2), rtol=0, atol=1e-9)


def test_a_linear_critic_stops_at_the_clip() -> None:
    """Beyond the clip flow matching alone acts and pulls back: the gap is min(free optimum, alpha).

    It chatters about the edge by one step of at most 0.01 / lambda times the slope.
    """
    found = rest(lambda a: 0.5 * a[:, 0], LossWeights(clip=0.7, flow=0.2), rate=0.01)
    expected = ((1 - TIMES) * 0.5 / (2 * 0.2)).clamp(max=0.7)
    assert (expected == 0.7).sum() == 2
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 / 0.2 * 0.5)


def test_a_quadratic_critic_moves_the_gap_part_of_the_way() -> None:
    kappa, centre, flow, action = 3.0, 0.8, 0.2, 0.2
    found = rest(
        lambda a: -kappa / 2 * (a[:, 0] - centre).square(), LossWeights(clip=5.0, flow=flow), action=action
    )
    left = 1 - TIMES
    expected = left * kappa * (centre - action) / (2 * flow + left.square() * kappa)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_quadratic_critic_stops_at_the_clip() -> None:
    found = rest(lambda a: -1.5 * (a[:, 0] - 0.8).square(), LossWeights(clip=0.6, flow=0.2), rate=0.01)
    left = 1 - TIMES
    free = left * 3.0 * 0.6 / (0.4 + left.square() * 3.0)
    assert (free > 0.6).sum() == 2
    torch.testing.assert_close(found, free.clamp(max=0.6), rtol=0, atol=0.01 / 0.2 * 3.0 * 0.6)


@pytest.mark.parametrize("base_gap", [-0.8, 0.3])
def test_the_base_term_shares_the_gap_by_the_weights(base_gap: float) -> None:
    """``2 lambda_cfm delta + 2 lambda_base (delta + d0) = (1 - t) g``, or the quadratic critic's gradient."""
    slope, flow, weight = 0.5, 0.2, 0.3
    weights = LossWeights(clip=5.0, flow=flow, base=weight)
    found = rest(lambda a: slope * a[:, 0], weights, base_gap)
    expected = ((1 - TIMES) * slope - 2 * weight * base_gap) / (2 * (flow + weight))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    kappa, left = 3.0, 1 - TIMES
    found = rest(lambda a: -kappa / 2 * (a[:, 0] - 0.8).square(), weights, base_gap)
    expected = (left * kappa * 0.6 - 2 * weight * base_gap) / (2 * (flow + weight) + left.square() * kappa)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


# The flow itself.


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_an_untrained_flow_with_a_zero_last_layer_is_the_identity(steps: int) -> None:
    policy = FlowMLP(identity_spec(STATE, SIZE, 1), width=16, depth=2, zero_init_last=True, flow_steps=steps)
    noise = torch.randn(ROWS, SIZE)
    assert torch.equal(policy.double().sample(Context(torch.randn(ROWS, STATE)), noise), noise)


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_the_last_euler_step_is_the_one_step_prediction(steps: int) -> None:
    """At ``t = 1 - 1/K`` on the path that leads through the sampler's state."""
    policy = FlowMLP(identity_spec(STATE, SIZE, 1), width=16, depth=2, flow_steps=steps).double()
    context, x = Context(torch.randn(ROWS, STATE)), torch.randn(ROWS, SIZE)
    sample = policy.sample(context, x)
    for i in range(steps - 1):
        x = x + policy.velocity(context, x, torch.full((ROWS, 1), i / steps)) / steps
    time = torch.full((ROWS, 1), 1 - 1 / steps)
    action = torch.randn(ROWS, SIZE)
    # The noise from which the path to any action passes through the sampler's last state.
    point = PathPoint(action, (x - time * action) / (1 - time), time)
    prediction = point.prediction(policy.velocity(context, x, time))
    torch.testing.assert_close(prediction, sample, rtol=0, atol=1e-9)


def test_gaps_are_reported_by_thirds_of_the_flow() -> None:
    gap = torch.tensor([[1.0], [3.0], [2.0], [0.0]])
    found = gap_by_time(gap, torch.tensor([[0.0], [0.2], [0.5], [0.9]]))
    assert found == {"actor/gap_early": 5.0, "actor/gap_middle": 4.0, "actor/gap_late": 0.0}
    assert gap_by_time(gap[:1], torch.ones(1, 1))["actor/gap_early"] == 0.0


def test_the_edge_of_the_clip_is_outside() -> None:
    assert in_clip(torch.tensor([0.5, -0.5, 0.4999]), 0.5).tolist() == [False, False, True]

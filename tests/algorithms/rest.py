"""Where adjoint matching comes to rest when the critic is known, in closed form and by iteration.

One dimension, base N(0, std^2) with its exact velocity, critic ``-(curvature / 2) (a - 1)^2`` already
divided by the temperature. A velocity linear in x then stays linear, and every conditional mean with it, so
that the rest point of a method on a grid of K steps is a small recursion on numbers: nothing is sampled, and
nothing of `flowrl.algorithms` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from flowrl.algorithms.base import ActorCritic
from flowrl.critics.chunk_critic import ChunkCritic
from flowrl.critics.ensemble import CriticEnsemble
from tests.algorithms.analytic import LinearFlow

Factor = Callable[[float, float], float]
Moments = tuple[float, float]


def scalar_factor(t: float, std: float) -> float:
    """What SQAM multiplies -grad Q with."""
    return t


def exact_factor(t: float, std: float) -> float:
    """What the exact adjoint of a Gaussian base multiplies it with, in continuous time."""
    return t * std**2 / ((1 - t) ** 2 + t**2 * std**2)


def slope(t: float, std: float) -> float:
    """c_t of the velocity ``c_t x`` of N(0, std^2)."""
    return (t * std**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * std**2)


def half_squared_scale(t: float, h: float) -> float:
    """g_t^2 / 2."""
    return (1 - t + h) / (t + h)


def discrete_factors(std: float, steps: int) -> list[float]:
    """The exact adjoint's factors at 0, h, ..., 1 on the grid: each step multiplies by 1 + h (2 c - 1 / t)."""
    factors = [1.0]
    for k in reversed(range(steps)):
        factors.append(factors[-1] * (k / (k + 1) + 2 / steps * slope((k + 1) / steps, std)))
    return factors[::-1]


def euler_moments(slopes: list[float], gains: list[float]) -> Moments:
    """Std and mean of an Euler sample of the velocity ``slopes[k] x + gains[k]``."""
    std, mean, h = 1.0, 0.0, 1 / len(slopes)
    for a, b in zip(slopes, gains, strict=True):
        std, mean = std * (1 + h * a), mean + h * (a * mean + b)
    return std, mean


def bridge_rest(factor: Factor, std: float, curvature: float, steps: int) -> Moments:
    """Std and mean at rest when states are bridges to the policy's own Euler samples, as in SQAM.

    Given a_1 ~ N(m, s^2), ``E[a_1 | x_t] = m + t s^2 / ((1-t)^2 + t^2 s^2) (x_t - t m)``. The time 1 is
    matched but never sampled from, the time 0 the other way round.
    """
    moments = (std, 0.0)
    for _ in range(100):
        slopes, gains = [slope(0, std)], [0.0]
        for k in range(1, steps):
            t = k / steps
            push = half_squared_scale(t, 1 / steps) * factor(t, std) * curvature
            regression = t * moments[0] ** 2 / ((1 - t) ** 2 + t**2 * moments[0] ** 2)
            slopes.append(slope(t, std) - push * regression)
            gains.append(push * (1 - moments[1] * (1 - regression * t)))
        new = euler_moments(slopes, gains)
        moments = tuple(old + 0.3 * (now - old) for old, now in zip(moments, new, strict=True))  # type: ignore[assignment]
    return moments


def path_rest(std: float, curvature: float, steps: int) -> Moments:
    """Std and mean at rest of QAM: states on paths of the memoryless SDE, whose last step is the base's ODE.

    Backwards from the end, ``E[X_1 | X_k] = A x + B`` follows from the velocities of later times, and the
    velocity at k from ``v = c x + push (1 - E[X_1 | X_k])``, in which it appears on both sides.
    """
    h, factors = 1 / steps, discrete_factors(std, steps)
    slopes, gains = [0.0] * steps, [0.0] * steps
    ahead, offset = 1.0, 0.0
    for k in reversed(range(steps)):
        base = slope(k * h, std)
        push = half_squared_scale(k * h, h) * factors[k] * curvature
        if k == steps - 1:
            ahead *= 1 + h * base
            slopes[k], gains[k] = base - push * ahead, push * (1 - offset)
            continue
        keep, implicit = k / (k + 1), 1 + 2 * h * push * ahead
        slopes[k] = (base - push * ahead * keep) / implicit
        gains[k] = push * (1 - offset) / implicit
        ahead, offset = ahead * (keep + 2 * h * slopes[k]), ahead * 2 * h * gains[k] + offset
    return euler_moments(slopes, gains)


def tilt(std: float, curvature: float) -> Moments:
    """Std and mean of the base reweighted by exp(Q): what a perfect method samples."""
    precision = 1 / std**2 + curvature
    return precision**-0.5, curvature / precision


class KnownTarget(CriticEnsemble):
    """A target ensemble that answers actors with a known value; TD goes on with its own networks."""

    known: Callable[[Tensor, Tensor], Tensor]

    @classmethod
    def replace(cls, critic: ChunkCritic, value: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Let ``value(features, action) -> (B,)`` answer in place of the critic's target."""
        target = cls(**critic.target.config())
        target.load_state_dict(critic.target.state_dict())
        target.known = value
        critic.target = target.requires_grad_(False)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return self.known(features, action).expand(self.heads, -1)


def bandit_value(context: Tensor, action: Tensor) -> Tensor:
    """The reward of the bandit of the specification's section 9.7."""
    return -(action - 0.5 * context).square().sum(dim=1)


def with_known_critic(
    learner: ActorCritic[Any, Any], value: Callable[[Tensor, Tensor], Tensor]
) -> LinearFlow:
    """Give a learner a known critic; returns its policy, which must be a `LinearFlow`."""
    KnownTarget.replace(learner.critic, value)
    assert isinstance(learner.policy, LinearFlow)
    return learner.policy

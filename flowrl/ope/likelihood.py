"""The exact density of a flow policy's action chunk: the K Euler steps seen as one map from noise.

With ``x_0 = eps ~ N(0, I)`` and ``x_{i+1} = x_i + h v(s, x_i, i/K)`` (h = 1/K), the change of variables gives

    log p(x_K | s) = log N(x_0) - sum_i log |det(I + h dv/dx(s, x_i, i/K))|

which is the density of what the sampler draws, not of the continuous flow it approximates. x_0 is found by
inverting the steps from the last to the first. The density is that of the *unclipped* sample: where an
action lies on its bound, the sample lay anywhere beyond, so that no density belongs to the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy, Velocity
from flowrl.policies.observation import Observation

AT_BOUND = 1e-5
"""A normalised action this close to -1 or 1 counts as clipped: what float32 leaves of an exact bound."""
_TOLERANCE = 1e-11
_FIXED_POINT_STEPS = 60
_NEWTON_STEPS = 25


@runtime_checkable
class HasDensity(Protocol):
    """A policy whose density is known in closed form."""

    def log_prob(self, context: Context, action: Tensor) -> Tensor:
        """Log-density (B,) of normalised flat chunks (B, D)."""
        ...


@dataclass(frozen=True)
class Densities:
    """Log-densities (B,) with NaN where there is none, and how many rows have none for which reason.

    ``clipped``: a dimension lies on its bound. ``not_inverted``: no noise was found that gives the action.
    ``folded``: a step's determinant is not positive, so that the map is not one to one there.
    """

    log_prob: Tensor
    clipped: int = 0
    not_inverted: int = 0
    folded: int = 0

    @property
    def missing(self) -> int:
        """Rows without a density."""
        return int(self.log_prob.isnan().sum())


def tractable(policy: ChunkPolicy) -> bool:
    """Whether `chunk_densities` can say something: a closed form, or an invertible flow of what is executed."""
    executed = policy.chunk.length * policy.spec.action.size
    return isinstance(policy, (HasDensity, FlowPolicy)) and policy.flat_size == executed


@torch.no_grad()
def chunk_densities(
    policy: ChunkPolicy, observation: Observation, action: Tensor, rows: int = 256
) -> Densities:
    """Log-densities, per raw unit, of raw action chunks (B, H, A) that ``policy`` might have drawn.

    Computed in double precision, ``rows`` at a time. The normalisation's own Jacobian is included, so that
    policies with different normalisations compare. Call only where `tractable`.
    """
    exact = policy.frozen_copy().double()
    volume = policy.chunk.length * float(exact.get_buffer("action_half_range").log().sum())
    parts = list[Densities]()
    for chosen in torch.arange(len(action)).split(rows):
        seen = observation.rows(chosen)
        parts.append(_densities(exact, replace(seen, state=seen.state.double()), action[chosen].double()))
    found = joined(parts)
    return replace(found, log_prob=found.log_prob - volume)


def joined(parts: Sequence[Densities]) -> Densities:
    """Those of several blocks of rows, one after the other."""
    return Densities(
        torch.cat([part.log_prob for part in parts]),
        sum(part.clipped for part in parts),
        sum(part.not_inverted for part in parts),
        sum(part.folded for part in parts),
    )


def _densities(policy: ChunkPolicy, observation: Observation, raw: Tensor) -> Densities:
    context, action = policy.encode(observation), policy.flat_action(raw)
    clipped = (action.abs() >= 1 - AT_BOUND).any(dim=1)
    if isinstance(policy, HasDensity):
        found = Densities(policy.log_prob(context, action))
    else:
        assert isinstance(policy, FlowPolicy)
        found = euler_log_density(policy.velocity, context, action, policy.flow_steps)
    return replace(found, log_prob=found.log_prob.masked_fill(clipped, math.nan), clipped=int(clipped.sum()))


def euler_log_density(velocity: Velocity, context: Context, action: Tensor, steps: int) -> Densities:
    """Log-densities (B,) of unclipped samples (B, D) of the K-step Euler flow with this velocity."""
    x, log_det = action, action.new_zeros(len(action))
    lost = torch.zeros(len(action), dtype=torch.bool)
    folded = torch.zeros(len(action), dtype=torch.bool)
    for i in reversed(range(steps)):
        x, found = invert_step(velocity, context, x, i / steps, 1 / steps)
        lost |= ~found
        sign, size = torch.linalg.slogdet(step_jacobian(velocity, context, x, i / steps, 1 / steps))
        folded |= found & (sign <= 0)
        log_det = log_det + size
    normal = -0.5 * (x.square() + math.log(2 * math.pi)).sum(dim=1)
    log_prob = (normal - log_det).masked_fill(lost | folded, math.nan)
    return Densities(log_prob, not_inverted=int(lost.sum()), folded=int((folded & ~lost).sum()))


def invert_step(
    velocity: Velocity, context: Context, end: Tensor, t: float, h: float
) -> tuple[Tensor, Tensor]:
    """The x (B, D) with ``x + h v(x, t) = end``, and where it was found, (B,) bool.

    The iteration ``x <- end - h v(x, t)`` contracts where h times the Lipschitz constant of v is below 1;
    rows where it does not arrive take Newton steps. Found means a residual below 1e-11 in every dimension.
    """
    x = end
    for _ in range(_FIXED_POINT_STEPS):
        residual = _residual(velocity, context, x, end, t, h)
        if bool((residual.abs().amax(dim=1) < _TOLERANCE).all()):
            break
        x = x - residual
    open_rows = ~(_residual(velocity, context, x, end, t, h).abs().amax(dim=1) < _TOLERANCE)
    if bool(open_rows.any()):
        refined = _newton(velocity, context, end, t, h)
        x = torch.where(open_rows[:, None], refined, x)
    residual = _residual(velocity, context, x, end, t, h)
    return x, residual.abs().amax(dim=1) < _TOLERANCE


def _newton(velocity: Velocity, context: Context, end: Tensor, t: float, h: float) -> Tensor:
    """Newton's iteration from ``end``; a step that does not lower the residual is halved."""
    x = end
    residual = _residual(velocity, context, x, end, t, h)
    for _ in range(_NEWTON_STEPS):
        size = residual.norm(dim=1)
        if bool((size < _TOLERANCE).all()):
            break
        jacobian = step_jacobian(velocity, context, x, t, h)
        step, singular = torch.linalg.solve_ex(jacobian, residual[..., None])
        step = step.squeeze(-1).masked_fill((singular != 0)[:, None], 0.0)
        length = torch.ones_like(size)
        for _ in range(6):
            tried = _residual(velocity, context, x - length[:, None] * step, end, t, h)
            worse = ~(tried.norm(dim=1) < size)
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        x = x - length[:, None] * step
        residual = _residual(velocity, context, x, end, t, h)
    return x


def step_jacobian(velocity: Velocity, context: Context, x: Tensor, t: float, h: float) -> Tensor:
    """``I + h dv/dx`` per row, (B, D, D), at x (B, D)."""

    def summed(point: Tensor) -> Tensor:
        # Rows do not see each other, so the sum over rows has each row's own derivative.
        return velocity(context, point, point.new_full((len(point), 1), t)).sum(dim=0)

    with torch.enable_grad():
        derivative = torch.func.jacrev(summed)(x).transpose(0, 1)
    return torch.eye(x.shape[1], dtype=x.dtype) + h * derivative


def _residual(velocity: Velocity, context: Context, x: Tensor, end: Tensor, t: float, h: float) -> Tensor:
    return x + h * velocity(context, x, x.new_full((len(x), 1), t)) - end

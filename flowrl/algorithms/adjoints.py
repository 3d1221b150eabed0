"""The exact lean adjoint of the memoryless SDE: QAM's, and what the scalar adjoint of SQAM stands in for."""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.policies.interface import Context, Velocity


def exact_adjoint(
    base_velocity: Velocity,
    context: Context,
    path: Tensor,
    terminal_gradient: Tensor,
    steps: int,
    growth_limit: float | None = None,
) -> Tensor:
    """The lean adjoint along a path, by vector-Jacobian products through the base drift alone.

    ``a_1 = -grad_a Q`` and, backwards with h = 1 / steps (arXiv 2601.14234, section 4; (7) of
    docs/algorithms/qam.md),
    ``a_t = a_{t+h} + h (d/dx [2 v_base(s, x, t+h) - x / (t+h)])^T a_{t+h}`` at ``x = X_t``.

    Args:
        base_velocity: v_base; its parameters receive no gradient.
        context: the encoded observations, B rows.
        path: X_0, X_h, ..., X_1, (steps + 1, B, D): the ``states`` of `memoryless_sde`.
        terminal_gradient: ``grad_a Q(s, X_1)``, (B, D), not negated.
        steps: K.
        growth_limit: when given, a row's adjoint is shortened at every step to at most this many times the
            norm of its ``grad_a Q``; a stiff base otherwise makes it grow exponentially in K.

    Returns:
        The adjoints at times 0, h, ..., 1: (steps + 1, B, D), without gradient.
    """
    h = 1 / steps
    adjoint = -terminal_gradient.detach()
    longest = None if growth_limit is None else growth_limit * adjoint.norm(dim=1, keepdim=True)
    backwards = [adjoint]
    for k in reversed(range(steps)):
        later = (k + 1) / steps
        with torch.enable_grad():
            x = path[k].detach().requires_grad_(True)
            velocity = base_velocity(context, x, x.new_full((len(x), 1), later))
        adjoint = adjoint * (k / (k + 1)) + 2 * h * _transposed_product(velocity, x, adjoint)
        if longest is not None:
            adjoint = _shortened(adjoint, longest)
        backwards.append(adjoint)
    return torch.stack(backwards[::-1])


def _transposed_product(output: Tensor, x: Tensor, vector: Tensor) -> Tensor:
    if not output.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(output, x, vector, materialize_grads=True)[0]


def _shortened(vectors: Tensor, longest: Tensor) -> Tensor:
    norms = vectors.norm(dim=1, keepdim=True)
    return torch.where(norms > longest, vectors * (longest / norms), vectors)

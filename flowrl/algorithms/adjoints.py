"""The exact lean adjoint of the memoryless SDE: what the scalar adjoint of SQAM stands in for."""

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
) -> Tensor:
    """The lean adjoint along a path, by vector-Jacobian products through the base drift alone.

    ``a_1 = -grad_a Q`` and, backwards with h = 1 / steps (arXiv 2601.14234, section 4; docs/notation.md),
    ``a_t = a_{t+h} + h (d/dx [2 v_base(s, x, t+h) - x / (t+h)])^T a_{t+h}`` at ``x = X_t``.

    Args:
        base_velocity: v_base; its parameters receive no gradient.
        context: the encoded observations, B rows.
        path: X_0, X_h, ..., X_1, (steps + 1, B, D): the ``states`` of `memoryless_sde`.
        terminal_gradient: ``grad_a Q(s, X_1)``, (B, D), not negated.
        steps: K.

    Returns:
        The adjoints at times 0, h, ..., 1: (steps + 1, B, D), without gradient.
    """
    h = 1 / steps
    adjoint = -terminal_gradient.detach()
    backwards = [adjoint]
    for k in reversed(range(steps)):
        later = (k + 1) / steps
        with torch.enable_grad():
            x = path[k].detach().requires_grad_(True)
            velocity = base_velocity(context, x, x.new_full((len(x), 1), later))
        adjoint = adjoint * (k / (k + 1)) + 2 * h * _transposed_product(velocity, x, adjoint)
        backwards.append(adjoint)
    return torch.stack(backwards[::-1])


def _transposed_product(output: Tensor, x: Tensor, vector: Tensor) -> Tensor:
    if not output.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(output, x, vector, materialize_grads=True)[0]

"""Returns over several chunks: n-step, and Peng's Q(lambda) between it and TD."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trace:
    """A return as a linear function of the bootstrap values V (C, R): ``constant + sum_i weights_i V_i``.

    ``constant`` is (R,), ``weights`` (C, R). V_i is the value where chunk i ends.
    """

    constant: Tensor
    weights: Tensor

    def returns(self, next_values: Tensor) -> Tensor:
        """The returns (R,) for bootstrap values (C, R)."""
        return self.constant + (self.weights * next_values).sum(dim=0)


def trace(rewards: Tensor, mask: Tensor, usable: Tensor, discount: float, decay: float) -> Trace:
    """Peng's Q(lambda) over C consecutive chunks of R rows, with lambda = ``decay`` in [0, 1].

    ``G_i = R_i + gamma^H mask_i ((1 - lambda) V_i + lambda G_{i+1})``, where V_i is the value at the state
    after chunk i; a row's return is G_0. The trace ends with ``G_i = R_i + gamma^H mask_i V_i`` where the
    next chunk is not usable: it does not exist, or it straddles the end of the episode. That is the one
    rule of truncation; an episode shorter than C chunks needs no other. Decay 1 is the n-step return,
    decay 0 is TD, and so is C = 1. Off-policy both are biased towards the behaviour: nothing is
    reweighted (Peng's lambda does not cut the trace either).

    Args:
        rewards, mask: R_i, and 0 where chunk i ended the episode, (C, R).
        usable: 1 where chunk i may stand in a return, (C, R); row 0 is not read.
        discount: gamma^H.
    """
    carried = torch.ones_like(rewards[0])
    constant = torch.zeros_like(carried)
    weights: list[Tensor] = []
    for i in range(len(rewards)):
        constant = constant + carried * rewards[i]
        onward = carried * (discount * mask[i])
        goes_on = decay * usable[i + 1] if i + 1 < len(rewards) else torch.zeros_like(carried)
        weights.append(onward * (1 - goes_on))
        carried = onward * goes_on
    return Trace(constant, torch.stack(weights))

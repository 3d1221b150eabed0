"""Long-horizon Q-learning: the returns between two chunks of one episode bound their values (LQL)."""

from __future__ import annotations

import torch
from torch import Tensor


def hinges(
    values: Tensor, next_values: Tensor, rewards: Tensor, mask: Tensor, usable: Tensor, discount: float
) -> tuple[Tensor, Tensor, float]:
    """The two hinge penalties over all pairs i < j of L consecutive chunks (arXiv 2605.05812).

    With R_ij the discounted return from the start of chunk i to that of j, Delta = (j - i) H steps:

        lower_ij = [R_ij + gamma^Delta (R_j + gamma^H mask_j V_j) - Q_i]_+^2
        upper_ij = [(R_ij - R_i) / gamma^H + gamma^(Delta - H) Q_j - V_i]_+^2

    where V_i is the value at the state after chunk i. The first pulls the earlier value up to what the
    data obtained, the second holds the later one under what the earlier state promised. The bounds are
    true where dynamics are deterministic; in stochastic ones the lower bound over-estimates.

    Args:
        values: Q of the online heads, (M, L, B); the gradient goes through it alone.
        next_values: V, (L, B).
        rewards, mask: R_i, and 0 where chunk i ended the episode, (L, B).
        usable: 1 where chunk i exists and is wholly valid, (L, B). A chunk exists only after chunks that
            are wholly valid and did not end the episode, so j being usable makes the pair valid.
        discount: gamma^H.

    Returns:
        The sum of each penalty over valid pairs divided by their number, meaned over heads, and that number.
    """
    length = len(rewards)
    promised = rewards + discount * mask * next_values
    between = torch.zeros_like(rewards)  # R_ij of the current lag, one row for each i
    lower = upper = pairs = values.new_zeros(())
    for lag in range(1, length):
        weight = usable[lag:]
        after_first = between[1:]
        between = between[:-1] + discount ** (lag - 1) * rewards[lag - 1 : -1]
        below = between + discount**lag * promised[lag:] - values[:, : length - lag]
        above = after_first + discount ** (lag - 1) * values[:, lag:] - next_values[: length - lag]
        lower = lower + (weight * below.relu().square()).mean(dim=0).sum()
        upper = upper + (weight * above.relu().square()).mean(dim=0).sum()
        pairs = pairs + weight.sum()
    count = pairs.clamp(min=1)
    return lower / count, upper / count, float(pairs)

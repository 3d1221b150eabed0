"""What every learner does to parameters: Polyak averaging, gradient norms, one guarded optimiser step."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.errors import NonFiniteLoss

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""


def keep_freed_memory(limit: int = 1 << 30) -> bool:
    """Let this process keep up to ``limit`` freed bytes. Returns whether the C library took the setting.

    glibc otherwise hands every tensor of some megabytes back to the system, which clears the pages
    again for the next one: a tenth of an update on the CPU. Call once at the start of a learner.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(option, limit) for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)]
    return all(taken)


@torch.no_grad()
def polyak_(target: nn.Module, online: nn.Module, rate: float) -> None:
    """``target <- (1 - rate) target + rate online``, in place, over all parameters that the two do not share."""
    pairs = [(a, b) for a, b in zip(target.parameters(), online.parameters(), strict=True) if a is not b]
    if pairs:
        torch._foreach_lerp_([a for a, _ in pairs], [b for _, b in pairs], rate)  # pyright: ignore[reportPrivateUsage]


def adam(networks: Mapping[str, nn.Module], learning_rates: Mapping[str, float]) -> torch.optim.Adam:
    """One fused Adam with a named parameter group for each network.

    What networks share (a frozen encoder) is in the first one's group.
    """
    groups, taken = list[dict[str, Any]](), set[Tensor]()
    for name, network in networks.items():
        own = [parameter for parameter in network.parameters() if parameter not in taken]
        taken.update(own)
        groups.append({"params": own, "lr": learning_rates[name], "name": name})
    return torch.optim.Adam(groups, fused=True)


def clipped_step(
    optimiser: torch.optim.Optimizer, loss: Tensor, limits: Mapping[str, float] | float
) -> dict[str, float]:
    """Back-propagate, clip and step. Returns the gradient norm of each named group before clipping.

    A number as ``limits`` clips the joint norm of all groups (as the authors of SQAM do); a mapping
    clips each group to its own limit. Raises NonFiniteLoss, before anything changed, when the loss
    or a gradient is not finite.
    """
    if not math.isfinite(value := float(loss.detach())):
        raise NonFiniteLoss(f"the loss is {value}; no step was taken")
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    gradients = {
        group["name"]: [p.grad for p in group["params"] if p.grad is not None]
        for group in optimiser.param_groups
    }
    norms = {name: _norm(grads) for name, grads in gradients.items() if grads}
    bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
    if bad:
        raise NonFiniteLoss(f"the gradient of {', '.join(bad)} is not finite; no step was taken")
    joint = math.sqrt(sum(norm**2 for norm in norms.values()))
    for name, norm in norms.items():
        limit, size = (limits[name], norm) if isinstance(limits, Mapping) else (limits, joint)
        if size > limit:
            torch._foreach_mul_(gradients[name], limit / size)  # pyright: ignore[reportPrivateUsage]
    optimiser.step()
    return norms


def _norm(gradients: Sequence[Tensor]) -> float:
    norms = torch._foreach_norm(list(gradients))  # pyright: ignore[reportPrivateUsage]
    return float(torch.stack(list(norms)).norm())

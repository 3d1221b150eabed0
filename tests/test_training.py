"""Polyak averaging, and the guarded optimiser step."""

from __future__ import annotations

import math
import platform

import pytest
import torch
from torch import Tensor, nn

from flowrl.errors import NonFiniteLoss
from flowrl.training import adam, clipped_step, keep_freed_memory, polyak_


def two_networks() -> dict[str, nn.Module]:
    return {"first": nn.Linear(3, 2), "second": nn.Linear(3, 2)}


def loss_of(networks: dict[str, nn.Module], second: float = 100.0) -> Tensor:
    x = torch.ones(4, 3)
    return networks["first"](x).sum() + second * networks["second"](x).sum()


def norm(module: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None))


def test_polyak_moves_every_parameter_by_its_rate() -> None:
    target, online = nn.Linear(2, 2), nn.Linear(2, 2)
    expected = [0.9 * t + 0.1 * o for t, o in zip(target.parameters(), online.parameters(), strict=True)]
    polyak_(target, online, 0.1)
    for found, wanted in zip(target.parameters(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_polyak_of_rate_one_copies_and_of_rate_zero_keeps() -> None:
    target, online = nn.Linear(2, 2), nn.Linear(2, 2)
    before = target.weight.detach().clone()
    polyak_(target, online, 0.0)
    assert torch.equal(target.weight, before)
    polyak_(target, online, 1.0)
    torch.testing.assert_close(target.weight, online.weight)


def test_networks_that_share_a_frozen_part_are_averaged_and_trained_apart() -> None:
    shared = nn.Linear(2, 2).requires_grad_(False)
    networks = {name: nn.Sequential(shared, nn.Linear(2, 2)) for name in ("first", "second")}
    before = shared.weight.clone()
    optimiser = adam(networks, {"first": 0.1, "second": 0.2})
    assert [len(group["params"]) for group in optimiser.param_groups] == [4, 2]
    clipped_step(optimiser, sum(n(torch.ones(1, 2)).sum() for n in networks.values()), 1.0)  # type: ignore[arg-type]
    polyak_(networks["first"], networks["second"], 0.5)
    assert torch.equal(shared.weight, before)
    polyak_(shared, shared, 0.5)
    assert torch.equal(shared.weight, before)


def test_joint_clip_shrinks_all_groups_by_one_factor() -> None:
    networks = two_networks()
    norms = clipped_step(adam(networks, {"first": 0.1, "second": 0.1}), loss_of(networks), 1.0)
    joint = math.hypot(norms["first"], norms["second"])
    assert norms["second"] == pytest.approx(100 * norms["first"], rel=1e-5)
    for name, network in networks.items():
        assert norm(network) == pytest.approx(norms[name] / joint, rel=1e-5)


def test_separate_clips_leave_the_small_group_alone() -> None:
    networks = two_networks()
    limits = {"first": 50.0, "second": 2.0}
    norms = clipped_step(adam(networks, {"first": 0.1, "second": 0.1}), loss_of(networks), limits)
    assert norm(networks["first"]) == pytest.approx(norms["first"], rel=1e-6)
    assert norm(networks["second"]) == pytest.approx(2.0, rel=1e-5)


def test_a_gradient_below_the_limit_is_not_scaled_up() -> None:
    networks = two_networks()
    norms = clipped_step(adam(networks, {"first": 0.1, "second": 0.1}), 1e-3 * loss_of(networks), 1e3)
    assert norm(networks["first"]) == pytest.approx(norms["first"], rel=1e-5)


def test_each_group_steps_at_its_own_rate() -> None:
    """Adam's first step is the learning rate in every coordinate."""
    networks = two_networks()
    before = {name: network.weight.detach().clone() for name, network in networks.items()}  # type: ignore[union-attr]
    clipped_step(adam(networks, {"first": 0.1, "second": 0.02}), loss_of(networks), 1e9)
    for name, rate in (("first", 0.1), ("second", 0.02)):
        moved = before[name] - networks[name].weight.detach()  # type: ignore[operator,union-attr]
        torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_changes_nothing(value: float) -> None:
    networks = two_networks()
    optimiser = adam(networks, {"first": 0.1, "second": 0.1})
    before = [p.detach().clone() for n in networks.values() for p in n.parameters()]
    with pytest.raises(NonFiniteLoss, match="the loss is"):
        clipped_step(optimiser, loss_of(networks) * value, 1.0)
    after = [p for n in networks.values() for p in n.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not optimiser.state


def test_a_non_finite_gradient_under_a_finite_loss_names_its_network() -> None:
    networks = two_networks()
    optimiser = adam(networks, {"first": 0.1, "second": 0.1})
    with torch.no_grad():
        networks["second"].weight.zero_()  # type: ignore[operator,union-attr]
        networks["second"].bias.zero_()  # type: ignore[operator,union-attr]
    before = [p.detach().clone() for n in networks.values() for p in n.parameters()]
    x = torch.ones(4, 3)
    loss = networks["first"](x).sum() + networks["second"](x).square().sum().sqrt()
    assert math.isfinite(float(loss.detach()))
    with pytest.raises(NonFiniteLoss, match="gradient of second is not finite"):
        clipped_step(optimiser, loss, 1.0)
    after = [p for n in networks.values() for p in n.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_glibc_takes_the_memory_setting() -> None:
    assert keep_freed_memory()

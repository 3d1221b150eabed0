"""An encoded observation is made once and reused: tiled, interleaved, detached, stacked."""

from __future__ import annotations

import pytest

pytest.importorskip("lerobot")

import torch
from torch import Tensor, nn

from flowrl.policies.interface import Context, concatenate
from flowrl.policies.lerobot.base import LeRobotPolicy
from tests.policies.lerobot.conftest import Adopted
from tests.policies.lerobot.tiny import ADAPTERS, CASES, VLAS, noise, observation

# Rows of one batch and of two are added in another order.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def at(rows: int) -> Tensor:
    return (torch.arange(rows).unsqueeze(1) + 0.5) / rows


class Count:
    """How often the modules of a policy's encoder have run."""

    def __init__(self, policy: LeRobotPolicy) -> None:
        self.calls = 0
        self._hooks = [
            part.register_forward_hook(self._called)
            for encoder in policy.encoder_parts
            for part in encoder.modules()
        ]

    def _called(self, *_: object) -> None:
        self.calls += 1

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_observation_is_encoded_once(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)
    count = Count(policy)
    try:
        with torch.no_grad():
            context = policy.encode(observation(case))
            once = count.calls
            assert once > 0
            policy.sample(context, noise(case))
            policy.sample(context.interleave(4), noise(case, 12))
            policy.velocity(context, noise(case), at(3))
            assert context.features.shape == (3, policy.feature_size)
    finally:
        count.remove()
    assert count.calls == once


@pytest.mark.parametrize("name", ADAPTERS)
def test_contexts_mean_the_same_in_any_arrangement(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)

    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            return policy.velocity(context, x, t)

    context = policy.encode(observation(case))
    x, t = noise(case, 6), at(6)
    tiled = velocity(context.tile(2), x, t)
    assert torch.allclose(tiled[:3], velocity(context, x[:3], t[:3]), **CLOSE)
    assert torch.allclose(tiled[3:], velocity(context.detach(), x[3:], t[3:]), **CLOSE)
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    interleaved = velocity(context.interleave(2), x, t)
    assert torch.allclose(interleaved[order], velocity(context.tile(2), x[order], t[order]), **CLOSE)
    other = policy.encode(observation(case, seed=8))
    both = velocity(concatenate(context, other), x, t)
    assert torch.allclose(both[3:], velocity(other, x[3:], t[3:]), **CLOSE)
    assert not torch.allclose(both[3:], tiled[3:], atol=1e-3)


@pytest.mark.parametrize("name", ADAPTERS)
def test_no_evaluation_changes_the_context(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)
    context = policy.encode(observation(case))
    before = [tensor.clone() for tensor in _tensors(context.cache)]
    first = policy.velocity(context, noise(case), at(3))
    assert torch.equal(policy.velocity(context, noise(case), at(3)), first)
    assert all(map(torch.equal, _tensors(context.cache), before))


@pytest.mark.parametrize("name", ADAPTERS)
def test_rows_do_not_see_each_other(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)
    seen = observation(case)
    with torch.no_grad():
        together = policy.velocity(policy.encode(seen), noise(case), at(3))
        alone = policy.velocity(policy.encode(seen.rows(torch.tensor([1]))), noise(case)[1:2], at(3)[1:2])
    assert torch.allclose(together[1:2], alone, **CLOSE)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_instruction_and_every_camera_matter(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)
    seen = observation(case)
    with torch.no_grad():
        before = policy.velocity(policy.encode(seen), noise(case), at(3))
        for camera in case.cameras:
            changed = observation(case)
            changed.images[camera].fill_(0)  # type: ignore[union-attr]
            assert not torch.allclose(policy.velocity(policy.encode(changed), noise(case), at(3)), before)
        if case.kind != "diffusion":
            told = policy.encode(_told(case, "put it down"))
            assert not torch.allclose(policy.velocity(told, noise(case), at(3)), before)


@pytest.mark.parametrize("name", VLAS)
def test_critics_see_the_state_and_the_mean_of_what_is_present(name: str, adopted: Adopted) -> None:
    case, policy = CASES[name], adopted(name)
    seen = observation(case)
    context = policy.encode(seen)
    size = policy.spec.state_size
    assert torch.equal(context.features[:, :size], policy.normalised_state(seen.state))
    assert not context.features.requires_grad
    assert bool(context.features[:, size:].std(dim=0).gt(1e-6).any())


def _told(case: object, task: str) -> object:
    from dataclasses import replace

    seen = observation(case)  # type: ignore[arg-type]
    return replace(seen, tasks=(task,) * len(seen))


def _tensors(cache: object) -> list[Tensor]:
    if isinstance(cache, Tensor):
        return [cache]
    return [] if cache is None else [tensor for part in cache for tensor in _tensors(part)]  # type: ignore[attr-defined]


def test_counting_counts() -> None:
    class Encoded(nn.Module):
        encoder_parts = [nn.Linear(1, 1)]  # noqa: RUF012

    encoded = Encoded()
    count = Count(encoded)  # type: ignore[arg-type]
    encoded.encoder_parts[0](torch.zeros(1))
    assert count.calls == 1

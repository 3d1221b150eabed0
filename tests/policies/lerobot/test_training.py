"""What learns, what copies share, and how the network is computed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")

import torch
from torch import Tensor

from flowrl.errors import ConfigError
from flowrl.policies.io import load_flow_policy, save_policy
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.policies.lora import LoRAConfig
from tests.policies.lerobot.conftest import Adopted
from tests.policies.lerobot.tiny import ADAPTERS, CASES, VLAS, Case, noise, observation, raw_chunk

T = torch.tensor([[0.25], [0.5], [0.75]])


def trained(policy: LeRobotPolicy, case: Case) -> Tensor:
    """The imitation loss of one batch, with its gradients in the parameters."""
    t = torch.tensor([[0.2], [0.5], [0.9]])
    action = policy.flat_action(raw_chunk())
    loss = policy.imitation_loss(policy.encode(observation(case)), action, noise(case), t)
    loss.backward()
    return loss.detach()


def gradients(policy: LeRobotPolicy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def inside(parts: list[torch.nn.Module], policy: LeRobotPolicy) -> set[str]:
    held = {id(p) for part in parts for p in part.parameters()}
    return {name for name, p in policy.named_parameters() if id(p) in held}


def learning(policy: LeRobotPolicy) -> set[str]:
    return {name for name, gradient in gradients(policy).items() if bool(gradient.abs().sum() > 0)}


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_gets_gradients(name: str, adopted: Adopted) -> None:
    case = CASES[name]
    names = {name for name, _ in adopted(name).named_parameters()}
    never = inside(adopted(name).never_trained, adopted(name))
    encoder = inside(adopted(name).encoder_parts, adopted(name))
    found = dict[str, set[str]]()
    for what in ("all", "expert", "head"):
        policy = deepcopy(adopted(name)).train_only(what)  # type: ignore[arg-type]
        trained(policy, case)
        found[what] = learning(policy)
    assert found["head"] == inside(adopted(name).head_parts, adopted(name))
    assert found["expert"] == names - encoder - never
    assert found["expert"] < found["all"] <= names - never
    unseen = encoder - never - found["all"]
    assert all(_unread(case, parameter) for parameter in unseen), unseen


@pytest.mark.parametrize("name", ADAPTERS)
def test_names_in_the_file_tell_the_parts(name: str, adopted: Adopted) -> None:
    policy = adopted(name)
    names = [f"native.{n}" for n, _ in policy.native.named_parameters()]
    for beginnings, parts in (
        (policy.encoder_names, policy.encoder_parts),
        (policy.head_names, policy.head_parts),
    ):
        stems = tuple(f"native.{beginning}" for beginning in beginnings)
        assert {n for n in names if n.startswith(stems)} == inside(parts, policy)


def _unread(case: Case, parameter: str) -> bool:
    """Whether the policy leaves aside what a weight of the encoder computes."""
    if case.kind not in VLAS:
        return "vision_model.post_layernorm" in parameter
    text = parameter.split("text_model." if case.kind == "smolvla" else "language_model.")[-1]
    # After the last keys and values come words alone; a key's bias moves all scores alike.
    return text.startswith(("layers.1.", "norm.")) or ".head." in parameter or "k_proj.bias" in parameter


@pytest.mark.parametrize("name", VLAS)
def test_lerobots_own_flags_do_not_keep_all_from_learning(name: str, adopted: Adopted) -> None:
    policy = deepcopy(adopted(name))
    config: Any = policy.native.config
    assert config.train_expert_only == (name == "smolvla")
    assert (
        all(p.requires_grad for part in policy.encoder_parts for p in part.parameters())
        or policy.never_trained
    )
    policy.train()
    trained(policy, CASES[name])
    assert learning(policy) & inside(policy.encoder_parts, policy)


@pytest.mark.parametrize("name", ADAPTERS)
def test_copies_share_what_does_not_learn_and_nothing_else(name: str, adopted: Adopted) -> None:
    policy = deepcopy(adopted(name)).train_only("expert")
    learner, target = policy.trainable_copy(), policy.frozen_copy()
    kept = inside([*policy.encoder_parts, *policy.never_trained], policy)
    places = [{n: p.data_ptr() for n, p in each.named_parameters()} for each in (policy, learner, target)]
    shared = {n for n in places[0] if places[0][n] == places[1][n] == places[2][n]}
    assert shared == kept
    assert (
        len({places[0][n] for n in places[0].keys() - kept} & {places[1][n] for n in places[0].keys() - kept})
        == 0
    )
    before = [p.clone() for p in target.parameters()]
    trained(learner, CASES[name])
    torch.optim.SGD([p for p in learner.parameters() if p.requires_grad], 0.1).step()
    assert all(map(torch.equal, target.parameters(), before))
    assert not any(p.requires_grad for p in target.parameters())
    whole = deepcopy(deepcopy(adopted(name)).train_only("all"))
    encoder = inside(policy.encoder_parts, policy) - inside(policy.never_trained, policy)
    apart = {n: p.data_ptr() for n, p in whole.named_parameters()}
    assert all(apart[n] != places[0][n] for n in encoder)


@pytest.mark.parametrize("name", ADAPTERS)
def test_computing_again_in_the_backward_pass_gives_the_same_gradients(name: str, adopted: Adopted) -> None:
    kept, recomputed = deepcopy(adopted(name)), deepcopy(adopted(name))
    recomputed.activation_checkpointing = True
    calls = [_count_calls(policy) for policy in (kept, recomputed)]
    losses = [trained(policy, CASES[name]) for policy in (kept, recomputed)]
    assert torch.equal(*losses)
    assert calls[1]["encoder"] > calls[0]["encoder"]
    assert calls[1]["expert"] > calls[0]["expert"]
    expected, found = gradients(kept), gradients(recomputed)
    assert expected.keys() == found.keys()
    assert all(torch.allclose(found[n], expected[n], atol=1e-6, rtol=1e-5) for n in expected)


def _count_calls(policy: LeRobotPolicy) -> dict[str, int]:
    calls = {"encoder": 0, "expert": 0}
    within = {id(part) for encoder in policy.encoder_parts for part in encoder.modules()}

    def called(part: torch.nn.Module, *_: object) -> None:
        calls["encoder" if id(part) in within else "expert"] += 1

    for part in policy.native.modules():
        part.register_forward_pre_hook(called)
    return calls


@pytest.mark.parametrize("name", ["diffusion_states", *ADAPTERS[1:]])
def test_bfloat16_is_close_and_its_weights_stay_float32(name: str, adopted: Adopted) -> None:
    case, exact, rough = CASES[name], adopted(name), deepcopy(adopted(name))
    rough.precision = "bfloat16"
    with torch.no_grad():
        found, expected = (
            p.velocity(p.encode(observation(case)), noise(case), torch.full((3, 1), 0.5))
            for p in (rough, exact)
        )
    assert found.dtype == torch.float32
    # Eight bits of a number are 0.4 %; some layers add up. A diffusion's velocity at t = 0.5 doubles it.
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert not torch.equal(found, expected)
    trained(rough, case)
    assert all(bool(g.isfinite().all()) and g.dtype == torch.float32 for g in gradients(rough).values())
    assert all(p.dtype == torch.float32 for p in rough.parameters())


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_begin_as_nothing_learn_alone_and_are_merged_in_the_file(
    name: str, adopted: Adopted, tmp_path: Path
) -> None:
    case, plain = CASES[name], adopted(name)
    policy = deepcopy(plain)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy.add_lora(LoRAConfig(rank=2, alpha=4)).train_only("lora")
    context = policy.encode(observation(case))
    assert torch.equal(policy.velocity(context, noise(case), T), plain.velocity(context, noise(case), T))
    optimiser = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], 1.0)
    trained(policy, case)
    assert learning(policy)
    assert all("lora_" in each for each in gradients(policy))
    optimiser.step()
    copy = policy.trainable_copy()
    assert {n for n, p in copy.named_parameters() if p.requires_grad} == {
        n for n, p in policy.named_parameters() if p.requires_grad
    }
    save_policy(copy, tmp_path / "tuned")
    again = load_flow_policy(tmp_path / "tuned")
    assert again.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        ends = [p.velocity(context, noise(case), T) for p in (policy, again, plain)]
    assert torch.allclose(ends[0], ends[1], atol=1e-4)
    assert not torch.allclose(ends[0], ends[2], atol=1e-3)


def test_without_adapters_lora_is_refused(adopted: Adopted) -> None:
    with pytest.raises(ConfigError, match=r"call add_lora first"):
        deepcopy(adopted("smolvla")).train_only("lora")

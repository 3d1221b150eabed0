"""One full SQAM update of the authors' public code (arXiv 2610.10437), reproduced from stored numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.sqam import SQAM, Draws, SQAMConfig, bridge_times, scalar_adjoint
from flowrl.critics.ensemble import CriticEnsemble, action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from flowrl.replay.batch import ChunkBatch
from tests.helpers import chunk_batch, identity_spec

DATA = np.load(Path(__file__).parents[1] / "data" / "sqam.npz")
TOLERANCE = 1e-5


def stored(key: str) -> Tensor:
    return torch.from_numpy(DATA[key]).double()


def velocity_names(module: str) -> dict[str, str]:
    """Stored name of each parameter of a velocity network, by our parameter's name."""
    names = {}
    for ours, theirs in zip((0, 2, 4), range(3), strict=True):
        for mine, yours in (("weight", "kernel"), ("bias", "bias")):
            names[f"network.{ours}.{mine}"] = f"{module}/mlp/Dense_{theirs}/{yours}"
    return names


def critic_names(module: str) -> dict[str, str]:
    names = {}
    for layer in range(3):
        names[f"weights.{layer}"] = f"{module}/value_net/Dense_{layer}/kernel"
        names[f"biases.{layer}"] = f"{module}/value_net/Dense_{layer}/bias"
    for layer in range(2):
        names[f"gains.{layer}"] = f"{module}/value_net/LayerNorm_{layer}/scale"
        names[f"shifts.{layer}"] = f"{module}/value_net/LayerNorm_{layer}/bias"
    return names


def as_ours(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    return (value.T if name.endswith("weight") else value).reshape(shape)


def load(module: nn.Module, names: dict[str, str]) -> None:
    parameters = dict(module.named_parameters())
    assert set(parameters) == set(names)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(as_ours(name, stored(f"params/{names[name]}"), parameter.shape))


@pytest.fixture
def learner() -> SQAM:
    torch.set_default_dtype(torch.float64)
    spec = identity_spec(5, 2, 3)
    policy = FlowMLP(spec, width=32, depth=2, time_embedding="scalar", flow_steps=10).double()
    critic = CriticConfig(heads=4, width=32, depth=2, pessimism=0.5)
    config = SQAMConfig(discount=0.995, critic=critic, kl_budget=1.0, value_penalty=0.3, dual_initial=1.3)
    sqam = SQAM(config, policy)
    load(sqam.fast, velocity_names("modules_actor_fast"))
    load(sqam.slow, velocity_names("modules_actor_slow"))
    load(sqam.slow_target, velocity_names("modules_target_actor_slow"))
    load(sqam.critic.online, critic_names("modules_critic"))
    load(sqam.critic.target, critic_names("modules_target_critic"))
    return sqam


@pytest.fixture(autouse=True)
def _restore_dtype() -> object:
    yield
    torch.set_default_dtype(torch.float32)


def the_batch() -> ChunkBatch:
    return chunk_batch(
        stored("batch/observations"),
        stored("batch/actions"),
        stored("batch/rewards"),
        stored("batch/masks"),
        stored("batch/valid"),
        stored("batch/next_observations")[:, -1],
    )


def the_draws() -> Draws:
    return Draws(
        endpoint=stored("draw/x_init"),
        next_action=stored("draw/next_noise"),
        bridge=stored("draw/bridge_eps").flatten(0, 1),
        base_noise=stored("draw/bc_noise"),
        base_time=stored("draw/bc_t"),
    )


def assert_close(ours: Tensor | float, key: str) -> None:
    theirs = stored(key)
    mine = torch.as_tensor(ours, dtype=torch.float64).detach().reshape(theirs.shape)
    scale = theirs.abs().max().clamp(min=1e-12)
    assert float((mine - theirs).abs().max() / scale) < TOLERANCE, key


def test_endpoint_critic_gradient_and_adjoint_match(learner: SQAM) -> None:
    context = learner.fast.encode(the_batch().observation)
    endpoint = learner.fast.sample(context, stored("draw/x_init")).detach()
    assert_close(endpoint, "out/a_hat")
    gradient, _ = action_gradient(learner.critic.target, context.features, endpoint)
    assert_close(gradient, "out/gQ")
    tau = bridge_times(10, 16)
    assert_close(tau, "out/times")
    assert_close(scalar_adjoint(gradient.repeat(10, 1), tau), "out/adjoint")


def test_td_target_matches(learner: SQAM) -> None:
    batch = the_batch()
    view = learner.critic.view(batch, learner.fast)
    action = learner.fast.sample(view.next_context, stored("draw/next_noise")).detach()
    assert_close(action.clamp(-1, 1), "out/next_actions")
    target = learner.critic.td_target(batch, view, action, learner.generator)
    assert_close(target, "out/target_q")


def test_every_loss_matches(learner: SQAM) -> None:
    total, info, kl = learner.losses(the_batch(), the_batch(), the_draws())
    assert_close(info["critic/td_loss"], "out/td_loss")
    assert_close(info["critic/value_gap"], "out/gap")
    assert_close(info["critic/td_loss"] + 0.3 * info["critic/value_gap"], "out/critic_total")
    assert_close(info["actor/adjoint_loss"], "out/adj_loss")
    assert_close(info["base/loss"], "out/fm_loss")
    assert_close(kl, "out/path_kl")
    assert_close(total, "out/total")


def test_every_gradient_matches(learner: SQAM) -> None:
    total, _, _ = learner.losses(the_batch(), the_batch(), the_draws())
    total.backward()
    modules: list[tuple[nn.Module, dict[str, str]]] = [
        (learner.fast, velocity_names("modules_actor_fast")),
        (learner.slow, velocity_names("modules_actor_slow")),
        (learner.critic.online, critic_names("modules_critic")),
    ]
    for module, names in modules:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            theirs = as_ours(name, stored(f"grads/{names[name]}"), parameter.shape)
            error = (parameter.grad - theirs).abs().max() / theirs.abs().max()
            assert float(error) < TOLERANCE, (name, float(error))
    frozen: list[CriticEnsemble | FlowMLP] = [learner.critic.target, learner.slow_target]  # type: ignore[list-item]
    assert all(parameter.grad is None for module in frozen for parameter in module.parameters())


def test_dual_update_matches(learner: SQAM) -> None:
    learner.dual.step(float(stored("out/path_kl")), learner.config)
    assert_close(learner.dual.value, "out/lam_next")
    assert_close(learner.dual.average, "out/kl_ema_next")

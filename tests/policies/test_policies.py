"""What every policy with a velocity promises, and what is particular to one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flowrl.errors import ConfigError, DataError, SpecMismatch
from flowrl.policies import Context, FlowPolicy, Observation, create_policy
from flowrl.policies.interface import concatenate
from flowrl.policies.io import create_flow_policy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.networks import TimeEmbedding
from flowrl.policies.transformer import FlowTransformer
from flowrl.spec import ActionSpec, Spec, require_match
from tests.policies.kinds import FLOWS

SMALL = {"width": 16, "depth": 2}
PARITY = Path(__file__).parents[1] / "data" / "sqam.npz"


@pytest.fixture(params=FLOWS)
def policy(request: pytest.FixtureRequest, spec: Spec) -> FlowPolicy:
    return create_flow_policy(request.param, spec, SMALL)


def test_velocity_and_sample_have_the_shape_of_flat_chunks(policy: FlowPolicy) -> None:
    context = policy.encode(Observation(torch.randn(5, 3)))
    x, t = torch.randn(5, 8), torch.rand(5, 1)
    assert context.features.shape == (5, policy.feature_size)
    assert policy.velocity(context, x, t).shape == (5, 8)
    assert policy.sample(context, x).shape == (5, 8)


def test_every_parameter_learns_from_the_imitation_loss(policy: FlowPolicy) -> None:
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.1)
    context = policy.encode(Observation(torch.randn(5, 3)))
    policy.imitation_loss(context, torch.randn(5, 8), torch.randn(5, 8), torch.rand(5, 1)).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_rows_do_not_see_each_other(policy: FlowPolicy) -> None:
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.1)
    state, x, t = torch.randn(5, 3), torch.randn(5, 8), torch.rand(5, 1)
    whole = policy.velocity(policy.encode(Observation(state)), x, t)
    alone = policy.velocity(policy.encode(Observation(state[2:3])), x[2:3], t[2:3])
    assert torch.allclose(whole[2:3], alone, atol=1e-5)


def test_settings_rebuild_the_same_policy(policy: FlowPolicy) -> None:
    again = create_policy(policy.kind, policy.spec, policy.config())
    again.load_state_dict(policy.state_dict())
    assert again.config() == policy.config()


def test_frozen_copy_shares_nothing_and_learns_nothing(policy: FlowPolicy) -> None:
    copy = policy.frozen_copy()
    before = [p.clone() for p in copy.parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(before, copy.parameters(), strict=True))
    assert not any(p.requires_grad for p in copy.parameters())


def test_raw_actions_survive_the_round_trip(policy: FlowPolicy) -> None:
    low, high = torch.tensor(policy.spec.action.low), torch.tensor(policy.spec.action.high)
    raw = low + (high - low) * torch.rand(6, 4, 2)
    flat = policy.flat_action(raw)
    assert flat.shape == (6, 8)
    assert flat.abs().max() <= 1
    assert torch.allclose(policy.raw_action(flat), raw, atol=1e-6)
    assert torch.equal(policy.flat_action(high.expand(1, 4, 2)), torch.ones(1, 8))


def test_flat_chunks_are_step_major(policy: FlowPolicy) -> None:
    raw = policy.raw_action(torch.zeros(1, 8))
    raw[0, 1, 0] += 0.5  # step 1, dimension 0 of 2
    assert policy.flat_action(raw)[0].nonzero().flatten().tolist() == [2]


def test_raw_actions_never_leave_the_bounds(policy: FlowPolicy) -> None:
    raw = policy.raw_action(10 * torch.randn(6, 8))
    low, high = torch.tensor(policy.spec.action.low), torch.tensor(policy.spec.action.high)
    assert (raw >= low).all()
    assert (raw <= high).all()


def test_states_are_normalised_as_the_spec_says(policy: FlowPolicy) -> None:
    raw = np.array([[0.1, -0.2, 0.3], [1e6, 0.0, -1e6]])
    assert policy.spec.normalisation is not None
    expected = policy.spec.normalisation.state(raw)
    found = policy.normalised_state(torch.tensor(raw, dtype=torch.float32))
    assert np.allclose(found.numpy(), expected, atol=1e-5)


def test_a_policy_needs_chunking_and_normalisation(spec: Spec) -> None:
    for bare in (replace(spec, chunk=None), replace(spec, normalisation=None)):
        with pytest.raises(DataError, match="chunking and normalisation"):
            FlowMLP(bare)


def test_a_policy_refuses_another_robot_by_name(spec: Spec, policy: FlowPolicy) -> None:
    other = replace(spec.interface(), action=ActionSpec(("dx", "dz"), (-1.0, 0.0), (1.0, 4.0)))
    with pytest.raises(SpecMismatch, match=r"dy.*dz"):
        require_match(policy.spec, other, "policy", "environment")


def test_tile_repeats_the_batch_and_interleave_repeats_each_row() -> None:
    context = Context(torch.tensor([[0.0], [1.0], [2.0]]))
    assert context.tile(2).features.flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert context.interleave(2).features.flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert concatenate(context, context.tile(2)).features.flatten().tolist() == [0, 1, 2] * 3
    assert len(context.tile(2)) == 6


def test_transformer_starts_as_the_zero_velocity(spec: Spec) -> None:
    policy = FlowTransformer(spec, width=16, depth=2)
    context, noise = policy.encode(Observation(torch.randn(5, 3))), torch.randn(5, 8)
    assert not policy.velocity(context, noise, torch.rand(5, 1)).any()
    assert torch.equal(policy.sample(context, noise), noise)


def test_transformer_action_tokens_see_state_time_and_each_other(spec: Spec) -> None:
    policy = FlowTransformer(spec, width=16, depth=2)
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.2)
    state, x, t = torch.randn(1, 3), torch.randn(1, 8), torch.full((1, 1), 0.5)
    base = policy.velocity(policy.encode(Observation(state)), x, t)
    moved = x.clone()
    moved[0, 6] += 1  # the last step
    for other in (
        policy.velocity(policy.encode(Observation(state + 1)), x, t),
        policy.velocity(policy.encode(Observation(state)), x, t + 0.1),
        policy.velocity(policy.encode(Observation(state)), moved, t),
    ):
        assert (other - base)[0, :2].abs().min() > 1e-4, "the first step must notice"


def test_mlp_can_start_as_the_zero_velocity(spec: Spec) -> None:
    policy = FlowMLP(spec, width=16, depth=2, zero_init_last=True)
    context = policy.encode(Observation(torch.randn(5, 3)))
    assert not policy.velocity(context, torch.randn(5, 8), torch.rand(5, 1)).any()


def test_mlp_reproduces_the_endpoints_of_the_authors_network(spec: Spec) -> None:
    data = np.load(PARITY)
    tensors = {key: torch.from_numpy(np.asarray(data[key], np.float32)) for key in data.files}
    bare = Spec(
        (replace(spec.observation[0], name="observation.state", shape=(5,), names=()),),
        ActionSpec(("a", "b"), (-1.0, -1.0), (1.0, 1.0)),
        control_hz=20.0,
    ).with_chunk(3)
    assert spec.normalisation is not None
    five, two = (0.0,) * 5, (0.0,) * 2
    identity = replace(
        spec.normalisation,
        state_mean=five,
        state_scale=(1.0,) * 5,
        state_q01=five,
        state_q99=five,
        action_centre=two,
        action_half_range=(1.0,) * 2,
        clip=1e9,
    )
    width = tensors["params/modules_actor_fast/mlp/Dense_0/bias"].shape[0]
    policy = FlowMLP(
        replace(bare, normalisation=identity), width=width, depth=2, time_embedding="scalar", flow_steps=10
    )
    for layer, linear in enumerate(m for m in policy.network if isinstance(m, nn.Linear)):
        prefix = f"params/modules_actor_fast/mlp/Dense_{layer}"
        linear.weight.data = tensors[f"{prefix}/kernel"].T.contiguous()
        linear.bias.data = tensors[f"{prefix}/bias"]
    context = policy.encode(Observation(tensors["batch/observations"]))
    found = policy.sample(context, tensors["draw/x_init"]).clamp(-1, 1)
    assert torch.allclose(found, tensors["out/a_hat"].clamp(-1, 1), atol=1e-5)


def test_fourier_time_has_the_stated_terms() -> None:
    t = torch.tensor([[0.25]])
    root = 0.5**0.5
    found = TimeEmbedding("fourier")(t)[0]
    assert torch.allclose(found, torch.tensor([0.25, root, 1.0, root, 0.0]), atol=1e-6)


@pytest.mark.parametrize("kind", ["scalar", "fourier", "sinusoidal"])
def test_time_embeddings_tell_times_apart_and_state_their_size(kind: str) -> None:
    embedding = TimeEmbedding(kind)  # type: ignore[arg-type]
    values = embedding(torch.linspace(0, 1, 101)[:, None])
    assert values.shape == (101, embedding.size)
    assert torch.pdist(values).min() > 1e-3


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("flow_mlp", {"widht": 8}, "nearest is 'width'"),
        ("flow_mpl", {}, "nearest is 'flow_mlp'"),
        ("flow_mlp", {"time_embedding": "fuorier"}, "fuorier"),
        ("flow_mlp", {"depth": 0}, "depth"),
        ("flow_transformer", {"width": 10, "heads": 4}, "multiple of heads"),
        ("diffusion_mlp", {"schedule": "cosine"}, "squaredcos_cap_v2"),
        ("diffusion_mlp", {"prediction": "noise"}, "epsilon"),
        ("diffusion_mlp", {"grid": "karras"}, "ddim"),
    ],
)
def test_a_wrong_setting_is_named(spec: Spec, kind: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_policy(kind, spec, settings)

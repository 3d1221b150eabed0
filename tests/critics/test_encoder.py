"""A critic with an encoder of its own: what it sees, what reaches it, what it can learn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from flowrl.acting import Actor
from flowrl.config import load
from flowrl.critics.chunk_critic import ChunkCritic
from flowrl.critics.encoder import EncoderConfig
from flowrl.critics.ensemble import CriticEnsemble, action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError, UsageError
from flowrl.policies.image_transformer import FlowImageTransformer
from flowrl.policies.interface import Context, concatenate
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.sight import Scene, Sight
from flowrl.policies.vision import random_shift
from flowrl.replay.batch import ChunkBatch
from flowrl.spec import Feature
from flowrl.training import adam, clipped_step
from tests.helpers import chunk_batch, identity_spec

ROWS, STATE, ACTION = 6, 3, 2
CAMERAS = tuple(Feature(f"observation.images.{name}", (3, 16, 24), "uint8") for name in ("front", "wrist"))
SMALL = EncoderConfig(width=16, queries=2, depth=1, shift=2)


def policy() -> FlowImageTransformer:
    spec = identity_spec(STATE, ACTION, 1)
    torch.manual_seed(0)
    return FlowImageTransformer(
        replace(spec, observation=(*spec.observation, *CAMERAS)), width=16, depth=1, queries=1, flow_steps=2
    )


def critic(config: EncoderConfig | None = SMALL, seed: int = 0) -> ChunkCritic:
    return ChunkCritic(CriticConfig(heads=2, width=16, depth=1, encoder=config), policy(), 0.9, seed)


def observation(seed: int, rows: int = ROWS) -> Observation:
    random = torch.Generator().manual_seed(seed)
    images = {
        camera.name: torch.randint(0, 256, (rows, *camera.shape), generator=random, dtype=torch.uint8)
        for camera in CAMERAS
    }
    return Observation(torch.randn(rows, STATE, generator=random), images)


def batch(rows: int = ROWS) -> ChunkBatch:
    random = torch.Generator().manual_seed(5)
    action = torch.rand(rows, 1, ACTION, generator=random) * 2 - 1
    made = chunk_batch(torch.zeros(rows, STATE), action, torch.rand(rows, 1, generator=random))
    return replace(made, observation=observation(1, rows), next_observation=observation(2, rows))


class Counted(nn.Module):
    """Sums of the state; counts its calls and the rows they had."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = list[int]()

    def forward(self, state: Tensor, images: dict[str, Tensor]) -> Tensor:
        self.rows.append(len(state))
        return state.sum(dim=1, keepdim=True)


def seen(state: Tensor) -> Context:
    return Context(state, sight=Sight.of(Scene(state, {}), state.device))


def test_rows_follow_the_context_and_each_batch_is_encoded_once() -> None:
    """The features are the state, so that the order of rows is known: what is seen is their sum."""
    first, second, encoder = seen(torch.randn(4, 2)), seen(torch.randn(3, 2)), Counted()
    for context in (
        first.tile(3),
        first.interleave(2),
        concatenate(first, second).tile(2),
        concatenate(first, first.tile(2)).detach(),
    ):
        assert context.sight is not None
        torch.testing.assert_close(context.sight.by(encoder)[:, 0], context.features.sum(dim=1))
    assert encoder.rows == [4, 3]


def test_what_was_seen_without_a_gradient_is_encoded_again_for_one() -> None:
    made = critic()
    context = made.online.look(policy(), observation(0))
    with torch.no_grad():
        plain = made.online.see(context)
    again = made.online.see(context)
    assert (plain.requires_grad, again.requires_grad) == (False, True)
    assert torch.equal(plain, again)
    assert not made.online.see(context.detach()).requires_grad
    assert not made.target.see(context).requires_grad


def test_the_features_are_the_normalised_state_and_the_tokens_of_both_cameras() -> None:
    made = critic()
    assert made.feature_size == STATE + 2 * 2 * 16
    looked = observation(0)
    features = made.online.see(made.online.look(policy(), looked))
    assert features.shape == (ROWS, made.feature_size)
    assert torch.equal(features[:, :STATE], policy().normalised_state(looked.state))
    assert critic(None).feature_size == policy().feature_size
    assert critic(None).online.look(policy(), looked).sight is None


def test_frames_are_shifted_only_by_a_generator_and_alike_for_both_encoders() -> None:
    made, looked, see = critic(), observation(0), policy()
    encoder = made.online.encoder
    assert encoder is not None
    random = torch.Generator().manual_seed(3)
    shifted = {name: random_shift(frames, 2, random) for name, frames in looked.images.items()}
    expected = [encoder(looked.state, images) for images in (looked.images, shifted)]
    found = made.online.look(see, looked), made.online.look(see, looked, torch.Generator().manual_seed(3))
    for context, right in zip(found, expected, strict=True):
        assert torch.equal(made.online.see(context), right)
        assert torch.equal(made.target.see(context), right)  # the target starts as a copy
    assert not torch.allclose(*expected)


def test_the_loss_reaches_the_encoder_and_the_target_follows_by_its_rate() -> None:
    made, see, random = critic(), policy(), torch.Generator().manual_seed(0)
    drawn = batch()
    view = made.view(drawn, see, random)
    before = [p.clone() for p in made.target.parameters()]
    optimiser = adam({"critic": made.online}, {"critic": 1e-2})
    loss, _, _ = made.loss(drawn, view, torch.zeros(ROWS, ACTION), random)
    clipped_step(optimiser, loss, 1e9)
    encoder = made.online.encoder
    assert encoder is not None
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())
    assert all(p.grad is None for p in (*see.parameters(), *made.target.parameters()))
    made.track()
    for old, new, online in zip(before, made.target.parameters(), made.online.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.005 * (online - old))


def test_the_gradient_in_the_action_is_that_of_the_features_and_leaves_none_behind() -> None:
    made, action = critic(), torch.rand(ROWS, ACTION) * 1.8 - 0.9
    features = made.online.see(made.online.look(policy(), observation(0)))
    gradient, _ = action_gradient(made.online, features, action)
    step = torch.zeros(ACTION)
    step[1] = 1e-3
    with torch.no_grad():
        ahead, behind = (made.online(features, action + sign * step).mean(dim=0) for sign in (1, -1))
    torch.testing.assert_close(gradient[:, 1], (ahead - behind) / 2e-3, rtol=1e-2, atol=1e-4)
    assert all(p.grad is None for p in made.online.parameters())


def test_it_learns_a_value_that_only_the_pictures_hold() -> None:
    """The return is 1 where the first camera is bright. All states are equal, so without frames it is 0.5."""
    see, random, rows = policy(), torch.Generator().manual_seed(0), 16
    made = ChunkCritic(CriticConfig(heads=2, width=16, depth=1, encoder=SMALL), see, 0.9, 0)
    bright = (torch.arange(rows) % 2).float()
    drawn = batch(rows)
    frames = (drawn.observation.images[CAMERAS[0].name] // 2) + (127 * bright).to(torch.uint8)[
        :, None, None, None
    ]
    images = {**drawn.observation.images, CAMERAS[0].name: frames}
    looked = replace(drawn.observation, state=torch.zeros(rows, STATE), images=images)
    drawn = replace(drawn, observation=looked, rewards=bright[:, None], mask=torch.zeros(rows, 1))
    optimiser = adam({"critic": made.online}, {"critic": 3e-3})
    for _ in range(60):
        loss, _, _ = made.loss(drawn, made.view(drawn, see, random), torch.zeros(rows, ACTION), random)
        clipped_step(optimiser, loss, 10.0)
    with torch.no_grad():
        values = made.online(made.online.see(made.online.look(see, looked)), see.flat_action(drawn.action))
    assert float((values.mean(dim=0) - bright).abs().max()) < 0.3


def test_a_saved_ensemble_is_the_same_through_json() -> None:
    made = critic().online
    again = CriticEnsemble(**json.loads(json.dumps(made.config())))
    again.load_state_dict(made.state_dict())
    contexts = [each.look(policy(), observation(0)) for each in (made, again)]
    action = torch.zeros(ROWS, ACTION)
    assert torch.equal(made(made.see(contexts[0]), action), again(again.see(contexts[1]), action))


def test_candidates_are_ranked_by_what_the_critic_sees_of_their_own_row() -> None:
    """Each row alone gets what it gets in the batch: rows and candidates are not mixed up."""
    torch.manual_seed(1)
    scorer, looked = critic().target, observation(0, 2)
    actor = Actor(policy(), scorer, 4)
    context = actor.encode(looked)
    noise = torch.Generator().manual_seed(0)
    both = actor.choose(context, noise)
    draws = torch.randn(8, ACTION, generator=torch.Generator().manual_seed(0))
    candidates = actor.policy.clip(actor.policy.sample(context.interleave(4), draws)).view(2, 4, ACTION)
    for row in range(2):
        alone = actor.encode(looked.rows(torch.tensor([row])))
        values = scorer(scorer.see(alone).expand(4, -1), candidates[row]).mean(dim=0)
        assert torch.equal(both[row], candidates[row, values.argmax()])


def test_what_cannot_be_is_refused_by_name() -> None:
    plain = FlowMLP(identity_spec(STATE, ACTION, 1), width=8, depth=1)
    with pytest.raises(ConfigError, match=r"critic\.encoder is set, and the policy's spec has no camera"):
        ChunkCritic(CriticConfig(encoder=SMALL), plain, 0.9, 0)
    made = critic().online
    with pytest.raises(UsageError, match=r"make contexts by its `look`"):
        made.see(policy().encode(observation(0)))
    for setting, message in (
        ({"width": 18}, r"width 18 must be a multiple of heads 4"),
        ({"queries": 0}, r"queries is 0; it must be at least 1"),
        ({"shift": -1}, r"shift is -1; it must not be negative"),
        ({"backbone": "vgg"}, r"encoder\.backbone is 'vgg'; expected 'patches' or 'resnet18'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(CriticConfig, {"encoder": setting})
    assert load(CriticConfig, {"encoder": {"backbone": "resnet18"}}).encoder == EncoderConfig(
        backbone="resnet18"
    )

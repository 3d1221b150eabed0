"""A policy that sees: cameras by name, frames encoded once, what learns and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flowrl.errors import ConfigError, DataError, MissingExtra
from flowrl.policies import Observation, create_policy, load_policy, save_policy
from flowrl.policies.image_transformer import FlowImageTransformer
from flowrl.policies.interface import concatenate
from flowrl.policies.pretrain import PretrainConfig, pretrain
from flowrl.policies.vision import CameraEncoder, random_shift
from flowrl.spec import Feature, Spec

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SIZES = {FRONT: (3, 20, 28), WRIST: (3, 16, 16)}


@pytest.fixture
def seeing(spec: Spec) -> Spec:
    """The spec of the other tests with two cameras of unequal sizes."""
    cameras = [Feature(name, size, "uint8") for name, size in SIZES.items()]
    return replace(spec, observation=(*spec.observation, *cameras))


def make(spec: Spec, seed: int = 0, **settings: object) -> FlowImageTransformer:
    torch.manual_seed(seed)
    policy = FlowImageTransformer(
        spec, **{"width": 16, "depth": 2, "flow_steps": 3, "queries": 2, "vision_depth": 1, **settings}
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(std=0.3)
    return policy.eval()


def look(rows: int, seed: int = 0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    images = {
        name: torch.randint(0, 256, (rows, *size), generator=generator, dtype=torch.uint8)
        for name, size in SIZES.items()
    }
    return Observation(torch.randn(rows, 3, generator=generator), images)


@pytest.mark.parametrize("backbone", ["patches", "resnet18"])
def test_features_and_samples_have_their_sizes(seeing: Spec, backbone: str) -> None:
    if backbone == "resnet18":
        pytest.importorskip("torchvision")
    policy = make(seeing, backbone=backbone)
    context = policy.encode(look(5))
    assert policy.feature_size == 3 + 2 * 2 * 16
    assert context.features.shape == (5, policy.feature_size)
    assert policy.sample(context, torch.randn(5, 8)).shape == (5, 8)


def test_every_camera_counts_and_is_found_by_its_name(seeing: Spec) -> None:
    policy, seen, noise = make(seeing), look(4), torch.randn(4, 8)
    before = policy.sample(policy.encode(seen), noise)
    for name in SIZES:
        other = replace(seen, images={**seen.images, name: 255 - seen.images[name]})
        assert not torch.allclose(policy.sample(policy.encode(other), noise), before, atol=1e-3)
    turned = replace(seen, images=dict(reversed(seen.images.items())))
    assert torch.equal(policy.sample(policy.encode(turned), noise), before)


def test_swapped_and_missing_cameras_are_refused_by_name(seeing: Spec) -> None:
    policy, seen = make(seeing), look(2)
    swapped = {FRONT: seen.images[WRIST], WRIST: seen.images[FRONT]}
    with pytest.raises(
        DataError, match=r"front' has shape \(3, 16, 16\), the policy was made for \(3, 20, 28\)"
    ):
        policy.encode(replace(seen, images=swapped))
    with pytest.raises(
        DataError, match=r"sees 'observation.images.wrist', but was given \['observation.images.fr"
    ):
        policy.encode(replace(seen, images={FRONT: seen.images[FRONT]}))


def test_rows_do_not_see_each_other_and_candidates_share_their_frames(seeing: Spec) -> None:
    policy, seen, noise = make(seeing), look(4), torch.randn(4, 8)
    whole = policy.encode(seen)
    alone = policy.encode(seen.rows(torch.tensor([2])))
    assert torch.allclose(policy.sample(whole, noise)[2:3], policy.sample(alone, noise[2:3]), atol=1e-5)
    many = policy.sample(alone.interleave(3), noise[:3])
    one_by_one = torch.cat([policy.sample(alone, noise[i : i + 1]) for i in range(3)])
    assert torch.allclose(many, one_by_one, atol=1e-5)
    joined = concatenate(alone, whole)
    assert torch.allclose(
        policy.sample(joined, noise[[2, 0, 1, 2, 3]])[0], policy.sample(whole, noise)[2], atol=1e-5
    )
    tiled = policy.sample(whole.tile(2), torch.cat([noise, noise]))
    assert torch.allclose(tiled[4:], policy.sample(whole, noise), atol=1e-5)


def test_critics_get_features_without_a_gradient(seeing: Spec) -> None:
    policy = make(seeing)
    context = policy.encode(look(2))
    assert not context.features.requires_grad
    policy.velocity(context, torch.randn(2, 8), torch.rand(2, 1)).sum().backward()
    assert all(p.grad is not None for p in policy.vision.parameters())


@pytest.mark.parametrize(("what", "vision", "head", "rest"), [
    ("all", True, True, True), ("expert", False, True, True), ("head", False, True, False),
])  # fmt: skip
def test_only_what_is_named_learns(seeing: Spec, what: str, vision: bool, head: bool, rest: bool) -> None:
    policy = make(seeing).train_only(what)  # type: ignore[arg-type]
    for copy in (policy, policy.trainable_copy(), policy.frozen_copy().trainable_copy()):
        assert all(p.requires_grad is vision for p in copy.vision.parameters())
        assert all(p.requires_grad is head for p in copy.head.parameters())
        assert all(p.requires_grad is rest for p in copy.blocks.parameters())
        assert copy.learns_encoder is vision
    assert not any(p.requires_grad for p in policy.frozen_copy().parameters())


def test_a_base_keeps_its_own_eyes_where_the_encoder_learns(seeing: Spec) -> None:
    policy, seen = make(seeing), look(3)
    x, t = torch.randn(3, 8), torch.rand(3, 1)
    base = policy.frozen_copy()
    own = base.velocity(base.encode(seen), x, t)
    with torch.no_grad():
        for parameter in policy.vision.parameters():
            parameter.add_(0.1)
    context = base.beside(seen, policy.encode(seen))
    assert torch.allclose(base.base_velocity(context, x, t), own)
    twice = base.base_velocity(context.tile(2), x.repeat(2, 1), t.repeat(2, 1))
    assert torch.allclose(twice[3:], own, atol=1e-5)
    frozen = make(seeing).train_only("expert")
    same = frozen.encode(seen)
    assert frozen.frozen_copy().beside(seen, same) is same


def test_it_is_saved_and_read_back(seeing: Spec, tmp_path: Path) -> None:
    policy, seen, noise = make(seeing), look(3), torch.randn(3, 8)
    save_policy(policy, tmp_path / "policy")
    again = load_policy(tmp_path / "policy")
    assert torch.equal(again.sample(again.encode(seen), noise), policy.sample(policy.encode(seen), noise))
    assert again.config() == policy.config()


def test_shifts_move_frames_whole_and_repeat_their_edge() -> None:
    frames = torch.arange(5 * 7, dtype=torch.uint8).view(1, 1, 5, 7).repeat(200, 3, 1, 1)
    torch.manual_seed(0)
    moved = random_shift(frames, 2)
    assert moved.dtype == torch.uint8
    y, x = torch.arange(5), torch.arange(7)
    found = set[tuple[int, int]]()
    for frame in moved:
        [offset] = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(frame, frames[0][:, (y + dy).clamp(0, 4)][:, :, (x + dx).clamp(0, 6)])
        ]
        found.add(offset)
    assert len(found) == 25


def test_frames_are_shifted_in_training_alone(seeing: Spec) -> None:
    policy, seen = make(seeing), look(4)
    still = policy.encode(seen).features
    assert torch.equal(policy.encode(seen).features, still)
    policy.train()
    assert not torch.equal(policy.encode(seen).features, still)


class Dots:
    """Batches whose only clue is a picture: the action is the place of a bright dot."""

    def __init__(self, spec: Spec, rows: int) -> None:
        self._spec, self._rows = spec, rows
        self._generator = torch.Generator().manual_seed(0)

    def batch(self, source: str | None = None) -> Dots:
        place = torch.randint(0, 16, (self._rows, 2), generator=self._generator)
        image = torch.zeros(self._rows, *SIZES[WRIST], dtype=torch.uint8)
        row = torch.arange(self._rows)
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                image[row, :, (place[:, 0] + dy).clamp(0, 15), (place[:, 1] + dx).clamp(0, 15)] = 255
        self.observation = Observation(torch.zeros(self._rows, 3), {WRIST: image})
        low, high = (torch.tensor(bound) for bound in (self._spec.action.low, self._spec.action.high))
        self.action = (low + (high - low) * place / 15)[:, None].repeat(1, 4, 1)
        self.valid = torch.ones(self._rows, 4)
        return self


def test_cloning_finds_what_only_the_camera_shows(spec: Spec) -> None:
    seeing = replace(spec, observation=(*spec.observation, Feature(WRIST, SIZES[WRIST], "uint8")))
    torch.manual_seed(0)
    policy = FlowImageTransformer(seeing, width=32, depth=2, flow_steps=4, queries=2, vision_depth=1, shift=0)
    pretrain(policy, Dots(seeing, 64), PretrainConfig(steps=400, learning_rate=2e-3))
    test = Dots(seeing, 128).batch()
    with torch.no_grad():
        chunk = policy.raw_action(policy.sample(policy.encode(test.observation), torch.randn(128, 8)))
    error = (policy.flat_action(chunk) - policy.flat_action(test.action)).abs().mean()
    # A policy that does not look errs by 0.5 (uniform places) or more.
    assert float(error) < 0.15


def test_settings_that_make_no_sense_are_refused(spec: Spec, seeing: Spec) -> None:
    with pytest.raises(DataError, match=r"needs a camera, and the spec has none"):
        create_policy("flow_image_transformer", spec)
    cameras = seeing.cameras
    with pytest.raises(ConfigError, match=r"backbone is 'vit'"):
        CameraEncoder(cameras, width=8, backbone="vit")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queries 0"):
        CameraEncoder(cameras, width=8, queries=0)


def test_a_missing_torchvision_is_named(seeing: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchvision.models", None)
    with pytest.raises(MissingExtra, match="torchvision"):
        CameraEncoder(seeing.cameras, width=16, backbone="resnet18")

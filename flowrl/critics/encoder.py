"""What a critic sees: the policy's features, or what a small encoder of its own makes of state and cameras.

Which of the two is asked for in one place, `Viewer.see`; algorithms pass contexts and know neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.config import configclass
from flowrl.errors import ConfigError, UsageError
from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.observation import Observation
from flowrl.policies.sight import Scene, Sight
from flowrl.policies.vision import Backbone, CameraEncoder, random_shift
from flowrl.spec import Feature, Spec


@configclass
class EncoderConfig:
    """A critic's own encoder of the cameras, trained by the critic's loss alone."""

    backbone: Backbone = "patches"
    """``patches``, convolutions and transformer blocks, or ``resnet18``, torchvision's from random weights."""
    width: int = 64
    """W, the width of a token."""
    queries: int = 4
    """Q, tokens per camera."""
    depth: int = 2
    """Transformer blocks over a camera's patches; not used by ``resnet18``."""
    heads: int = 4
    """Attention heads."""
    shift: int = 4
    """Largest random shift of a frame in an update, pixels (arXiv 2107.09645); acting never shifts."""

    def __post_init__(self) -> None:
        for name in ("width", "queries", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("depth", "shift"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")

    def settings(self, spec: Spec) -> dict[str, Any]:
        """Arguments of a `CriticEncoder` for this spec, as JSON values. Raises ConfigError without a camera."""
        if not spec.cameras:
            raise ConfigError(
                "algorithm.critic.encoder is set, and the policy's spec has no camera to encode; set it to null, or "
                "record with cameras (flowrl show --environments lists the setting)"
            )
        cameras = [asdict(camera) for camera in spec.cameras]
        return {**asdict(self), "cameras": cameras}

    def feature_size(self, spec: Spec) -> int:
        """F, what a `CriticEncoder` gives for this spec: S + C * Q * W."""
        return spec.state_size + len(spec.cameras) * self.queries * self.width


class CriticEncoder(nn.Module):
    """Normalised state and camera tokens, flat: (B, S + C * Q * W), with C cameras in the spec's order.

    Args:
        cameras: image features of a spec, as in its JSON.
        backbone, width, queries, depth, heads, shift: see `EncoderConfig`.

    Raises ConfigError for a setting that cannot be used, MissingExtra without torchvision where it is needed.
    """

    def __init__(self, *, cameras: Sequence[Mapping[str, Any]], shift: int, **network: Any) -> None:
        super().__init__()
        features = [Feature.from_json(camera) for camera in cameras]
        self.shift = shift
        # Frames are shifted before they come here: the same shift for online and target encoder.
        self.vision = CameraEncoder(features, **network, shift=0)

    def forward(self, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Normalised states (B, S) and frames (B, 3, height, width) uint8 by camera to (B, F)."""
        return torch.cat([state, self.vision(images).flatten(1)], dim=1)


class Viewer(nn.Module):
    """A network that sees observations as its ``encoder`` does, or as the policy does where it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder: CriticEncoder | None = None

    def look(
        self, policy: ChunkPolicy, observation: Observation, generator: torch.Generator | None = None
    ) -> Context:
        """``policy``'s encoding of a batch, with what this network's own encoder needs, if it has one.

        With a ``generator`` the own encoder sees frames shifted at random, as in training.
        """
        context = policy.encode(observation)
        if self.encoder is None:
            return context
        images, shift = observation.images, self.encoder.shift
        if generator is not None and shift:
            images = {name: random_shift(frames, shift, generator) for name, frames in images.items()}
        scene = Scene(policy.normalised_state(observation.state), images)
        return replace(context, sight=Sight.of(scene, context.features.device))

    def see(self, context: Context) -> Tensor:
        """What this network values: the features (B, F) of its own encoder, else those of the context.

        Raises UsageError for a context that no `look` made, where there is an own encoder.
        """
        if self.encoder is None:
            return context.features
        if context.sight is None:
            raise UsageError(
                "a critic with its own encoder needs the observation: make contexts by its `look`"
            )
        return context.sight.by(self.encoder)

"""A flow policy that sees: camera tokens before the action tokens of a small diffusion transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.errors import DataError
from flowrl.policies.interface import Context
from flowrl.policies.networks import TimeEmbeddingKind
from flowrl.policies.observation import Observation
from flowrl.policies.transformer import FlowTransformer
from flowrl.policies.vision import Backbone, CameraEncoder
from flowrl.spec import Spec


class FlowImageTransformer(FlowTransformer):
    """`flowrl.policies.transformer.FlowTransformer` with the tokens of a `CameraEncoder`.

    Frames are encoded once per observation; the velocity is evaluated on their tokens. Critics see the
    normalised state and the camera tokens, flat, without a gradient into the encoder.

    Args:
        spec: with chunking, normalisation and at least one camera.
        queries: tokens per camera.
        vision_depth: transformer blocks over a camera's patches.
        backbone: see `flowrl.policies.vision.Backbone`.
        shift: random shifts while training, pixels.
        width, depth, heads, time_embedding, flow_steps: as in `FlowTransformer`.

    Raises ConfigError for a setting that cannot be used, DataError for a spec without cameras.
    """

    kind = "flow_image_transformer"

    def __init__(
        self,
        spec: Spec,
        *,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        time_embedding: TimeEmbeddingKind = "sinusoidal",
        queries: int = 4,
        vision_depth: int = 2,
        backbone: Backbone = "patches",
        shift: int = 4,
        flow_steps: int = 10,
    ) -> None:
        super().__init__(
            spec, width=width, depth=depth, heads=heads, time_embedding=time_embedding, flow_steps=flow_steps
        )
        cameras = spec.cameras
        if not cameras:
            raise DataError(
                "the policy flow_image_transformer needs a camera, and the spec has none; record with cameras "
                "(flowrl show --environments lists the setting), or use flow_transformer"
            )
        self._config |= {
            "queries": queries,
            "vision_depth": vision_depth,
            "backbone": backbone,
            "shift": shift,
        }
        self.vision = CameraEncoder(
            cameras,
            width=width,
            queries=queries,
            depth=vision_depth,
            heads=heads,
            backbone=backbone,
            shift=shift,
        )

    @property
    def feature_size(self) -> int:
        """State and camera tokens: S + C * Q * W."""
        vision = self.vision
        return self.spec.state_size + len(vision.cameras) * vision.tokens_per_camera * vision.width

    @property
    def encoder_parts(self) -> list[torch.nn.Module]:
        """The camera encoder."""
        return [self.vision]

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context: features for critics, camera tokens (B, C * Q, W) for the velocity."""
        tokens = self.vision(observation.images)
        state = self.normalised_state(observation.state)
        return Context(torch.cat([state, tokens.detach().flatten(1)], dim=1), tokens)

    def observation_tokens(self, context: Context) -> Tensor:
        """The state's token and those of the cameras, (B, 1 + C * Q, W)."""
        state = self.state_token(context.features[:, : self.spec.state_size]).unsqueeze(1)
        assert isinstance(context.cache, Tensor)
        return torch.cat([state, context.cache], dim=1)

"""Camera frames to tokens: a small convolutional transformer, or a ResNet, and random shifts.

Each camera is seen by name. All cameras share one network and differ by a learned vector, added to their
tokens; a few learned queries then read all patches of a camera (arXiv 2204.14198, section 3.1), so that
what conditions the action tokens is short however large the picture is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional

from flowrl.errors import ConfigError, DataError, MissingExtra
from flowrl.policies.networks import Attention
from flowrl.spec import Feature

Backbone = Literal["patches", "resnet18"]
"""``patches``: two convolutions to patches of 8 pixels, then transformer blocks. ``resnet18``: torchvision's,
with GroupNorm, from random weights, its last feature map as the patches."""


class CameraEncoder(nn.Module):
    """Frames of several cameras to tokens (B, C * Q, W), C cameras in order, Q queries each.

    Args:
        cameras: image features of one spec; their sizes may differ.
        width: W.
        queries: Q.
        depth: transformer blocks over a camera's patches; not used by ``resnet18``.
        heads: attention heads.
        backbone: see `Backbone`.
        shift: while training, each frame is moved by up to so many pixels, its edge repeated
            (arXiv 2107.09645, section 3.1); 0 leaves it.

    Raises ConfigError for a setting that cannot be used, MissingExtra without torchvision where it is needed.
    """

    def __init__(
        self,
        cameras: Sequence[Feature],
        *,
        width: int,
        queries: int = 4,
        depth: int = 2,
        heads: int = 4,
        backbone: Backbone = "patches",
        shift: int = 4,
    ) -> None:
        super().__init__()
        if backbone not in get_args(Backbone):
            raise ConfigError(f"backbone is {backbone!r}; expected one of {', '.join(get_args(Backbone))}")
        if queries < 1 or depth < 0 or shift < 0:
            raise ConfigError(
                f"queries {queries}, depth {depth} and shift {shift} must be at least 1, 0 and 0"
            )
        self.cameras = tuple(cameras)
        self.tokens_per_camera, self.width, self.shift = queries, width, shift
        self.backbone = _patches(width) if backbone == "patches" else _resnet(width)
        self.camera = nn.Parameter(0.02 * torch.randn(len(cameras), width))
        self.positions = nn.ParameterList(
            0.02 * torch.randn(_grid(backbone, camera), width) for camera in cameras
        )
        blocks = depth if backbone == "patches" else 0
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.queries = nn.Parameter(0.02 * torch.randn(queries, width))
        self.read = Attention(width, heads)

    def forward(self, images: Mapping[str, Tensor]) -> Tensor:
        """Frames (B, 3, height, width) uint8 by feature name to tokens (B, C * Q, W).

        Raises DataError naming the camera that is missing or of another size.
        """
        return torch.cat([self._camera(index, images) for index in range(len(self.cameras))], dim=1)

    def _camera(self, index: int, images: Mapping[str, Tensor]) -> Tensor:
        feature = self.cameras[index]
        if feature.name not in images:
            raise DataError(
                f"the policy sees {feature.name!r}, but was given {sorted(images) or 'no images'}"
            )
        frames = images[feature.name]
        if tuple(frames.shape[1:]) != feature.shape:
            raise DataError(
                f"{feature.name!r} has shape {tuple(frames.shape[1:])}, the policy was made for {feature.shape}"
            )
        if self.training and self.shift:
            frames = random_shift(frames, self.shift)
        patches = rearrange(self.backbone(frames.to(self.camera.dtype) / 127.5 - 1), "b w h v -> b (h v) w")
        patches = patches + self.positions[index] + self.camera[index]
        for block in self.blocks:
            patches = block(patches)
        patches = self.norm(patches)
        queries = self.queries.expand(len(patches), -1, -1) + self.camera[index]
        return queries + self.read(queries, patches)


class _Block(nn.Module):
    """Self-attention, then an MLP, each behind a LayerNorm: (B, N, W) to the same.

    torch's own layer takes another code path, with other last bits, where no parameter needs a gradient.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm_attention(tokens)
        tokens = tokens + self.attention(normed, normed)
        return tokens + self.mlp(self.norm_mlp(tokens))


def random_shift(frames: Tensor, pixels: int, generator: torch.Generator | None = None) -> Tensor:
    """Move each frame (B, C, height, width) by up to ``pixels`` in each direction, repeating its edge.

    Whole pixels, drawn uniformly from ``generator``, by default torch's global one of the CPU.
    """
    rows, _, height, width = frames.shape
    padded = functional.pad(frames.float(), (pixels,) * 4, "replicate").to(frames.dtype)
    offset = torch.randint(0, 2 * pixels + 1, (2, rows, 1), generator=generator).to(frames.device)
    y = offset[0] + torch.arange(height, device=frames.device)
    x = offset[1] + torch.arange(width, device=frames.device)
    row = torch.arange(rows, device=frames.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[row, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def _patches(width: int) -> nn.Sequential:
    """An early-convolution stem (arXiv 2106.14881): patches of 8 pixels that overlap a little."""
    half = max(width // 2, 1)
    return nn.Sequential(
        nn.Conv2d(3, half, 5, stride=4, padding=2),
        nn.GELU(),
        nn.Conv2d(half, width, 3, stride=2, padding=1),
    )


def _resnet(width: int) -> nn.Sequential:
    try:
        from torchvision.models import resnet18
    except ModuleNotFoundError as error:
        raise MissingExtra("torchvision", "vla") from error

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(channels // 16, channels)

    network: Any = resnet18(weights=None, norm_layer=norm)
    return nn.Sequential(*list(network.children())[:-2], nn.Conv2d(512, width, 1))


def _grid(backbone: Backbone, camera: Feature) -> int:
    """Patches of a camera's frame: every stride rounds up."""
    strides = (4, 2) if backbone == "patches" else (2, 2, 2, 2, 2)
    _, rows, columns = camera.shape
    for stride in strides:
        rows, columns = -(-rows // stride), -(-columns // stride)
    return rows * columns

"""Settings of a success classifier."""

from __future__ import annotations

from flowrl.config import configclass
from flowrl.policies.vision import Backbone


@configclass
class ClassifierConfig:
    """A success classifier and how it is trained; the defaults suit frames of 48 to 128 pixels a side."""

    cameras: list[str] | None = None
    """Cameras it looks at, by full name or by the part after observation.images.; all of the replay's if null."""
    state: bool = False
    """Whether it also sees the flat state: only where success shows in it, since few episodes teach it to cheat."""
    width: int = 64
    """Width of tokens and of the hidden layer."""
    depth: int = 1
    """Transformer blocks over a camera's patches; not used by resnet18."""
    queries: int = 2
    """Tokens that are kept of each camera's frame."""
    heads: int = 4
    """Attention heads."""
    backbone: Backbone = "patches"
    """patches: two convolutions and the blocks, small. resnet18: torchvision's, from random weights."""
    shift: int = 4
    """Random shifts of the frames while training, in pixels; 0 for none."""
    positives: int = 3
    """Last frames of a successful episode that show success, its final observation included."""
    margin: int = 5
    """Frames before those that are neither: success may begin to show in them."""
    validation: float = 0.3
    """Share of the episodes, of successful and of failed ones alike, that choose the threshold."""
    false_positives: float = 0.0
    """Largest share of validation frames without success that may be called a success."""
    steps: int = 300
    """Gradient steps."""
    batch_size: int = 64
    """Frames in a batch, half of them successes."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls to 0 along a cosine."""
    gradient_clip: float = 10.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Seed of the split, the weights, the batches and the shifts."""

    def __post_init__(self) -> None:
        for name in ("positives", "steps", "learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.margin < 0 or self.batch_size < 2:
            raise ValueError(
                f"margin is {self.margin} and batch_size {self.batch_size}; at least 0 and 2 are needed"
            )
        if not 0 < self.validation < 1:
            raise ValueError(f"validation is {self.validation}; it is a share of the episodes, in (0, 1)")
        if not 0 <= self.false_positives < 1:
            raise ValueError(f"false_positives is {self.false_positives}; it is a share of frames, in [0, 1)")

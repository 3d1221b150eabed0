"""What a network with an encoder of its own looks at: the raw observations behind a context.

A `Context` holds what the policy made of an observation. A critic may have an encoder of its own, and its
target another one; a `Sight` rides along in the context, so that each of them encodes the observation once,
when it is first asked, however often rows are tiled afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


class Scene:
    """A batch of R observations: normalised states (R, S) and frames (R, 3, height, width) by camera."""

    def __init__(self, state: Tensor, images: Mapping[str, Tensor]) -> None:
        self._state, self._images = state, images
        self._seen: dict[nn.Module, Tensor] = {}

    def __len__(self) -> int:
        return len(self._state)

    def by(self, encoder: nn.Module) -> Tensor:
        """``encoder(state, images)`` (R, F), as it was when it was first asked for.

        It is encoded again only where the first one who asked wanted no gradient and the next one does.
        """
        seen = self._seen.get(encoder)
        if seen is None or (_wants_gradient(encoder) and not seen.requires_grad):
            seen = self._seen[encoder] = encoder(self._state, self._images)
        return seen


@dataclass(frozen=True)
class Sight:
    """The observations of B rows of a context: row b is row ``rows[b]`` of the ``scenes``, one after the other.

    Without ``gradient`` what is seen has none.
    """

    scenes: tuple[Scene, ...]
    rows: Tensor
    gradient: bool = True

    @classmethod
    def of(cls, scene: Scene, device: torch.device) -> Sight:
        """All rows of one scene, in order."""
        return cls((scene,), torch.arange(len(scene), device=device))

    def by(self, encoder: nn.Module) -> Tensor:
        """What ``encoder`` makes of each row, (B, F)."""
        seen = torch.cat([scene.by(encoder) for scene in self.scenes])[self.rows]
        return seen if self.gradient else seen.detach()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Sight:
        """With rows changed as the rows of the context's tensors are."""
        return replace(self, rows=change(self.rows))

    def beside(self, other: Sight) -> Sight:
        """These rows, then those of ``other``."""
        offset = sum(map(len, self.scenes))
        rows = torch.cat([self.rows, other.rows + offset])
        return Sight(self.scenes + other.scenes, rows, self.gradient or other.gradient)


def _wants_gradient(encoder: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters())

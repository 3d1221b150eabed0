"""Seam 3, the policy: encode an observation once, turn noise into an action chunk.

`ChunkPolicy` is what actors, environments and files know: a map from noise to a chunk. `FlowPolicy` is the
one that algorithms fine-tune: its map integrates a velocity, which may be evaluated anywhere.

Flow time runs from 0 (noise) to 1 (action); the velocity's target is ``action - noise``. Inside a
policy, action chunks are flat and normalised: (B, D) with D = H * A, in [-1, 1]. Shapes follow
docs/notation.md: B batch, S state, H chunk length, A action dimensions, K flow steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import torch
from einops import rearrange
from torch import Tensor, nn

from flowrl.errors import ConfigError, DataError
from flowrl.policies.action_view import ActionView
from flowrl.policies.lora import LoRAConfig
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import euler_ode, flow_matching_loss
from flowrl.policies.sight import Sight
from flowrl.spec import Chunking, Spec

WEIGHTS_FILE = "weights.safetensors"

type Cache = Tensor | tuple["Cache", ...] | None
"""What a `Context` keeps beside its features."""

Trainable = Literal["all", "expert", "lora", "head"]
"""What learns: everything, everything behind the observation's encoder, low-rank adapters
(`flowrl.policies.lora`), or the output layers alone."""
Precision = Literal["float32", "bfloat16"]
"""In which type a network computes; its weights are float32."""


@dataclass(frozen=True)
class Context:
    """An encoded observation, made once per batch and reused for every velocity evaluation.

    ``features`` (B, F) is what critics see that have no encoder of their own; those that have one look at
    ``sight`` (`flowrl.critics.encoder`). ``cache`` is whatever else a policy keeps per row (image tokens,
    the keys and values of a prefix): tensors whose first axis is B, alone or in tuples. ``base`` is the same
    observation as the policy's base encodes it, where that differs (`ChunkPolicy.beside`).
    """

    features: Tensor
    cache: Cache = None
    base: Context | None = None
    sight: Sight | None = None

    def __len__(self) -> int:
        return len(self.features)

    def tile(self, times: int) -> Context:
        """The whole batch ``times`` times over: rows 0..B-1, 0..B-1, ... -> (times * B)."""
        return self._mapped(lambda part: part.repeat(times, *(1,) * (part.dim() - 1)))

    def interleave(self, times: int) -> Context:
        """Every row ``times`` times in place: rows 0, 0, ..., 1, 1, ... -> (B * times)."""
        return self._mapped(lambda part: part.repeat_interleave(times, 0))

    def detach(self) -> Context:
        """Without gradient."""
        sight = None if self.sight is None else replace(self.sight, gradient=False)
        return replace(self._mapped(Tensor.detach), sight=sight)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Context:
        base = None if self.base is None else self.base._mapped(change)
        sight = None if self.sight is None else self.sight.mapped(change)
        return Context(change(self.features), map_cache(change, self.cache), base, sight)


def map_cache(change: Callable[..., Tensor], *caches: Cache) -> Cache:
    """One cache whose tensors are ``change`` of the tensors of ``caches``, which are built alike."""
    first = caches[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return change(*caches)
    parts = zip(*cast("tuple[tuple[Cache, ...], ...]", caches), strict=True)
    return tuple(map_cache(change, *part) for part in parts)


def concatenate(first: Context, second: Context) -> Context:
    """Stack the rows of two contexts of one policy."""

    def stacked(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    sights = first.sight, second.sight
    return Context(
        stacked(first.features, second.features),
        map_cache(stacked, first.cache, second.cache),
        sight=None if sights[0] is None or sights[1] is None else sights[0].beside(sights[1]),
    )


Velocity = Callable[[Context, Tensor, Tensor], Tensor]
"""``velocity(context, x, t)`` with x (B, D) and t (B, 1) gives (B, D)."""


class ChunkPolicy(nn.Module, ABC):
    """A policy as a map from noise to an action chunk. Subclasses implement `encode`, `sample`, `config`.

    Attributes:
        spec: what it sees and does; chunking and normalisation are always set.
    """

    kind: str
    """Name under which `flowrl.policies.io` stores and finds the class."""
    weights_file: str = WEIGHTS_FILE
    """Name of the file that holds the weights."""
    sample_name: str = "sample"
    """What one sample is called where acting rules are put in words."""
    candidates_per_noise: int = 1
    """C, how many actions `candidates` makes of one noise."""
    trainable: Trainable = "all"
    """What learns, as `train_only` last said."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if spec.chunk is None or spec.normalisation is None:
            raise DataError("a policy needs a spec with chunking and normalisation")
        self.spec = spec
        normalisation = spec.normalisation
        for name in ("state_mean", "state_scale", "action_centre", "action_half_range"):
            values = torch.tensor(getattr(normalisation, name), dtype=torch.float32)
            self.register_buffer(name, values, persistent=False)
        self._clip = normalisation.clip

    @abstractmethod
    def encode(self, observation: Observation) -> Context:
        """Encode a batch of raw observations once."""

    @abstractmethod
    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One action per row from standard normal noise (B, noise_size), unclipped: (B, D)."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""

    def stored_tensors(self) -> dict[str, Tensor]:
        """What the file of weights holds, by name."""
        return self.state_dict()

    def load_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a file, which are those of `stored_tensors` by name and shape."""
        self.load_state_dict(tensors)

    def companions(self) -> dict[str, bytes]:
        """Files that stand beside the weights for others who read the directory, by name."""
        return {}

    def candidates(self, context: Context, noise: Tensor) -> Tensor:
        """The actions among which a critic may choose, C per row in place: (B * C, D)."""
        return self.sample(context, noise)

    @property
    def action_view(self) -> ActionView:
        """What of a flat chunk is executed, and within which bounds: how critics see it."""
        return ActionView()

    def clip(self, flat: Tensor) -> Tensor:
        """Flat chunks (B, D) inside the action's bounds."""
        return flat.clamp(-1, 1)

    @property
    def sample_detail(self) -> str:
        """How a sample is made, in a few words for acting rules; empty when the name says it all."""
        return ""

    @property
    def noise_size(self) -> int:
        """Size of the noise that `sample` takes: D unless a policy says otherwise."""
        return self.flat_size

    @property
    def chunk(self) -> Chunking:
        """Chunk length H and executed length."""
        assert self.spec.chunk is not None
        return self.spec.chunk

    @property
    def feature_size(self) -> int:
        """F, the size of `Context.features`; the flat state's size S unless a policy says otherwise."""
        return self.spec.state_size

    @property
    def flat_size(self) -> int:
        """D = H * A."""
        return self.chunk.length * self.spec.action.size

    @property
    def device(self) -> torch.device:
        """Where the policy's buffers live."""
        return self.get_buffer("state_mean").device

    def normalised_state(self, state: Tensor) -> Tensor:
        """Raw states (B, S) standardised and clipped."""
        mean, scale = self.get_buffer("state_mean"), self.get_buffer("state_scale")
        return ((state - mean) / scale).clamp(-self._clip, self._clip)

    def flat_action(self, raw: Tensor) -> Tensor:
        """Raw chunks (B, H, A) to normalised flat chunks (B, D)."""
        centre, half = self.get_buffer("action_centre"), self.get_buffer("action_half_range")
        return rearrange((raw - centre) / half, "b h a -> b (h a)")

    def raw_action(self, flat: Tensor) -> Tensor:
        """Normalised flat chunks (B, D), clipped to the bounds, to raw chunks (B, H, A)."""
        chunk = rearrange(self.clip(flat), "b (h a) -> b h a", a=self.spec.action.size)
        return chunk * self.get_buffer("action_half_range") + self.get_buffer("action_centre")

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """The modules that `encode` needs and nothing else; empty where encoding has nothing to learn."""
        return []

    @property
    def head_parts(self) -> list[nn.Module]:
        """The output layers. Raises ConfigError where there is no such part."""
        raise ConfigError(
            f"a policy of kind {self.kind!r} has no separate head; set trainable to all or expert"
        )

    @property
    def learns_encoder(self) -> bool:
        """Whether two copies of this policy may come to encode the same observation differently."""
        return self.trainable == "all" and bool(self.encoder_parts)

    def add_lora(self, config: LoRAConfig) -> Self:
        """Put low-rank adapters into the network, for ``train_only("lora")``; returns itself.

        Raises ConfigError for a policy that takes none.
        """
        raise ConfigError(
            f"a policy of kind {self.kind!r} takes no low-rank adapters; set trainable to all, expert or head"
        )

    def compute_in(self, precision: Precision, activation_checkpointing: bool) -> Self:
        """Choose how the network computes; returns itself.

        Raises ConfigError for anything but the default where a policy has no choice.
        """
        if precision != "float32" or activation_checkpointing:
            raise ConfigError(
                f"a policy of kind {self.kind!r} has neither precision nor activation_checkpointing; policies of "
                "LeRobot's have"
            )
        return self

    def train_only(self, what: Trainable) -> Self:
        """Let only these parameters have gradients, here and in every `trainable_copy`; returns itself.

        Raises ConfigError for ``head`` where a policy has none, and for ``lora`` without `add_lora`.
        """
        if what == "lora":
            raise ConfigError("trainable is lora, but the policy has no adapters: call add_lora first")
        self.trainable = what
        self.requires_grad_(what != "head")
        for module in self.head_parts if what == "head" else self.encoder_parts:
            module.requires_grad_(what != "expert")
        return self

    def trainable_copy(self) -> Self:
        """A copy of which learns what `train_only` said, in evaluation mode: frames are not shifted at random."""
        return deepcopy(self).train_only(self.trainable).eval()

    def beside(self, observation: Observation, context: Context) -> Context:
        """The ``context`` of a policy that began as a copy of this one, with this one's own encoding where
        the two may differ by now; without gradient.
        """
        if not self.learns_encoder:
            return context
        with torch.no_grad():
            return replace(context, base=self.encode(observation))

    def frozen_copy(self) -> Self:
        """A copy without gradients, for targets and bases."""
        copy = deepcopy(self)
        copy.requires_grad_(False)
        return copy.eval()


class FlowPolicy(ChunkPolicy):
    """A policy given by a velocity field. Subclasses implement `encode`, `velocity` and `config`.

    Attributes:
        flow_steps: K, Euler steps of `sample`.
    """

    sample_name = "ODE sample"

    def __init__(self, spec: Spec, flow_steps: int) -> None:
        super().__init__(spec)
        self.flow_steps = flow_steps

    @abstractmethod
    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, D) and flow time t (B, 1): (B, D)."""

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One Euler ODE sample per row from noise (B, D), unclipped: (B, D)."""
        return euler_ode(self.velocity, context, noise, self.flow_steps)

    def base_velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """`velocity` as the base of a policy whose ``context`` is given (see `beside`)."""
        return self.velocity(context.base or context, x, t)

    @property
    def sample_detail(self) -> str:
        """The number of Euler steps."""
        return f"{self.flow_steps} Euler steps"

    def imitation_loss(
        self, context: Context, action: Tensor, noise: Tensor, t: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """The loss by which this policy imitates flat chunks (B, D): flow matching on the linear path.

        ``noise`` (B, D) and ``t`` (B, 1), uniform on [0, 1], are the caller's draws; rows are weighted
        by ``weight`` (B,) and the mean divides by B. A policy whose network was trained to predict
        something other than the velocity (a diffusion policy) overrides this.
        """
        return flow_matching_loss(self.velocity, context, action, noise, t, weight)

"""A ring of transitions in preallocated tensors: the memory of training from scratch.

The replay of `flowrl.replay` keeps episodes on disk for people and for later runs; this one keeps the
newest transitions of many environments in memory, for one run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowrl.errors import DataError
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.scratch.vector import FloatArray, VectorStep

_FIELDS = ("state", "action", "reward", "terminated", "truncated", "successor")


class RingReplay:
    """The newest ``slots`` steps of N environments. `batch` draws uniformly, with replacement.

    Serves batches of chunks of length 1, as the critics of `flowrl.critics` take them. ``seed`` fixes the
    draws. States are stored raw: they are normalised when they are used, by the statistics of that time.
    """

    def __init__(
        self,
        slots: int,
        count: int,
        state: int,
        action: int,
        *,
        batch_size: int,
        reward_scale: float = 1.0,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if slots < 1:
            raise DataError(f"a ring needs at least one slot, got {slots}")
        self._slots, self._count = slots, count
        self._batch_size, self._reward_scale = batch_size, reward_scale
        self._generator = torch.Generator().manual_seed(seed)
        self._written = 0
        self._rows = {
            "state": torch.zeros(slots, count, state, device=device),
            "action": torch.zeros(slots, count, action, device=device),
            "reward": torch.zeros(slots, count, device=device),
            "terminated": torch.zeros(slots, count, dtype=torch.bool, device=device),
            "truncated": torch.zeros(slots, count, dtype=torch.bool, device=device),
            "successor": torch.zeros(slots, count, state, device=device),
        }

    def __len__(self) -> int:
        """Transitions held."""
        return min(self._written, self._slots) * self._count

    def add(self, observation: FloatArray, action: Tensor, step: VectorStep) -> None:
        """Remember one step of every environment, the oldest is forgotten.

        ``observation`` (N, S) is what ``action`` (N, A), in the environment's units, answered.
        """
        slot = self._written % self._slots
        rows = self._rows
        rows["state"][slot] = torch.from_numpy(observation)
        rows["action"][slot] = action
        rows["reward"][slot] = torch.from_numpy(step.reward)
        rows["terminated"][slot] = torch.from_numpy(step.terminated)
        rows["truncated"][slot] = torch.from_numpy(step.truncated)
        rows["successor"][slot] = torch.from_numpy(step.successor)
        self._written += 1

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        """B transitions as chunks of length 1; ``mask`` is 0 where the task ended, 1 at a time limit.

        Raises DataError for a named source or a sequence of chunks, which a ring does not have.
        """
        if source is not None or chunks != 1:
            raise DataError("a ring of transitions has one source and chunks of one step")
        if not self._written:
            raise DataError("the ring is empty; collect steps before learning")
        row = torch.randint(len(self), (self._batch_size,), generator=self._generator)
        row = row.to(self._rows["state"].device)
        picked = {name: values.flatten(0, 1)[row] for name, values in self._rows.items()}
        reward = picked["reward"][:, None] * self._reward_scale
        return ChunkBatch(
            observation=Observation(picked["state"]),
            action=picked["action"][:, None],
            rewards=reward,
            mask=1 - picked["terminated"][:, None].float(),
            valid=torch.ones_like(reward),
            next_observation=Observation(picked["successor"]),
            row=row,
            success=torch.zeros_like(reward[:, 0]),
            source=torch.zeros_like(row),
        )

    def state_dict(self) -> dict[str, Any]:
        """The transitions held, the position and the random state."""
        held = min(self._written, self._slots)
        return {
            "written": self._written,
            "rows": {name: values[:held].clone() for name, values in self._rows.items()},
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises DataError when the ring has another size."""
        held = len(state["rows"]["state"])
        if held != min(state["written"], self._slots) or state["rows"]["state"].shape[1] != self._count:
            raise DataError(
                f"the stored ring holds {held} steps of {state['rows']['state'].shape[1]} environments; this one "
                f"has room for {self._slots} of {self._count}: resume with the sizes of the run"
            )
        self._written = state["written"]
        for name in _FIELDS:
            self._rows[name][:held] = state["rows"][name]
        self._generator.set_state(state["generator"])

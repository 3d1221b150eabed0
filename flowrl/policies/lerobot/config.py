"""Configuration of LeRobot's policies: nothing here imports LeRobot."""

from __future__ import annotations

from typing import Any, Literal

from flowrl.config import configclass

LeRobotKind = Literal["diffusion", "multi_task_dit", "smolvla", "pi0", "pi05"]
"""LeRobot's name of a policy that has an adapter."""


@configclass
class AdoptConfig:
    """What may be changed in a checkpoint when it is taken over."""

    flow_steps: int | None = None
    """K, steps of one sample; None keeps the checkpoint's own number."""
    chunk: int | None = None
    """Actions proposed at once (LeRobot's n_action_steps); None keeps the checkpoint's."""
    executed: int | None = None
    """Actions executed before planning again; None executes the whole chunk."""
    rename: dict[str, str] = {}
    """The checkpoint's name of a feature by the environment's: {observation.images.front: observation.image}."""
    without: list[str] = []
    """Cameras of the checkpoint that are left out, where its network takes any number (SmolVLA, pi0, pi0.5)."""


@configclass
class LeRobotPolicyConfig:
    """A policy of LeRobot's with fresh weights, saved as LeRobot itself reads it."""

    kind: Literal["lerobot"] = "lerobot"
    """Name of the policy."""
    type: LeRobotKind = "diffusion"
    """LeRobot's name of it."""
    settings: dict[str, Any] = {}
    """LeRobot's own settings by their names: horizon, n_obs_steps, n_action_steps, down_dims, ...; features and
    statistics come from the data. chunk of the recipe is not looked at."""

"""`SimEnv`: a gymnasium environment that states its spec and restarts reproducibly.

A simulator is wrapped by filling in five small hooks (start an episode, apply an action, observe,
judge success, and optionally expose MuJoCo's model and data); everything a learner relies on lives
here once: sparse reward, time limit, action checks, seeding and rendering.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from flowrl.errors import DataError, UsageError
from flowrl.spec import IMAGES, ActionSpec, Feature, Spec

if TYPE_CHECKING:
    from sim.rendering import Renderer

Observations = dict[str, NDArray[Any]]
Action = NDArray[np.float32]

# Seeds drawn for episodes without an explicit one; every simulator accepts this range.
SEED_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Views:
    """What a simulated camera sees: the cameras that are part of the observation, and how they are drawn.

    ``cameras`` are the scene's names; each becomes ``observation.images.<camera>``, square, ``image_size``
    pixels a side. Raises UsageError for a size below 1 or a camera named twice.
    """

    shadows: bool = False
    cameras: tuple[str, ...] = ()
    image_size: int = 84

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise UsageError(f"image_size is {self.image_size}; it must be at least 1 pixel")
        if len(set(self.cameras)) < len(self.cameras):
            raise UsageError(f"cameras are {', '.join(self.cameras)}; name each of them once")

    @classmethod
    def from_settings(cls, shadows: bool, cameras: str | None, image_size: int) -> Views:
        """From an environment's settings, where ``cameras`` is a list separated by commas."""
        names = tuple(name.strip() for name in (cameras or "").split(",") if name.strip())
        return cls(shadows, names, image_size)

    def features(self) -> tuple[Feature, ...]:
        """The features that they add to an observation."""
        shape = (3, self.image_size, self.image_size)
        return tuple(Feature(IMAGES + camera, shape, "uint8") for camera in self.cameras)

    def settings(self) -> dict[str, bool]:
        """What makes their pictures incomparable with others', for a spec."""
        return {"shadows": True} if self.shadows and self.cameras else {}


BLIND = Views()


class SimEnv(gymnasium.Env[Observations, Action]):
    """One simulated task.

    ``interface`` is the spec without chunking and normalisation; observations are dictionaries from
    its feature names to arrays of its shapes, float32 or, for cameras, uint8. ``instruction`` is the task in
    words. ``reward`` is 1.0 on the step that reaches success and 0.0 otherwise; success terminates,
    ``max_steps`` truncates. ``info["success"]`` is
    present after every step and reset; ``info["seed"]`` after a reset is the seed that reproduces
    the episode.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - declared so by gymnasium
    # Frames are made on request, so a renderer costs nothing until the first one.
    render_mode = "rgb_array"

    # The wrapped package's own environment, for what the interface does not cover.
    simulator: Any

    def __init__(self, name: str, interface: Spec, max_steps: int, views: Views = BLIND) -> None:
        """``interface`` without cameras: those of ``views`` are added."""
        if max_steps < 1:
            raise UsageError(f"{name}: max_steps is {max_steps}; it must be at least 1")
        self.name = self.instruction = name
        interface = replace(
            interface,
            observation=(*interface.observation, *views.features()),
            settings={**interface.settings, **views.settings()},
        )
        self.interface = interface
        self.max_steps = max_steps
        self.observation_space: Any = spaces.Dict({f.name: _feature_space(f) for f in interface.observation})
        self.action_space = spaces.Box(
            np.asarray(interface.action.low, np.float32), np.asarray(interface.action.high, np.float32)
        )
        self._views = views
        self._renderer: Renderer | None = None
        self._elapsed = 0
        self._running = False

    # Hooks a simulator fills in.

    def _start_episode(self, seed: int) -> None:
        """Put the simulator in a start state that depends on ``seed`` alone."""
        raise NotImplementedError

    def _apply(self, action: Action) -> None:
        """Advance one control step with an action (A,) inside the bounds."""
        raise NotImplementedError

    def _observe(self) -> Observations:
        """The state features of the current state, by feature name; cameras are added to them."""
        raise NotImplementedError

    def _succeeded(self) -> bool:
        """Whether the current state solves the task."""
        raise NotImplementedError

    def _mujoco(self) -> tuple[Any, Any] | None:
        """MuJoCo's ``(MjModel, MjData)`` for rendering, or None where the simulator has none."""
        return None

    default_camera: str | None = None
    # Geometry groups to draw; None draws what MuJoCo draws by default.
    visible_groups: tuple[int, ...] | None = None

    # The gymnasium interface.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode.

        With a seed, the whole episode depends on the seed and the actions alone, bit for bit,
        whatever was run before. Without one, the environment's own generator goes on: it draws the
        seed of the episode, which ``info["seed"]`` reports.
        """
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(SEED_LIMIT)) if seed is None else int(seed)
        self._start_episode(episode_seed)
        self._begin()
        return self._observation(), {"success": self._succeeded(), "seed": episode_seed}

    def step(self, action: Action) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Run one control step.

        ``action`` has shape (A,); values outside the interface's bounds are clipped to them.
        Raises DataError for another shape or a non-finite value, UsageError when no episode runs.
        """
        if not self._running:
            raise UsageError(f"{self.name}: step was called without a running episode; call reset first")
        self._apply(checked_action(action, self.interface.action, self.name))
        self._elapsed += 1
        success = self._succeeded()
        truncated = not success and self._elapsed >= self.max_steps
        self._running = not (success or truncated)
        return self._observation(), float(success), success, truncated, {"success": success}

    def render(self) -> NDArray[np.uint8]:
        """A frame from the default camera at the default size (gymnasium's interface)."""
        return self.render_frame()

    def render_frame(
        self, width: int = 256, height: int = 256, camera: str | None = None
    ) -> NDArray[np.uint8]:
        """The current state as an image (height, width, 3), RGB, first row on top.

        Raises UsageError when the rendering backend does not work or the camera is unknown; the
        message says how to mend it.
        """
        scene = self._mujoco()
        if scene is None:
            raise UsageError(f"{self.name} cannot be rendered: its simulator exposes no MuJoCo scene")
        if self._renderer is None:
            from sim.rendering import Renderer

            self._renderer = Renderer(
                scene[0], shadows=self._views.shadows, visible_groups=self.visible_groups
            )
        return self._renderer.frame(scene[1], width, height, camera or self.default_camera)

    def close(self) -> None:
        """Free the renderer, if one was made."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def full_state(self) -> Observations:
        """All state features the simulator has, also those that the interface leaves out: for experts."""
        return self._observe()

    # State access, for importers.

    def get_state(self) -> NDArray[np.float64]:
        """The simulator's state, flat. Raises UsageError where the simulator gives no access."""
        raise UsageError(f"{self.name} gives no access to its simulator state; robosuite tasks do")

    def set_state(self, state: NDArray[Any]) -> Observations:
        """Put the simulator in a state of `get_state` and return its observation.

        A new episode with a full step budget begins there. Raises DataError for a wrong size or
        non-finite values, UsageError where the simulator gives no access.
        """
        raise UsageError(f"{self.name} gives no access to its simulator state; robosuite tasks do")

    def _observation(self) -> Observations:
        """Everything that the interface lists, cameras included."""
        size = self._views.image_size
        frames = {
            IMAGES + camera: np.ascontiguousarray(self.render_frame(size, size, camera).transpose(2, 0, 1))
            for camera in self._views.cameras
        }
        return {**self._observe(), **frames}

    def _begin(self) -> None:
        self._elapsed = 0
        self._running = True


def checked_action(action: NDArray[Any], spec: ActionSpec, name: str) -> Action:
    """The action as float32 inside the bounds. Raises DataError on a wrong shape or non-finite value."""
    values = np.asarray(action, np.float32)
    if values.shape != (spec.size,):
        raise DataError(f"{name}: an action has shape ({spec.size},), got {values.shape}")
    if not np.isfinite(values).all():
        bad = [spec.names[i] for i in np.flatnonzero(~np.isfinite(values))]
        raise DataError(f"{name}: the action is not finite in {', '.join(bad)}")
    return np.clip(values, np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32))


def _feature_space(feature: Feature) -> spaces.Box:
    if feature.is_image:
        return spaces.Box(0, 255, feature.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, feature.shape, np.float32)

"""The scripted experts: each task as a list of phases that a proportional controller follows.

An expert works from observations alone, except for what is fixed in a task and not observed (where
the bin or the peg stands), which it reads from the environment at reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.base import Action, SimEnv

Vector = NDArray[np.float64]

# The controller's ranges: what an action of 1 asks for.
_METRES_PER_ACTION = 0.05
_RADIANS_PER_ACTION = 0.5
_OPEN, _CLOSED = -1.0, 1.0
# The rotation of the hand that leaves the wrist furthest from its joint limits.
_REST_YAW = 0.2
_DOWN = np.array([0.0, 0.0, -1.0])


@dataclass(frozen=True)
class View:
    """What a phase decides from: hand and object now, and since when the phase lasts.

    ``hand`` and ``object`` are positions (3,) in metres, ``hand_frame`` (3, 3) has the hand's axes
    as columns, ``object_yaw`` is in radians; ``start`` is the hand's position when the phase began
    and ``steps`` how many actions it has lasted.
    """

    hand: Vector
    hand_frame: Vector
    object: Vector
    object_yaw: float
    start: Vector
    steps: int

    @property
    def hand_yaw(self) -> float:
        """Rotation of the hand about the vertical, 0 as at the start of an episode."""
        return float(np.arctan2(self.hand_frame[1, 0], self.hand_frame[0, 0]))


@dataclass(frozen=True)
class Phase:
    """Go to ``target`` with the gripper open or closed until ``done``.

    ``yaw`` is the hand's rotation to servo to; None leaves the orientation alone.
    """

    target: Callable[[View], Vector]
    gripper: float
    done: Callable[[View], bool]
    yaw: Callable[[View], float] | None = None


class PhasedExpert:
    """Follows the phases that a subclass lists; the last one lasts until the episode ends."""

    noise_shape = np.array([1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.0])
    """Injected noise per action dimension: x y z, a part of it for rotation, none for the gripper."""

    # Where the object's position and quaternion (xyzw) start in the environment state.
    object_offset = 0

    def __init__(self) -> None:
        self._phases: Sequence[Phase] = ()
        self._index = self._steps = 0
        self._start: Vector | None = None

    def phases(self, env: SimEnv) -> Sequence[Phase]:
        """The phases for an environment just reset."""
        raise NotImplementedError

    def reset(self, env: SimEnv) -> None:
        """Start over with the first phase."""
        self._phases = self.phases(env)
        self._index, self._steps, self._start = 0, 0, None

    def act(self, observation: Mapping[str, NDArray[Any]]) -> Action:
        """The servo command of the phase that the observation calls for, shape (7,)."""
        view = self._look(observation)
        while self._index < len(self._phases) - 1 and self._phases[self._index].done(view):
            self._index, self._steps, self._start = self._index + 1, 0, None
            view = self._look(observation)
        self._steps += 1
        return _servo(view, self._phases[self._index])

    def _look(self, observation: Mapping[str, NDArray[Any]]) -> View:
        robot = np.asarray(observation["observation.state"], np.float64)
        scene = np.asarray(observation["observation.environment_state"], np.float64)[self.object_offset :]
        hand = robot[:3]
        if self._start is None:
            self._start = hand
        object_frame = _rotation(scene[3:7])
        yaw = float(np.arctan2(object_frame[1, 0], object_frame[0, 0]))
        return View(hand, _rotation(robot[3:7]), scene[:3], yaw, self._start, self._steps)


class LiftExpert(PhasedExpert):
    """Above the cube, down, close, up."""

    def phases(self, env: SimEnv) -> Sequence[Phase]:
        """Four phases."""
        return (
            Phase(_over_object(0.06), _OPEN, lambda view: _reached(view, _over_object(0.06), 0.015, 0.03)),
            Phase(_over_object(-0.002), _OPEN, lambda view: _reached(view, _over_object(-0.002), 0.01, 0.01)),
            Phase(_stay, _CLOSED, _after(5)),
            Phase(_upwards(0.1), _CLOSED, _never),
        )


class CanExpert(PhasedExpert):
    """Above the can, down, close, up, over the bin, down, let go."""

    object_offset = 7

    def phases(self, env: SimEnv) -> Sequence[Phase]:
        """Seven phases; the bin's place is read from the environment."""
        simulator = env.simulator
        bin_place = np.asarray(simulator.target_bin_placements[simulator.object_id], np.float64)
        return (
            Phase(_over_object(0.1), _OPEN, lambda view: _reached(view, _over_object(0.1), 0.015, 0.04)),
            Phase(_over_object(0.0), _OPEN, lambda view: _reached(view, _over_object(0.0), 0.014, 0.014)),
            Phase(_stay, _CLOSED, _after(6)),
            Phase(_upwards(0.25), _CLOSED, lambda view: view.hand[2] > view.start[2] + 0.2),
            Phase(
                lambda view: np.array([*bin_place[:2], view.start[2] + 0.03]),
                _CLOSED,
                lambda view: bool(np.linalg.norm((view.hand - bin_place)[:2]) < 0.03),
            ),
            Phase(
                lambda view: np.array([*bin_place[:2], view.start[2] - 0.18]),
                _CLOSED,
                lambda view: view.hand[2] < view.start[2] - 0.13,
            ),
            Phase(_rise_after(4), _OPEN, _never),
        )


class SquareExpert(PhasedExpert):
    """Turn to the nut's handle, grasp it, carry the nut over the peg, square it up, lower, let go."""

    object_offset = 7
    # From the nut's centre to the middle of its handle, along the nut's x axis.
    handle = 0.054

    def phases(self, env: SimEnv) -> Sequence[Phase]:
        """Seven phases; the peg's place is read from the environment."""
        simulator = env.simulator
        peg = np.array(simulator.sim.data.body_xpos[simulator.peg1_body_id], np.float64)

        def nut_over_peg(height: Callable[[View], float]) -> Callable[[View], Vector]:
            return lambda view: np.array([*(peg + view.hand - view.object)[:2], height(view)])

        def square_to_peg(view: View) -> float:
            # With the handle on the far side of the peg the arm would have to reach too far.
            quarters = (np.pi / 2, np.pi, -np.pi / 2)
            turns = [_wrapped(view.hand_yaw - view.object_yaw + quarter) for quarter in quarters]
            return min(turns, key=lambda turn: abs(turn - _REST_YAW))

        def centred(view: View) -> bool:
            off = np.abs(view.object - peg)[:2].max()
            return bool(off < 0.006) and abs(square_to_peg(view) - view.hand_yaw) < 0.08

        carry = nut_over_peg(lambda view: peg[2] + 0.17)
        return (
            Phase(self._over_handle(0.08), _OPEN, self._turned_to_handle, _along_object),
            Phase(
                self._over_handle(-0.003),
                _OPEN,
                lambda view: _reached(view, self._over_handle(-0.003), 0.008, 0.008),
                _along_object,
            ),
            Phase(_stay, _CLOSED, _after(10), _along_object),
            Phase(_upwards(0.25), _CLOSED, lambda view: view.object[2] > peg[2] + 0.15, _along_object),
            Phase(carry, _CLOSED, centred, square_to_peg),
            Phase(
                nut_over_peg(lambda view: view.hand[2] - 0.03),
                _CLOSED,
                lambda view: view.object[2] < peg[2] + 0.03,
                square_to_peg,
            ),
            Phase(_rise_after(3), _OPEN, _never),
        )

    def _over_handle(self, height: float) -> Callable[[View], Vector]:
        def target(view: View) -> Vector:
            along = np.array([np.cos(view.object_yaw), np.sin(view.object_yaw), 0.0])
            return view.object + self.handle * along + np.array([0.0, 0.0, height])

        return target

    def _turned_to_handle(self, view: View) -> bool:
        turned = abs(_along_object(view) - view.hand_yaw) < 0.06
        return turned and _reached(view, self._over_handle(0.08), 0.01, 0.03)


def _over_object(height: float) -> Callable[[View], Vector]:
    return lambda view: view.object + np.array([0.0, 0.0, height])


def _upwards(height: float) -> Callable[[View], Vector]:
    return lambda view: np.array([*view.hand[:2], max(view.start[2], view.hand[2] - 0.05) + height])


def _rise_after(steps: int) -> Callable[[View], Vector]:
    """Hold still while the gripper opens, then leave upwards."""
    return lambda view: view.hand + np.array([0.0, 0.0, 0.05 if view.steps >= steps else 0.0])


def _stay(view: View) -> Vector:
    return view.hand


def _after(steps: int) -> Callable[[View], bool]:
    return lambda view: view.steps >= steps


def _never(_view: View) -> bool:
    return False


def _reached(view: View, target: Callable[[View], Vector], horizontal: float, vertical: float) -> bool:
    gap = np.abs(view.hand - target(view))
    return bool(np.hypot(gap[0], gap[1]) < horizontal and gap[2] < vertical)


def _along_object(view: View) -> float:
    """The hand's rotation that closes the fingers across the object's x axis; half turns are alike."""
    turns = (_wrapped(view.object_yaw), _wrapped(view.object_yaw + np.pi))
    return min(turns, key=lambda turn: abs(turn - _REST_YAW))


def _wrapped(yaw: float) -> float:
    """The same angle in [-pi, pi)."""
    return float((yaw + np.pi) % (2 * np.pi) - np.pi)


def _servo(view: View, phase: Phase) -> Action:
    """Proportional control of the hand's position and, if the phase wants it, of its orientation."""
    translation = (phase.target(view) - view.hand) / _METRES_PER_ACTION
    rotation = np.zeros(3)
    if phase.yaw is not None:
        # Keep the hand pointing down, and turn about the vertical.
        upright = np.cross(view.hand_frame[:, 2], _DOWN)
        rotation = upright + np.array([0.0, 0.0, phase.yaw(view) - view.hand_yaw])
        rotation = rotation / _RADIANS_PER_ACTION
    command = np.clip(np.concatenate([translation, rotation]), -1, 1)
    return np.append(command, phase.gripper).astype(np.float32)


def _rotation(quaternion: Vector) -> Vector:
    """Rotation matrix (3, 3) of a unit quaternion xyzw."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )

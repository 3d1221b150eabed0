from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flowrl.acting import Actor
from flowrl.errors import DataError
from flowrl.evaluation import evaluate
from flowrl.policies.mlp import FlowMLP
from flowrl.report.filmstrip import Filmstrip, choose_start, record, to_png
from flowrl.spec import Spec
from tests.helpers import identity_spec
from tests.report.builders import evaluation


class Line:
    """A point on a line; an episode has ``length`` steps and keeps the actions it was given."""

    name = "line"
    instruction = "go to the end"

    def __init__(self, interface: Spec, length: int, drift: float = 0.0) -> None:
        self.interface, self.max_steps, self._drift = interface, length, drift
        self.actions: list[NDArray[Any]] = []
        self.episodes, self.steps, self.x = 0, 0, np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.x = np.random.default_rng(seed).normal(size=2).astype(np.float32)
        self.episodes, self.steps, self.actions = self.episodes + 1, 0, []
        return {"observation.state": self.x.copy()}, {"success": False}

    def step(self, action: NDArray[Any], /) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.actions.append(action.copy())
        self.x = self.x + action[0]
        self.steps += 1
        end = self.steps >= self.max_steps + self._drift * self.episodes
        good = end and self.interface.action.size > 0
        return {"observation.state": self.x.copy()}, float(good), good, False, {"success": good}

    def close(self) -> None:
        raise AssertionError("the environment belongs to the caller")

    def draw(self) -> NDArray[np.uint8]:
        return np.full((4, 6, 3), self.steps, np.uint8)


@pytest.fixture
def interface() -> Spec:
    return identity_spec(2, 1, 3).interface()


@pytest.fixture
def actor() -> Actor:
    return Actor(FlowMLP(identity_spec(2, 1, 3), width=8, depth=1, flow_steps=2))


@pytest.mark.parametrize(
    ("length", "kept"),
    [(14, [0, 2, 4, 6, 8, 10, 12, 14]), (7, list(range(8))), (3, [0, 1, 2, 3])],
)
def test_frames_are_evenly_spaced_from_start_to_end(
    interface: Spec, actor: Actor, length: int, kept: list[int]
) -> None:
    env = Line(interface, length)
    strip = record(env.draw, env, actor, seed=5)
    assert strip.frames[:, 0, 0, 0].tolist() == kept
    assert strip.success
    assert strip.caption.startswith(f"Start 5: success after {length} steps. One ODE sample")


def test_the_filmed_episode_is_the_evaluated_one(interface: Spec, actor: Actor) -> None:
    env = Line(interface, 10)
    episode = evaluate(env, actor, [4, 5]).episodes[1]
    evaluated = np.stack(env.actions)
    strip = record(env.draw, env, actor, seed=5)
    assert np.array_equal(np.stack(env.actions), evaluated)
    assert strip.success == episode.success


def test_an_episode_that_does_not_repeat_is_refused(interface: Spec, actor: Actor) -> None:
    env = Line(interface, 5, drift=1.0)
    with pytest.raises(DataError, match="start 5 does not repeat"):
        record(env.draw, env, actor, seed=5)


@pytest.mark.parametrize(
    ("base", "tuned", "expected"),
    [
        ([True, False, False], [True, False, True], 200_002),
        ([True, False, True], [True, False, False], 200_001),
        ([True, True], [True, False], 200_000),
        ([], [], None),
    ],
)
def test_a_start_that_the_base_fails_and_the_tuned_policy_solves_is_filmed(
    base: list[bool], tuned: list[bool], expected: int | None
) -> None:
    assert choose_start(evaluation(base), evaluation(tuned)) == expected


def test_a_strip_is_one_png_with_its_frames_in_order() -> None:
    from io import BytesIO

    from matplotlib.image import imread

    frames = np.stack([np.full((4, 6, 3), value, np.uint8) for value in (0, 100, 200)])
    image = imread(BytesIO(to_png(Filmstrip("", frames, True, "").frames)), format="png")
    assert image.shape == (4, 3 * 6 + 2 * 4, 4)
    assert (image[0, [0, 10, 20], 0] * 255).round().tolist() == [0, 100, 200]
    assert image[0, 7, 3] == 0

"""Filmstrips: an evaluated episode run again, with a few frames kept.

An episode is a function of its start and the policy's noise, both fixed by the start's seed, so it
can be run again exactly: once to learn its length, once more to draw only the frames that are kept.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.errors import DataError
from flowrl.evaluation import Evaluation, evaluate
from flowrl.learner.run import Run
from flowrl.spec import Spec

Frame = NDArray[np.uint8]
_INDEX = "filmstrips.json"
_FOLDER = "filmstrips"
_GAP = 4


@dataclass(frozen=True)
class Filmstrip:
    """Frames (n, h, w, 3) of one episode, evenly spaced from its start to its end."""

    title: str
    frames: NDArray[np.uint8]
    success: bool
    caption: str


@dataclass(frozen=True)
class StoredStrip:
    """A filmstrip as a run directory keeps it: one PNG."""

    title: str
    success: bool
    caption: str
    frames: int
    png: bytes


class _Filmed:
    """An environment that draws itself after chosen numbers of steps (0 is the start)."""

    def __init__(self, env: Environment, render: Callable[[], Frame], at: frozenset[int]) -> None:
        self._env, self._render, self._at = env, render, at
        self._steps = 0
        self.frames: list[Frame] = []

    @property
    def name(self) -> str:
        return self._env.name

    @property
    def instruction(self) -> str:
        return self._env.instruction

    @property
    def interface(self) -> Spec:
        return self._env.interface

    @property
    def max_steps(self) -> int:
        return self._env.max_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        answer = self._env.reset(seed=seed, options=options)
        self._steps, self.frames = 0, []
        self._film()
        return answer

    def step(
        self, action: NDArray[Any], /
    ) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        answer = self._env.step(action)
        self._steps += 1
        self._film()
        return answer

    def close(self) -> None:
        """The environment belongs to the caller."""

    def _film(self) -> None:
        if self._steps in self._at:
            self.frames.append(np.array(self._render(), np.uint8))


def record(
    env_render: Callable[[], Frame],
    env: Environment,
    actor: Actor,
    seed: int,
    frames: int = 8,
    title: str = "",
) -> Filmstrip:
    """Film the episode that an evaluation of ``actor`` runs from the start ``seed``.

    ``env_render`` draws the environment's current state as (h, w, 3). Fewer frames come back only from
    an episode with fewer steps. Raises DataError when the episode does not repeat.
    """
    first = evaluate(env, actor, [seed]).episodes[0]
    at = frozenset(int(step) for step in np.linspace(0, first.length, frames).round())
    filmed = _Filmed(env, env_render, at)
    again = evaluate(filmed, actor, [seed]).episodes[0]
    if again != first:
        raise DataError(
            f"the episode from start {seed} does not repeat: {first} and then {again}; an environment's "
            "episode must depend on the seed and the actions alone (docs/environments.md)"
        )
    ending = "success" if first.success else "no success"
    caption = f"Start {seed}: {ending} after {first.length} steps. {actor.rule[0].upper()}{actor.rule[1:]}."
    return Filmstrip(title or actor.rule, np.stack(filmed.frames), first.success, caption)


def choose_start(base: Evaluation, tuned: Evaluation) -> int | None:
    """The start to film under both policies: one that failed and now succeeds, when there is one.

    Else one that the base fails, else the first; None without a common start.
    """
    before = {episode.seed: episode.success for episode in base.episodes}
    common = [episode for episode in tuned.episodes if episode.seed in before]
    ranked = sorted(common, key=lambda e: (before[e.seed] or not e.success, before[e.seed]))
    return ranked[0].seed if ranked else None


def store(run: Run, strips: Sequence[Filmstrip]) -> None:
    """Keep strips in the run directory, so that its report can be built again without a simulator."""
    folder = run.directory / _FOLDER
    folder.mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    for index, strip in enumerate(strips):
        (folder / f"{index}.png").write_bytes(to_png(strip.frames))
        entries.append(
            {
                "file": f"{_FOLDER}/{index}.png",
                "title": strip.title,
                "success": strip.success,
                "caption": strip.caption,
                "frames": len(strip.frames),
            }
        )
    run.write_json(_INDEX, {"strips": entries})


def stored(run: Run) -> list[StoredStrip]:
    """The strips that `store` kept; none when there are none."""
    strips: list[StoredStrip] = []
    for entry in run.read_json(_INDEX).get("strips", []):
        # The name alone: an index cannot point out of the run directory.
        path = run.directory / _FOLDER / str(entry["file"]).rsplit("/", 1)[-1]
        if path.is_file():
            strips.append(
                StoredStrip(
                    entry["title"], entry["success"], entry["caption"], entry["frames"], path.read_bytes()
                )
            )
    return strips


def to_png(frames: NDArray[np.uint8]) -> bytes:
    """Frames (n, h, w, 3) side by side with a transparent gap, as one PNG."""
    from matplotlib.image import imsave

    count, height, width = frames.shape[:3]
    strip = np.zeros((height, count * (width + _GAP) - _GAP, 4), np.uint8)
    for index, frame in enumerate(frames):
        left = index * (width + _GAP)
        strip[:, left : left + width, :3] = frame
        strip[:, left : left + width, 3] = 255
    buffer = io.BytesIO()
    imsave(buffer, strip, format="png", pil_kwargs={"optimize": True})
    return buffer.getvalue()

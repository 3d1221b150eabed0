"""A simulation process: collects episodes into a stream, or evaluates actors on request.

``python -m sim.worker collect SETTINGS.json`` pulls weights, runs episodes and commits them, as far as
the learner's control file allows. ``python -m sim.worker evaluate ENVIRONMENT_JSON`` reads questions
``{"actor": directory, "seeds": [...]}`` from standard input and prints one JSON line per episode.
Either stops when its standard input ends, so it never outlives the learner.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from flowrl import seeds as seed_plan
from flowrl.acting import Actor, load_actor
from flowrl.checkpoint import WeightsStore
from flowrl.environment import Environment
from flowrl.errors import FlowRLError
from flowrl.evaluation import evaluate
from flowrl.learner.control import read_control
from flowrl.replay.schema import Kind
from flowrl.replay.writer import StreamWriter
from flowrl.rollout import require_environment, rollout
from sim import registry

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class CollectorSettings:
    """What a collecting worker is told, as a JSON file."""

    environment: Mapping[str, Any]
    """``{"name": ..., "settings": {...}}``."""
    replay: str
    weights: str
    worker: int
    run_seed: int


class PublishedActor:
    """The newest published actor, looked up before every chunk."""

    def __init__(self, weights: WeightsStore, env: Environment) -> None:
        self._weights, self._env = weights, env
        self._actor: Actor | None = None
        self._version = -1

    def refresh(self) -> bool:
        """Take newer weights when there are any; False before the first version."""
        found = self._weights.read(load_actor, self._version)
        if found is not None:
            self._version, self._actor = found
            require_environment(self._actor, self._env)
        return self._actor is not None

    def current(self) -> tuple[Actor, int]:
        """The newest actor and its version."""
        self.refresh()
        assert self._actor is not None
        return self._actor, self._version


def collect(settings: CollectorSettings, orphaned: threading.Event) -> None:
    """Collect episodes until the learner says stop or is gone; an open episode is closed as interrupted."""
    env = make_environment(settings.environment)
    weights = WeightsStore(Path(settings.weights))
    actors = PublishedActor(weights, env)
    name = f"worker-{settings.worker}"

    def stop() -> bool:
        return orphaned.is_set() or read_control(weights.directory).state == "stop"

    with StreamWriter.open_or_create(settings.replay, name, env.interface, Kind.POLICY) as writer:
        while not stop():
            if writer.rows >= read_control(weights.directory).step_limit or not actors.refresh():
                writer.commit()
                time.sleep(_POLL_SECONDS)
                continue
            seed = seed_plan.collection(settings.run_seed, settings.worker, writer.episodes)
            rollout(env, actors, seed=seed, writer=writer, stop=stop)
    env.close()


def answer(environment: Mapping[str, Any], orphaned: threading.Event) -> None:
    """Answer evaluation questions until standard input ends."""
    env = make_environment(environment)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            actor = load_actor(Path(question["actor"]))
            evaluate(env, actor, question["seeds"], lambda episode: _print(vars(episode)))
        except FlowRLError as error:
            _print({"error": str(error)})
    orphaned.set()
    env.close()


def make_environment(environment: Mapping[str, Any]) -> Environment:
    """An environment from its name and settings."""
    return registry.make(environment["name"], **environment["settings"])


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    torch.set_num_threads(1)
    mode, text = arguments
    orphaned = threading.Event()
    if mode == "evaluate":
        answer(json.loads(text), orphaned)
        return
    settings = CollectorSettings(**json.loads(Path(text).read_text()))
    threading.Thread(target=_watch_parent, args=(orphaned,), daemon=True).start()
    collect(settings, orphaned)


def _watch_parent(orphaned: threading.Event) -> None:
    while sys.stdin.read(1):
        pass
    orphaned.set()


def _print(message: Mapping[str, Any]) -> None:
    print(json.dumps(dict(message)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""A run directory: everything a run needs and leaves, movable as a whole.

``config.yaml`` (resolved), ``spec.json``, ``replay/``, ``base/`` (the policy it started from),
``weights/`` (published to workers), ``checkpoints/``, ``policy/`` (the tuned policy), ``metrics.jsonl``,
``tensorboard/``, ``log.txt``, ``result.json``, ``report.html``; and ``actor/`` (policy, critic and rule) when
the evaluated rule is more than one plain sample of the tuned policy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flowrl.acting import Actor, load_actor
from flowrl.checkpoint import CheckpointStore, WeightsStore
from flowrl.config import load_recipe, show
from flowrl.errors import UsageError
from flowrl.learner.config import RunConfig
from flowrl.policies.io import load_policy

_log = logging.getLogger(__name__)


class NamedConfig(Protocol):
    """A configuration that says what its runs are called."""

    @property
    def name(self) -> str:
        """First part of the run directory's name."""
        ...


class Run:
    """A run directory by its parts. Make one with `create`, find one with `find`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replay = directory / "replay"
        self.base = directory / "base"
        self.policy = directory / "policy"
        self.actor = directory / "actor"
        self.logs = directory / "logs"
        self.metrics = directory / "metrics.jsonl"
        self.tensorboard = directory / "tensorboard"
        self.report = directory / "report.html"
        self.checkpoints = CheckpointStore(directory / "checkpoints")
        self.weights = WeightsStore(directory / "weights")

    @classmethod
    def create(cls, config: NamedConfig, root: Path) -> Run:
        """A fresh directory ``<root>/<name>-<n>`` with the smallest free n, holding the configuration."""
        root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            directory = root / f"{config.name}-{number}"
            try:
                directory.mkdir()
                break
            except FileExistsError:
                number += 1
        run = cls(directory)
        run.logs.mkdir()
        (directory / "config.yaml").write_text(show(config))
        return run

    @classmethod
    def find(cls, where: str | Path, root: Path) -> Run:
        """The run that a directory, a file inside it, or a name below ``root`` means.

        Raises UsageError naming what is there.
        """
        for candidate in (Path(where), root / str(where)):
            for directory in (candidate, *candidate.parents):
                if (directory / "config.yaml").is_file():
                    return cls(directory)
        known = sorted(path.parent.name for path in root.glob("*/config.yaml"))
        raise UsageError(f"no run at {str(where)!r}; runs under {root}: {', '.join(known) or 'none'}")

    def tuned_actor(self) -> Actor:
        """The tuned policy under the rule by which the run evaluated it. Raises CheckpointError."""
        return load_actor(self.actor) if self.actor.is_dir() else Actor(load_policy(self.policy))

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.directory.name

    def config(self, overrides: list[str] | None = None) -> RunConfig:
        """The resolved configuration the run was made with."""
        return load_recipe(RunConfig, str(self.directory / "config.yaml"), overrides or [])

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Write ``<name>`` in one step."""
        aside = self.directory / f".{name}"
        aside.write_text(json.dumps(data, indent=2) + "\n")
        aside.replace(self.directory / name)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read ``<name>``; an absent file is an empty object."""
        path = self.directory / name
        return json.loads(path.read_text()) if path.is_file() else {}

    @contextmanager
    def logged(self) -> Generator[None]:
        """Send the ``flowrl`` loggers to ``log.txt`` inside, a failure that leaves it included."""
        logger = logging.getLogger("flowrl")
        level = logger.level
        handler = logging.FileHandler(self.directory / "log.txt")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        except Exception:
            _log.exception("the run failed")
            raise
        finally:
            handler.close()
            logger.removeHandler(handler)
            logger.setLevel(level)

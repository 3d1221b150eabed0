"""Child processes of a run: workers that collect, and evaluators that answer questions.

Both are started from a command that the caller gives (``flowrl`` imports no simulator) and live as
long as the pipe to their standard input: when the learner dies, however it dies, they see its end
and stop. Evaluators talk in JSON lines over their pipes; collectors read only files.
"""

from __future__ import annotations

import json
import logging
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.acting import Actor, save_actor
from flowrl.errors import FlowRLError
from flowrl.evaluation import Evaluation
from flowrl.rollout import Episode

_log = logging.getLogger(__name__)
_RESTARTS = 5
_STOP_SECONDS = 20.0


class WorkerFailed(FlowRLError):
    """A child process keeps dying. The message names its log."""


@dataclass
class Child:
    """One child process, its log and, when its output is a pipe, the lines it has printed."""

    name: str
    command: Sequence[str]
    log: Path
    talks: bool = False
    process: subprocess.Popen[str] | None = None
    restarts: int = 0
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue[str])

    def start(self) -> None:
        """Start the process; its error output is appended to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.talks else log,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the learner, which stops us in order
            )
        if self.talks:
            threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one JSON line to the process."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def revive(self) -> None:
        """Restart a process that died. Raises WorkerFailed when it keeps dying."""
        if self.alive:
            return
        code = self.process.returncode if self.process else None
        if self.restarts >= _RESTARTS:
            raise WorkerFailed(
                f"{self.name} died {self.restarts + 1} times, last with exit code {code}; "
                f"its last words: {last_words(self.log)!r} (all of them in {self.log})"
            )
        self.restarts += 1
        _log.warning("%s died with exit code %s; restart %d of %d", self.name, code, self.restarts, _RESTARTS)
        self.start()

    def stop(self) -> None:
        """Close the pipe and wait; kill what does not stop."""
        if self.process is None:
            return
        if self.process.stdin is not None and not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("%s did not stop within %.0f s and is killed", self.name, _STOP_SECONDS)
            self.process.kill()
            self.process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.put(line)


class CollectorPool:
    """Workers that collect into streams of the run's replay until they are stopped."""

    def __init__(self, command: Sequence[str], settings: Sequence[Path], logs: Path) -> None:
        """``settings`` holds one settings file per worker, appended to ``command``."""
        self.children = [
            Child(f"worker {index}", [*command, "collect", str(path)], logs / f"worker-{index}.log")
            for index, path in enumerate(settings)
        ]

    def start(self) -> None:
        """Start every worker that was not started yet."""
        for child in self.children:
            if child.process is None:
                child.start()

    def check(self) -> None:
        """Restart workers that died. Raises WorkerFailed when one keeps dying."""
        for child in self.children:
            child.revive()

    @property
    def restarts(self) -> int:
        """How often a worker was restarted."""
        return sum(child.restarts for child in self.children)

    def stop(self) -> None:
        """Stop all workers; each closes its stream first."""
        for child in self.children:
            if child.process is not None and child.process.stdin is not None:
                child.process.stdin.close()
        for child in self.children:
            child.stop()


class EvaluatorPool:
    """Processes that evaluate an actor from given start seeds, one question at a time."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, Any], workers: int, logs: Path
    ) -> None:
        arguments = [*command, "evaluate", json.dumps(environment)]
        self.children = [
            Child(f"evaluator {index}", arguments, logs / f"evaluator-{index}.log", talks=True)
            for index in range(workers)
        ]
        self._directory = logs.parent / "evaluation"
        self._pending: _Question | None = None
        self._asked = 0

    def start(self) -> None:
        """Start the processes; they load their simulators while the caller goes on."""
        for child in self.children:
            child.start()

    @property
    def busy(self) -> bool:
        """Whether a question is being answered."""
        return self._pending is not None

    def submit(self, actor: Actor, start_seeds: Sequence[int]) -> None:
        """Ask for an evaluation; `poll` or `wait` gives the answer. One question at a time."""
        assert self._pending is None, "an evaluation is still running"
        self._asked += 1
        directory = self._directory / str(self._asked)
        save_actor(actor, directory)
        shares = [list(start_seeds[i :: len(self.children)]) for i in range(len(self.children))]
        self._pending = _Question(actor.rule, list(start_seeds), directory, shares)
        for child, share in zip(self.children, shares, strict=True):
            self._ask(child, share)

    def poll(self, on_episode: Callable[[Episode], None] = lambda episode: None) -> Evaluation | None:
        """The answer once it is complete, else None. Raises FlowRLError when an evaluator reports an error."""
        question = self._pending
        if question is None:
            return None
        for index, child in enumerate(self.children):
            for message in _messages(child):
                if "error" in message:
                    self._pending = None
                    raise FlowRLError(f"{child.name}: {message['error']}")
                episode = Episode(**message)
                question.shares[index].remove(episode.seed)
                question.episodes[episode.seed] = episode
                on_episode(episode)
            if question.shares[index] and not child.alive:
                child.revive()
                self._ask(child, question.shares[index])
        if len(question.episodes) < len(question.seeds):
            return None
        self._pending = None
        shutil.rmtree(question.directory, ignore_errors=True)
        return Evaluation(question.rule, tuple(question.episodes[seed] for seed in question.seeds))

    def wait(self, on_episode: Callable[[Episode], None] = lambda episode: None) -> Evaluation:
        """Wait for the answer."""
        while (answer := self.poll(on_episode)) is None:
            time.sleep(0.02)
        return answer

    def stop(self) -> None:
        """Stop all evaluators."""
        for child in self.children:
            child.stop()

    def _ask(self, child: Child, seeds: Sequence[int]) -> None:
        assert self._pending is not None
        try:
            child.send({"actor": str(self._pending.directory), "seeds": list(seeds)})
        except BrokenPipeError:
            child.revive()
            child.send({"actor": str(self._pending.directory), "seeds": list(seeds)})


@dataclass
class _Question:
    rule: str
    seeds: list[int]
    directory: Path
    shares: list[list[int]]
    episodes: dict[int, Episode] = field(default_factory=dict[int, Episode])


def _messages(child: Child) -> Iterator[dict[str, Any]]:
    while not child.lines.empty():
        yield json.loads(child.lines.get())


def last_words(log: Path, lines: int = 3) -> str:
    """The end of a log, for messages."""
    text = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return " | ".join(text[-lines:])

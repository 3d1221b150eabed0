"""Tiny specs and streams, and the writer processes that the crash tests kill."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec

SPEC = Spec(
    observation=(Feature("observation.state", (2,), names=("x", "y"), unit="m"),),
    action=ActionSpec(("push",), (-1.0,), (1.0,)),
    control_hz=20.0,
)
ONLY_BY_HAND = CommitRule(seconds=1e9, rows=10**9, open_seconds=1e9, compact_every=0)


def step(value: float, reward: float = 0.0, **columns: object) -> Step:
    """A step whose observation is (value, -value) and whose action is value / 100."""
    observation = np.array([value, -value], np.float32)
    return Step(observation, np.array([value / 100], np.float32), reward, **columns)  # type: ignore[arg-type]


def write_episode(
    writer: StreamWriter,
    values: Sequence[float],
    outcome: Outcome = Outcome.SUCCESS,
    *,
    final: float | None = None,
    sources: Sequence[Source] | None = None,
) -> None:
    """One episode over ``values``; a success gives reward 1 and terminates on its last step."""
    writer.begin_episode(seed=int(values[0]), task="push")
    success = outcome is Outcome.SUCCESS
    sources = sources or [Source.POLICY] * len(values)
    for index, (value, source) in enumerate(zip(values, sources, strict=True)):
        last = index == len(values) - 1
        takeover = 0 if source is Source.HUMAN else -1
        writer.append(
            step(
                value,
                float(success and last),
                terminated=success and last,
                truncated=last and outcome is Outcome.TIMEOUT,
                source=source,
                intervention_id=takeover,
                stamp_ns=index,
                policy_version=int(values[0]) if source is Source.POLICY else -1,
            )
        )
    by = OutcomeBy.NONE if outcome is Outcome.INTERRUPTED else OutcomeBy.ENVIRONMENT
    writer.close_episode(outcome, by, None if final is None else np.array([final, -final]))


def new_stream(replay: Path, name: str = "w0", kind: Kind = Kind.POLICY) -> StreamWriter:
    """A stream that commits only when it is told to."""
    return StreamWriter.create(replay, name, SPEC, kind, ONLY_BY_HAND)


class Child:
    """A function of `tests.replay.processes` in another process, and the lines it says."""

    def __init__(self, function: str, *arguments: object) -> None:
        # The fork server imports torch once. Not icechunk: it starts threads when it is imported, and a
        # process that has threads must not be forked.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "flowrl.policies.observation"])
        self.lines, theirs = context.Pipe()
        target = partial(run_child, function, theirs, [str(argument) for argument in arguments])
        self.process = context.Process(target=target, daemon=True)
        self.process.start()
        theirs.close()

    def line(self, deadline_s: float = 60.0) -> str:
        """The next line. Raises EOFError after the last one, AssertionError when none comes in time."""
        assert self.lines.poll(deadline_s), f"process {self.process.pid} said nothing in {deadline_s} s"
        return self.lines.recv_bytes().decode()

    def rest(self) -> list[str]:
        """All further lines until the process ends."""
        found = []
        while True:
            try:
                found.append(self.line())
            except (EOFError, ConnectionResetError):
                return found

    def kill(self) -> list[str]:
        """Kill -9, and the lines said before."""
        self.process.kill()
        found = self.rest()
        self.process.join()
        return found


def run_child(function: str, lines: Connection, arguments: list[str]) -> None:
    """Entry point of a child process."""
    module = importlib.import_module("tests.replay.processes")
    getattr(module, function)(lambda text: lines.send_bytes(text.encode()), *arguments)

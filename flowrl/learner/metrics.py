"""Metrics of a run: collected between log intervals, written as JSON lines and TensorBoard events.

``metrics.jsonl`` holds one object per line: ``step``, ``wall_s`` (seconds of training, a resumed run
goes on counting) and a number per metric name, null when it was not finite. A kill can tear only the
last line; it is dropped on the next open. Resuming from a checkpoint drops the lines after its step.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import NonFiniteLoss

_GUARDED = ("loss", "grad_norm", "gradient_norm")
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where metrics go; another tracker is one more class of this form."""

    def write(self, step: int, wall_s: float, values: Mapping[str, float]) -> None:
        """Write the metrics of one log interval."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonlSink:
    """Appends to ``metrics.jsonl``; each line is handed to the operating system as it is written."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        """Open for appending; with ``resume_step``, first drop the lines after that step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _repair(path, resume_step)
        self._file = path.open("ab", buffering=0)

    def write(self, step: int, wall_s: float, values: Mapping[str, float]) -> None:
        """Append one line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"step": step, "wall_s": round(wall_s, 3), **finite}, allow_nan=False)
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink:
    """TensorBoard event files, written without torch or TensorFlow."""

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        """Start an event file; with ``resume_step``, TensorBoard hides older points after that step."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory.mkdir(parents=True, exist_ok=True)
        # Generated at run time, so no type checker knows their members.
        self._event, self._summary = cast(Any, event_pb2).Event, cast(Any, summary_pb2).Summary
        self._writer = EventFileWriter(str(directory))
        if resume_step is not None:
            session = cast(Any, event_pb2).SessionLog
            self._add(resume_step + 1, session_log=session(status=session.START))

    def write(self, step: int, wall_s: float, values: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self._summary(value=scalars))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))


class Metrics:
    """Collects numbers between two log intervals: means, last values and counters."""

    def __init__(
        self, sinks: Sequence[Sink] = (), wall_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``wall_s`` is the training time before this process, for a resumed run."""
        self._sinks = list(sinks)
        self._clock = clock
        self._start = clock() - wall_s
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._counters: dict[str, float] = {}

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, former processes included."""
        return self._clock() - self._start

    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers whose mean over the interval is logged, such as an algorithm's update metrics.

        Raises:
            NonFiniteLoss: a metric whose name ends in ``loss``, ``grad_norm`` or ``gradient_norm`` is NaN or infinite.
        """
        require_finite(values)
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
            self._counts[name] = self._counts.get(name, 0) + 1

    def set(self, values: Mapping[str, float]) -> None:
        """Set numbers of which the last is logged. Raises NonFiniteLoss as `add` does."""
        require_finite(values)
        self._last.update({name: float(value) for name, value in values.items()})

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter that is never reset, such as environment steps."""
        self._counters[name] = self._counters.get(name, 0) + amount

    def log(self, step: int) -> dict[str, float]:
        """Write the interval to every sink, start the next one, and return what was written."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        values = {**means, **self._last, **self._counters}
        self._sums, self._counts, self._last = {}, {}, {}
        if values:
            for sink in self._sinks:
                sink.write(step, self.wall_s, values)
        return values

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers at once, outside the interval, such as the answer of an evaluation."""
        for sink in self._sinks:
            sink.write(step, self.wall_s, values)

    def close(self) -> None:
        """Close every sink; an interval that was not logged is dropped."""
        for sink in self._sinks:
            sink.close()

    def state_dict(self) -> dict[str, Any]:
        """The open interval, the counters and the clock, for a checkpoint."""
        return {
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "last": dict(self._last),
            "counters": dict(self._counters),
            "wall_s": self.wall_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._last, self._counters = dict(state["last"]), dict(state["counters"])
        self._start = self._clock() - float(state["wall_s"])


def require_finite(values: Mapping[str, float]) -> None:
    """Raise NonFiniteLoss naming every loss or gradient norm that is NaN or infinite."""
    bad = {
        name: value for name, value in values.items() if name.endswith(_GUARDED) and not math.isfinite(value)
    }
    if bad:
        found = ", ".join(f"{name} is {value}" for name, value in bad.items())
        raise NonFiniteLoss(
            f"training met a number that is not finite: {found}; expected finite losses and gradients. "
            "The last good checkpoint is kept: look at the data and the learning rates, then resume from it"
        )


def read_metrics(path: Path) -> dict[str, NDArray[np.float64]]:
    """The columns of ``metrics.jsonl`` by name, ``step`` and ``wall_s`` first; NaN where a line has none.

    An absent file has no columns; a line torn by a kill is left out.
    """
    rows = [json.loads(line) for line in _whole_lines(path)[0]]
    names = dict.fromkeys(["step", "wall_s"] + [name for row in rows for name in row]) if rows else {}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def _whole_lines(path: Path) -> tuple[list[bytes], bool]:
    """The lines that hold an object with a step, and whether anything else was found."""
    if not path.is_file():
        return [], False
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    whole = [line for line in lines if _step(line) is not None]
    return whole, bool(tail) or len(whole) < len(lines)


def _step(line: bytes) -> int | None:
    try:
        row = json.loads(line)
        return int(cast(dict[str, Any], row)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _repair(path: Path, resume_step: int | None) -> None:
    lines, torn = _whole_lines(path)
    kept = [line for line in lines if resume_step is None or cast(int, _step(line)) <= resume_step]
    if not torn and len(kept) == len(lines):
        return
    if torn:
        _log.warning("%s: a line torn by a kill is dropped", path)
    aside = path.with_name(f".{path.name}.repaired")
    with aside.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)

"""Time: the control rate that stamps show, their jitter, the age of observations, chunks against episodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowrl.preflight.findings import Finding
from flowrl.preflight.rows import Rows
from flowrl.replay.chunks import EndRule
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Outcome
from flowrl.spec import Chunking

RATE_TOLERANCE = 0.05
"""A median period further than this from the spec's is warned of."""
LATE, LATE_SHARE = 1.5, 0.05
"""A step is late after this many periods; more than this share of late ones is warned of."""


def check_timing(rows: Rows) -> Iterator[Finding]:
    """The intervals between steps against the control rate of the spec, over the rows looked at."""
    reader, hz = rows.reader, rows.reader.spec.control_hz
    stamps = reader.column("stamp_ns")
    here = rows.index[rows.going_on]
    intervals = (stamps[here + 1] - stamps[here]) * 1e-9
    if not len(intervals) or not intervals.any():
        yield Finding("ok", "timing", "control rate", f"{hz:g} Hz by the spec; the steps have no time stamps")
        return
    typical = float(np.median(intervals))
    if typical <= 0:
        message = "most steps have the time stamp of the step before; stamp each observation when it is taken"
        yield Finding("warning", "timing", "control rate", message)
        return
    measured = 1.0 / typical
    numbers = {"spec_hz": hz, "median_hz": measured, "p99_s": float(np.quantile(intervals, 0.99))}
    if abs(typical * hz - 1.0) > RATE_TOLERANCE:
        message = (
            f"the stamps show {measured:.3g} Hz, the spec says {hz:g} Hz; a policy would act at another "
            "speed than it learned: record at the stated rate, or state the recorded one"
        )
        yield Finding("warning", "timing", "control rate", message, numbers)
    else:
        yield Finding("ok", "timing", "control rate", f"{measured:.4g} Hz, as the spec says", numbers)
        yield from _jitter(intervals, hz)
    yield from _age(reader, rows, hz)


def _jitter(intervals: NDArray[np.floating], hz: float) -> Iterator[Finding]:
    late = float((intervals * hz > LATE).mean())
    if late > LATE_SHARE:
        message = (
            f"{late:.1%} of the steps come later than {LATE:g} periods after the one before (the longest after "
            f"{intervals.max():.3g} s); find what stalls the recording, or leave these episodes out"
        )
        yield Finding("warning", "timing", "jitter", message, {"late_share": late})


def _age(reader: ReplayReader, rows: Rows, hz: float) -> Iterator[Finding]:
    age = float(np.median(reader.column("age_ns")[rows.index])) * 1e-9
    if age * hz > 1.0:
        message = (
            f"the oldest part of an observation is typically {age:.3g} s old, more than a step ({1 / hz:.3g} s); "
            "a policy that is served fresher observations sees something else"
        )
        yield Finding("warning", "timing", "age", message, {"median_age_s": age})


def check_horizon(reader: ReplayReader, chunk: Chunking, end_rule: EndRule) -> Iterator[Finding]:
    """Chunks of H steps against the lengths of the episodes.

    A success is long enough under ``padded``, where it goes on with its last action.
    """
    table = reader.table[reader.table[:, EPISODE["outcome"]] != Outcome.DISCARDED]
    lengths, padded = table[:, EPISODE["length"]], end_rule == "padded"
    short = (lengths < chunk.length) & ~(padded & (table[:, EPISODE["outcome"]] == Outcome.SUCCESS))
    seconds = chunk.length / reader.spec.control_hz
    count, share = int(short.sum()), float(short.mean()) if len(short) else 0.0
    numbers = {"length": chunk.length, "executed": chunk.executed, "short": count, "short_share": share}
    if len(short) and short.all():
        message = (
            f"every episode is shorter than a chunk ({chunk.length} steps, {seconds:.2g} s; the longest has "
            f"{int(lengths.max())}), so none can be drawn; use a policy with shorter chunks, or longer episodes"
        )
        yield Finding("error", "timing", "chunk length", message, numbers)
    elif count:
        message = f"{count} episodes ({share:.0%}) are shorter than a chunk ({chunk.length}); strict cutting drops them"
        yield Finding("warning", "timing", "chunk length", message, numbers)
    else:
        message = (
            f"H = {chunk.length} ({seconds:.2g} s), {chunk.executed} executed; no episode is shorter "
            f"(median {int(np.median(lengths)) if len(lengths) else 0})"
        )
        yield Finding("ok", "timing", "chunk length", message, numbers)

"""What a replay holds: episodes and how they ended, who acted, copies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from flowrl.preflight.findings import Finding, listed
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Outcome, Source


def check_content(reader: ReplayReader) -> Iterator[Finding]:
    """Episodes, outcomes, sources and copies of a replay that holds at least one episode."""
    outcomes = reader.table[:, EPISODE["outcome"]]
    successes = int((outcomes == Outcome.SUCCESS).sum())
    numbers = {"episodes": reader.episodes, "steps": reader.rows, "successes": successes}
    text = f"{reader.episodes} episodes, {reader.rows:,} steps, {successes} successes"
    if successes:
        yield Finding("ok", "content", "replay", text, numbers)
    else:
        more = "a policy learns from success; add demonstrations, or say who succeeded when they are imported"
        yield Finding("warning", "content", "replay", f"{text}: {more}", numbers)
    usable = int((outcomes != Outcome.DISCARDED).sum())
    if not usable:
        yield Finding("error", "content", "discarded", "every episode is discarded; record or import others")
    yield _sources(reader)
    yield from _copies(reader)


def _sources(reader: ReplayReader) -> Finding:
    counts = np.bincount(reader.column("source"), minlength=len(Source))
    shares = {each.name.lower(): float(counts[each] / reader.rows) for each in Source if counts[each]}
    teaching = sum(kind.is_demonstration for kind in reader.streams.values())
    acted = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    streams = f"{teaching} of {len(reader.streams)} streams hold demonstrations"
    return Finding("ok", "content", "sources", f"{acted} of the steps; {streams}", shares)


def _copies(reader: ReplayReader) -> Iterator[Finding]:
    """Episodes with the same states and actions, bit for bit."""
    first: dict[bytes, int] = {}
    copies: list[str] = []
    for index, row in enumerate(reader.table):
        span = slice(int(row[EPISODE["first_row"]]), int(row[EPISODE["first_row"]] + row[EPISODE["length"]]))
        digest = hashlib.blake2b(reader.action[span].tobytes(), digest_size=16)
        digest.update(reader.state[span].tobytes())
        original = first.setdefault(digest.digest(), index)
        if original != index:
            copies.append(f"{_label(reader, index)} of {_label(reader, original)}")
    if copies:
        message = (
            f"{len(copies)} of {reader.episodes} episodes are copies, which count as often as they are there: "
            f"{listed(copies, 4)}; remove the stream that holds them twice"
        )
        yield Finding("warning", "content", "copies", message, {"copies": len(copies)})


def _label(reader: ReplayReader, index: int) -> str:
    episode = reader.episode(index)
    return f"{episode.stream}/{episode.number}"

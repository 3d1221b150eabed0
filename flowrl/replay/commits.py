"""When a writer commits by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommitRule:
    """When a writer commits by itself; `flowrl.replay.writer.StreamWriter.commit` and `close` always do."""

    seconds: float = 0.3
    """At the end of an episode, when the last commit is at least this old."""
    rows: int = 1024
    """As soon as this many rows wait, also inside an episode."""
    open_seconds: float = 5.0
    """Inside an episode, when the last commit is at least this old: what kill -9 can cost."""
    compact_every: int = 200
    """Expire and collect old snapshots after this many commits; 0 never does."""
    grace_s: float = 60.0
    """How long a superseded snapshot stays readable."""

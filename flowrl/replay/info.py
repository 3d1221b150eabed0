"""A summary of a replay for people: one line per stream."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import icechunk
from rich.table import Table

from flowrl.replay import storage
from flowrl.replay.rewards import ColumnId, read_column, stored_columns
from flowrl.replay.schema import EPISODE, INT, Kind, Outcome, Source
from flowrl.replay.storage import BRANCH, StreamArrays


@dataclass(frozen=True)
class StreamInfo:
    """What one stream holds.

    ``episodes``, ``steps`` and ``successes`` count closed episodes; ``open_steps`` are committed steps of
    an episode that is still being written. ``human_share`` is the fraction of steps a human acted.
    ``policy_versions`` is the lowest and highest version, None when no policy acted. ``bytes`` is the
    size on disk, with the old snapshots that are not collected yet. ``rewards`` holds the reward columns and
    how many episodes each labels.
    """

    name: str
    kind: Kind
    episodes: int
    steps: int
    open_steps: int
    successes: int
    human_share: float
    policy_versions: tuple[int, int] | None
    bytes: int
    snapshots: int
    rewards: dict[ColumnId, int]


def info(path: str | Path) -> list[StreamInfo]:
    """One `StreamInfo` per stream, by name. Raises ReplayError when the replay or a stream is unreadable."""
    return [_stream_info(Path(path) / name) for name in storage.stream_names(Path(path))]


def render_info(streams: list[StreamInfo]) -> Table:
    """The summary as a table for a terminal, with a line of totals."""
    table = Table(title="replay", show_footer=True)
    episodes, steps = sum(s.episodes for s in streams), sum(s.steps for s in streams)
    successes, size = sum(s.successes for s in streams), sum(s.bytes for s in streams)
    human = sum(s.human_share * s.steps for s in streams) / steps if steps else 0.0
    table.add_column("stream", footer="all")
    table.add_column("kind")
    for title, total in (
        ("episodes", f"{episodes:,}"),
        ("steps", f"{steps:,}"),
        ("successes", _share(successes, episodes)),
        ("human", f"{human:.1%}"),
        ("versions", ""),
        ("MB", _size(size)),
        ("snapshots", str(sum(s.snapshots for s in streams))),
    ):
        table.add_column(title, footer=total, justify="right")
    rewarded = any(s.rewards for s in streams)
    if rewarded:
        table.add_column("reward columns")
    for s in streams:
        steps_text = f"{s.steps:,}" + (f" (+{s.open_steps} open)" if s.open_steps else "")
        versions = "-" if s.policy_versions is None else f"{s.policy_versions[0]}..{s.policy_versions[1]}"
        table.add_row(
            s.name,
            str(s.kind),
            f"{s.episodes:,}",
            steps_text,
            _share(s.successes, s.episodes),
            f"{s.human_share:.1%}",
            versions,
            _size(s.bytes),
            str(s.snapshots),
            *([_rewards(s)] if rewarded else []),
        )
    return table


def _stream_info(path: Path) -> StreamInfo:
    repository = storage.open_repository(path)
    session = repository.readonly_session(BRANCH)
    header = storage.read_header(path, session)
    arrays = StreamArrays()
    table = storage.read_episode_table(arrays, session, 0)
    is_open = table[:, EPISODE["outcome"]] == Outcome.OPEN
    closed = table[~is_open]
    steps = int(closed[:, EPISODE["length"]].sum())
    source = arrays.read(session, "steps/int", 0, steps)[:, INT["source"]]
    acted = closed[closed[:, EPISODE["version_max"]] >= 0]
    versions = None
    if len(acted):
        versions = int(acted[:, EPISODE["version_min"]].min()), int(acted[:, EPISODE["version_max"]].max())
    return StreamInfo(
        name=path.name,
        kind=header.kind,
        episodes=len(closed),
        steps=steps,
        open_steps=int(table[is_open, EPISODE["length"]].sum()),
        successes=int((closed[:, EPISODE["outcome"]] == Outcome.SUCCESS).sum()),
        human_share=float((source == Source.HUMAN).mean()) if steps else 0.0,
        policy_versions=versions,
        bytes=disk_bytes(path),
        snapshots=sum(1 for _ in repository.ancestry(branch=BRANCH)),
        rewards=_columns(session),
    )


def _columns(session: icechunk.Session) -> dict[ColumnId, int]:
    found = {column: read_column(session, column) for column in stored_columns(session)}
    return {column: stored.episodes for column, stored in found.items() if stored is not None}


def disk_bytes(path: Path) -> int:
    """Size of all files under a directory; files that a live writer deletes meanwhile count as zero."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.0%})" if whole else "0"


def _rewards(stream: StreamInfo) -> str:
    """The columns of a stream, with the number of episodes where some have no label."""
    return ", ".join(
        str(column) if episodes == stream.episodes else f"{column} ({episodes:,} of {stream.episodes:,})"
        for column, episodes in stream.rewards.items()
    )


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f}"

"""Reward columns: what somebody says afterwards about the rows of a stream (docs/rewards.md).

A column ``<name>@<version>`` lies beside the recorded reward, in ``rewards/<name>@<version>`` of the stream: a
reward for each row, and for each episode how many of its steps count and how it ended. It covers the closed
episodes from the first one on, and its attributes say who labelled them. The recorded rows are never changed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, cast

import icechunk
import numpy as np
import zarr

from flowrl.errors import ConfigError, ReplayError
from flowrl.replay import storage
from flowrl.replay.schema import EPISODE, Floats, Ints

RECORDED = "recorded"
"""The name of the reward that was recorded with the rows."""
GROUP = "rewards"
FORMAT = 1
Labeller = Literal["classifier", "human"]

LABEL_COLUMNS = ("length", "terminated", "outcome", "outcome_by")
"""Per episode: the steps that count, whether the last of them terminated, `flowrl.replay.schema.Outcome`, and
`OutcomeBy`."""
LABEL = {name: index for index, name in enumerate(LABEL_COLUMNS)}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_COLUMN = re.compile(rf"({_NAME.pattern})@([1-9][0-9]*)")


@dataclass(frozen=True, order=True)
class ColumnId:
    """A reward column by name and version, as text ``<name>@<version>``."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``<name>@<version>``. Raises ConfigError when it is something else."""
        found = _COLUMN.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"reward {text!r}: expected {RECORDED!r} or <name>@<version>, for example success@1; "
                "`flowrl reward list` shows what a replay holds"
            )
        return cls(found[1], int(found[2]))

    @property
    def path(self) -> str:
        """Where it lies in a stream."""
        return f"{GROUP}/{self}"


def check_column_name(name: str) -> str:
    """The name itself. Raises ConfigError when a column cannot be called so."""
    if not _NAME.fullmatch(name) or name == RECORDED:
        raise ConfigError(
            f"reward column {name!r}: a name begins with a letter and goes on with letters, digits, '_' and "
            f"'-', without a version, and is not {RECORDED!r}; versions are numbered by themselves"
        )
    return name


@dataclass(frozen=True)
class Labels:
    """What a column says of E consecutive episodes with R recorded rows.

    ``reward`` (R,) is 0 on steps that do not count any more; ``episodes`` (E, 4) has the columns of
    `LABEL_COLUMNS`.
    """

    reward: Floats
    episodes: Ints

    def column(self, name: str) -> Ints:
        """One column of ``episodes`` (E,)."""
        return self.episodes[:, LABEL[name]]


def joined(parts: Iterable[Labels]) -> Labels:
    """Labels of consecutive episodes as one; of none, an empty one."""
    found = list(parts)
    return Labels(
        np.concatenate([np.empty(0, np.float32), *(part.reward for part in found)]),
        np.concatenate([np.empty((0, len(LABEL)), np.int64), *(part.episodes for part in found)]),
    )


@dataclass(frozen=True)
class Provenance:
    """Who made a column, and when: kept with it, in every stream.

    ``rule`` decides its values together with the rows: for a classifier its ``digest`` and ``threshold``; for
    a human ``base``, the column that was copied, and ``rest``, which labels what nobody judged. ``judged`` maps
    episode numbers of this stream to what a human said. ``parts`` has an entry for each time that episodes
    were added: their range, the range of their rows, time, snapshot read, version of flowrl.
    """

    labeller: Labeller
    rule: Mapping[str, Any]
    judged: Mapping[str, bool] = field(default_factory=dict[str, bool])
    parts: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "format": FORMAT,
            "labeller": self.labeller,
            "rule": dict(self.rule),
            "judged": dict(self.judged),
            "parts": [dict(part) for part in self.parts],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave. Raises ReplayError when something is missing or newer."""
        if data.get("format") != FORMAT:
            raise ReplayError(f"its provenance has format {data.get('format')}, this flowrl reads {FORMAT}")
        missing = {"labeller", "rule", "judged", "parts"} - set(data)
        if missing:
            raise ReplayError(f"its provenance lacks {', '.join(sorted(missing))}")
        return cls(data["labeller"], data["rule"], data["judged"], tuple(data["parts"]))


@dataclass(frozen=True)
class StoredColumn:
    """A column of one stream: how many episodes and rows it covers, and its provenance."""

    column: ColumnId
    episodes: int
    rows: int
    provenance: Provenance


def stored_columns(session: icechunk.Session) -> list[ColumnId]:
    """The columns of a stream, by name and version."""
    root = zarr.open_group(session.store, mode="r")
    if GROUP not in root:
        return []
    group = cast("zarr.Group", root[GROUP])
    return sorted(ColumnId.parse(name) for name in group.group_keys())


def read_column(session: icechunk.Session, column: ColumnId) -> StoredColumn | None:
    """What a stream has of a column; None when it has nothing. Raises ReplayError when it is damaged."""
    if column not in stored_columns(session):
        return None
    group = zarr.open_group(session.store, path=column.path, mode="r")
    arrays = [cast("zarr.Array[Any]", group[name]) for name in ("episodes", "reward")]
    return StoredColumn(
        column, arrays[0].shape[0], arrays[1].shape[0], Provenance.from_json(group.attrs.asdict())
    )


def read_labels(session: icechunk.Session, column: ColumnId, episodes: slice, rows: slice) -> Labels:
    """What a stream's column says of a range of episodes, whose rows are ``rows``."""
    group = zarr.open_group(session.store, path=column.path, mode="r")
    reward, ends = (cast("zarr.Array[Any]", group[name]) for name in ("reward", "episodes"))
    return Labels(np.asarray(reward[rows]), np.asarray(ends[episodes]))


def columns_of(replay: Path) -> dict[ColumnId, dict[str, StoredColumn]]:
    """Every column of a replay, and what each stream has of it. Raises ReplayError as the streams do."""
    found: dict[ColumnId, dict[str, StoredColumn]] = {}
    for name in storage.stream_names(replay):
        session = storage.open_repository(replay / name).readonly_session(storage.BRANCH)
        for column in stored_columns(session):
            stored = read_column(session, column)
            assert stored is not None
            found.setdefault(column, {})[name] = stored
    return dict(sorted(found.items()))


def next_version(replay: Path, name: str) -> ColumnId:
    """The first version of a name that no stream of the replay has, nor any before it."""
    taken = [column.version for column in columns_of(replay) if column.name == name]
    return ColumnId(name, max(taken, default=0) + 1)


def recorded_labels(table: Ints, reward: Floats, terminated: Ints) -> Labels:
    """The recorded facts as labels: rows of the episode table, their rewards (R,) and end flags (R,)."""
    length = table[:, EPISODE["length"]]
    last = np.cumsum(length) - 1
    parts = [length, terminated[last], table[:, EPISODE["outcome"]], table[:, EPISODE["outcome_by"]]]
    return Labels(reward, np.stack(parts, axis=1))


def unknown(replay: Path, column: ColumnId) -> ConfigError:
    """The error for a column that no stream has."""
    known = [str(each) for each in columns_of(replay)]
    near = difflib.get_close_matches(str(column), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(
        f"replay {str(replay)!r} has no reward column {str(column)!r}; it has "
        f"{', '.join([RECORDED, *known])}{hint}"
    )


def incomplete(replay: Path, stream: str, column: ColumnId, covered: int, episodes: int) -> ReplayError:
    """The error for closed episodes without a label, naming the command that writes them."""
    return ReplayError(
        f"stream {stream!r} of replay {str(replay)!r} has {episodes} closed episodes, and reward column "
        f"{column} labels the first {covered}; label the others with: flowrl reward complete {column} "
        f"--replay {replay}"
    )

"""Read an SQLite bag (.db3), the default storage until ROS 2 Iron."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from flowrl.errors import DataError
from robot_bridge.bags.definitions import definition
from robot_bridge.bags.records import Channel, Hole, Item, Recorded

MAX_MESSAGE = 1 << 28
"""Bytes of a message beyond which it is taken for damage, and read as empty."""

_MESSAGES = (
    "SELECT topic_id, timestamp, CASE WHEN length(data) <= ? THEN data ELSE x'' END FROM messages ORDER BY id"
)
_UNDECLARED = Channel("(a topic whose declaration is lost)", "unknown", "", "", b"")


class SqliteFile:
    """One file; ``position`` is how many of its bytes were read, for progress, as far as that can be told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self.position = 0

    def items(self) -> Iterator[Item]:
        """Messages in the order in which they were recorded, and what is missing after them.

        Raises DataError when the file is no SQLite bag.
        """
        address = f"{self._path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            try:
                channels = self._channels(database)
            except sqlite3.Error as error:
                raise DataError(f"{self._path.name} is no SQLite bag, or damaged: {error}") from error
            rows = database.cursor()
            count = 0
            try:
                # By number, not by time: only so a clock that jumped is seen.
                rows.execute(_MESSAGES, (MAX_MESSAGE,))
                for topic, time_ns, data in rows:
                    count += 1
                    self.position = min(self._size, self.position + len(data))
                    yield Recorded(channels.get(topic, _UNDECLARED), int(time_ns), bytes(data))
            except sqlite3.Error as error:
                reason = f"it cannot be read after {count:,} messages ({error})"
                yield Hole(self._path.name, reason, self._size - self.position)
        self.position = self._size

    @staticmethod
    def _channels(database: sqlite3.Connection) -> dict[int, Channel]:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        texts: dict[str, tuple[str, str]] = {}
        if "message_definitions" in tables:
            query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            texts = {kind: (encoding, text) for kind, encoding, text in database.execute(query)}
        found: dict[int, Channel] = {}
        for number, topic, kind, form in database.execute(
            "SELECT id, name, type, serialization_format FROM topics"
        ):
            encoding, text = texts.get(kind, ("", ""))
            if not text:
                encoding, text = "ros2msg", definition(kind) or ""
            found[number] = Channel(topic, kind, form, encoding, text.encode())
        return found

"""What a bag's files give, in the order in which they hold it, whatever their storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Channel:
    """A topic as a file declares it.

    ``definition`` is the text of the message type, in ``definition_encoding``; empty where the file has none.
    """

    topic: str
    kind: str
    message_encoding: str
    definition_encoding: str
    definition: bytes


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message as it was recorded: its bytes and when it arrived, nanoseconds of the recorder's clock."""

    channel: Channel
    time_ns: int
    data: bytes


@dataclass(frozen=True)
class Hole:
    """Something of a file cannot be read, and messages are missing from here on.

    ``lost_bytes`` is how much of the file that is. The next item, if there is one, comes after it.
    """

    file: str
    reason: str
    lost_bytes: int


Item = Recorded | Hole

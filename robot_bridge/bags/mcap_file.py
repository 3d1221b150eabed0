"""Read an MCAP file from front to back, and as much of a damaged one as there is.

An MCAP file has its index at its end, so one whose recorder was killed has none. It is therefore never asked
for: records are walked in order. A record that is damaged is skipped, as is a chunk that fails its checksum; a
file that stops in the middle of a record ends there. Each is a `Hole`, which says how much is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

from flowrl.errors import DataError
from flowrl.replay.extras import data_module
from robot_bridge.bags.records import Channel, Hole, Item, Recorded

MAX_RECORD = 1 << 28
"""Bytes of a record, also of what it unpacks to, beyond which it is taken for damage: memory stays bounded."""

_MAGIC = b"\x89MCAP0\r\n"
_HEAD = struct.Struct("<BQ")
_DATA_END = 15
_UNDECLARED = Channel("(a topic whose declaration is lost)", "unknown", "", "", b"")


class _Damage(Exception):
    """What was read is no record."""


class McapFile:
    """One file; ``position`` is how many of its bytes were read, for progress."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._schemas: dict[int, Any] = {}
        self._channels: dict[int, Channel] = {}
        self.position = 0

    def items(self) -> Iterator[Item]:
        """Messages in the order of the file, and what is missing between and after them.

        Raises DataError when the file is no MCAP file, MissingExtra when mcap is not installed.
        """
        with self._path.open("rb") as file:
            start = file.read(len(_MAGIC))
            if start != _MAGIC[: len(start)]:
                raise DataError(f"{self._path.name} is no MCAP file: it begins with {start!r}")
            opcode = -1
            while opcode != _DATA_END:
                self.position = file.tell()
                try:
                    opcode, content = _record(file)
                except _Damage as damage:
                    reason = f"it stops at byte {self.position:,} of {self._size:,} ({damage})"
                    yield Hole(self._path.name, reason, self._size - self.position)
                    return
                try:
                    yield from list(self._unpacked(opcode, content))
                except _Damage as damage:
                    yield Hole(self._path.name, f"a damaged record ({damage})", len(content))
                    self._declare_from_index()

    def _declare_from_index(self) -> None:
        """Topics may be declared in the chunk that is lost; an intact file repeats them at its end."""
        with self._path.open("rb") as file:
            try:
                summary = data_module("mcap.reader").make_reader(file).get_summary()
            except _errors():
                return
        if summary is not None:
            for record in (*summary.schemas.values(), *summary.channels.values()):
                list(self._message(record))

    def _unpacked(self, opcode: int, content: bytes) -> Iterator[Recorded]:
        """The messages of a top-level record. Raises _Damage when it holds something else than it should."""
        records, reader = data_module("mcap.records"), data_module("mcap.stream_reader")
        source = data_module("mcap.data_stream").ReadDataStream(cast(IO[bytes], _Exact(BytesIO(content))))
        try:
            match opcode:
                case 3:
                    found = [records.Schema.read(source)]
                case 4:
                    found = [records.Channel.read(source)]
                case 5:
                    found = [records.Message.read(source, len(content))]
                case 6:
                    found = reader.breakup_chunk(_inflated(records.Chunk.read(source)), validate_crc=True)
                case _:
                    return
        except _errors() as error:
            raise _Damage(_words(error)) from error
        for record in found:
            yield from self._message(record)

    def _message(self, record: Any) -> Iterator[Recorded]:
        records = data_module("mcap.records")
        match record:
            case records.Schema():
                self._schemas[record.id] = record
            case records.Channel():
                schema = self._schemas.get(record.schema_id)
                kind, encoding, text = (
                    ("unknown", "", b"") if schema is None else (schema.name, schema.encoding, schema.data)
                )
                known = Channel(record.topic, kind, record.message_encoding, encoding, text)
                self._channels[record.id] = known
            case records.Message():
                channel = self._channels.get(record.channel_id, _UNDECLARED)
                yield Recorded(channel, record.log_time, record.data)
            case _:
                pass


class _Exact:
    """A file whose reads are complete or fail: mcap takes a short record for a whole one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise EOFError
        return data


def _record(file: IO[bytes]) -> tuple[int, bytes]:
    """The next record: its kind and content. Raises _Damage when the file does not hold it whole."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _Damage("the end of the file")
    opcode, length = _HEAD.unpack(head)
    if length > MAX_RECORD:
        raise _Damage(f"a record of {length:,} bytes")
    content = file.read(length)
    if not opcode or len(content) < length:
        raise _Damage("the end of the file" if opcode else "no record")
    return opcode, content


def _inflated(chunk: Any) -> Any:
    """A chunk without compression. Nothing beyond the size that it states is unpacked."""
    size = chunk.uncompressed_size
    if size > MAX_RECORD:
        raise _Damage(f"it states {size:,} bytes")
    match chunk.compression:
        case "":
            return chunk
        case "zstd":
            unpacking = data_module("zstandard").ZstdDecompressor().stream_reader(chunk.data)
            data = unpacking.read(size + 1)
        case "lz4":
            unpacking = data_module("lz4.frame").LZ4FrameDecompressor()
            data = unpacking.decompress(chunk.data, max_length=size + 1)
        case other:
            raise _Damage(f"it is compressed by {other!r}; read are zstd and lz4")
    if len(data) != size:
        raise _Damage(f"{len(data):,} bytes instead of {size:,}")
    return replace(chunk, compression="", data=data)


def _errors() -> tuple[type[BaseException], ...]:
    """What mcap and the decompressors raise on damaged bytes."""
    mcap = data_module("mcap.exceptions").McapError
    zstd = data_module("zstandard").ZstdError
    return (mcap, zstd, struct.error, ValueError, RuntimeError, OverflowError, EOFError)


def _words(error: BaseException) -> str:
    return str(error) or "the end of the file"

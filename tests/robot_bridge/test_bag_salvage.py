"""Damaged bags: whatever was cut or flipped, what is read is what was there, and the loss is stated."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType
from mcap_ros2.writer import Writer

from flowrl.errors import DataError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Outcome
from robot_bridge.assembler import Row
from robot_bridge.bags.bag import open_bag
from robot_bridge.bags.definitions import definition
from robot_bridge.bags.importer import import_bag
from robot_bridge.bags.mcap_file import MAX_RECORD, McapFile
from robot_bridge.bags.order import WINDOW
from robot_bridge.bags.records import Hole, Recorded
from robot_bridge.bags.resample import Driven
from robot_bridge.bags.rows import BagRows
from robot_bridge.contract import Contract
from tests.robot_bridge.scripted import START, arm, contract, write_mcap

ZSTD = b"\x28\xb5\x2f\xfd"
"""How a frame of zstd begins."""
COMPRESSIONS = [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD]


def read(path: Path) -> tuple[list[tuple[str, int, bytes]], list[Hole]]:
    """The messages of a file, and its holes."""
    items = list(McapFile(path).items())
    messages = [(m.channel.topic, m.time_ns, m.data) for m in items if isinstance(m, Recorded)]
    return messages, [each for each in items if isinstance(each, Hole)]


def rows(path: Path, by: Contract) -> list[Row]:
    return [each.row for each in BagRows(open_bag(path), by).events() if isinstance(each, Driven)]


def require_equal(left: Row, right: Row) -> None:
    assert left.time_ns == right.time_ns
    assert left.observed.ages_ns == right.observed.ages_ns
    assert left.commanded.ages_ns == right.commanded.ages_ns
    np.testing.assert_array_equal(left.commanded.action, right.commanded.action)
    assert left.observed.observation.keys() == right.observed.observation.keys()
    for name, value in left.observed.observation.items():
        np.testing.assert_array_equal(value, right.observed.observation[name])


def cut(path: Path, length: int) -> Path:
    shorter = path.with_name("cut.mcap")
    shorter.write_bytes(path.read_bytes()[:length])
    return shorter


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("chunk", [1, 700])
def test_a_file_cut_anywhere_gives_a_prefix_of_its_messages(
    tmp_path: Path, compression: CompressionType, chunk: int
) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 120), chunk, compression)
    whole, holes = read(path)
    assert (len(whole), holes) == (20, [])
    size, found = path.stat().st_size, list[int]()
    for length in [*range(8, size, 29), size - 1]:
        messages, holes = read(cut(path, length))
        assert messages == whole[: len(messages)]
        # The messages are there before the index, whose loss does no harm.
        assert not holes or (len(holes) == 1 and 0 <= holes[0].lost_bytes <= length)
        assert holes or messages == whole
        found.append(len(messages))
    assert found == sorted(found)
    assert {found[0], found[-1]} == {0, 20}


def test_a_file_without_chunks_is_cut_between_messages(tmp_path: Path) -> None:
    """A message whose bytes are cut is no message, though mcap would give it out."""
    path = tmp_path / "flat.mcap"
    plain = write_mcap(tmp_path / "chunked.mcap", arm(0, 120))
    with path.open("wb") as file, Writer(file) as writer:
        writer._writer._chunk_builder = None  # type: ignore[attr-defined]  # rosbag2 can write so, this class cannot
        schemas = {
            kind: writer.register_msgdef(kind, definition(kind) or "")
            for kind in {each.kind for each in arm(0, 120)}
        }
        for each in arm(0, 120):
            writer.write_message(each.topic, schemas[each.kind], each.message, log_time=each.time_ns)
    whole, holes = read(path)
    assert (whole, holes) == (read(plain)[0], [])
    for length in range(8, path.stat().st_size, 41):
        messages, _ = read(cut(path, length))
        assert messages == whole[: len(messages)]


def test_rows_of_a_cut_bag_are_a_prefix_of_the_rows(tmp_path: Path) -> None:
    by = contract(tmp_path)
    sent = arm(0, 1500)
    # Out of order by up to 300 ms, which a cut must not turn into other rows.
    generator = np.random.default_rng(1)
    order = np.argsort([each.time_ns + generator.uniform(0, 300e6) for each in sent])
    path = write_mcap(tmp_path / "a.mcap", [sent[i] for i in order], chunk=1500)
    whole, counts = rows(path, by), list[int]()
    assert len(whole) == 30
    for length in np.linspace(8, path.stat().st_size - 1, 40).astype(int).tolist():
        part = rows(cut(path, length), by)
        for left, right in zip(part, whole, strict=False):
            require_equal(left, right)
        counts.append(len(part))
    assert counts[-1] == 30, "only the index is lost"
    assert counts == sorted(counts)
    assert len(set(counts)) > 10


def test_what_a_cut_costs_is_reported(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "whole.mcap", arm(0, 3000), chunk=2000)
    import_bag(path, tmp_path / "whole", "bag", contract(tmp_path))
    whole = ReplayReader(tmp_path / "whole")
    part = cut(path, path.stat().st_size * 6 // 10)
    messages, (hole,) = read(part)
    report = import_bag(part, tmp_path / "part", "bag", contract(tmp_path))
    reader = ReplayReader(tmp_path / "part")
    count = len(reader.state)
    assert count < 60
    np.testing.assert_array_equal(reader.state, whole.state[:count])
    np.testing.assert_array_equal(reader.action, whole.action[:count])
    newest = max(time for _, time, _ in messages)
    assert count == -(-(newest - WINDOW - START) // 50_000_000), "every row before the last half second"
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.INTERRUPTED]
    unused = sum(time >= newest - WINDOW for _, time, _ in messages)
    assert {each.what: each.count for each in report.dropped} == {
        "bytes of cut.mcap": hole.lost_bytes,
        "messages": unused,
    }
    assert any(
        "stops at byte" in warning and "the rest was imported" in warning for warning in report.warnings
    )


def test_a_bag_cut_before_its_first_row_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 1000))
    for length in (0, 5, 8, 200):
        with pytest.raises(DataError, match=r"cut\.mcap has nothing on .* that can be read"):
            import_bag(cut(path, length), tmp_path / "r", "bag", contract(tmp_path))
    assert not (tmp_path / "r").exists()


def test_a_flipped_bit_costs_its_chunk_alone(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 2000), chunk=2000)
    whole, _ = read(path)
    data = bytearray(path.read_bytes())
    chunks = [match.start() for match in re.finditer(re.escape(ZSTD), data)]
    data[chunks[len(chunks) // 3] + 50] ^= 1
    path.write_bytes(data)
    messages, holes = read(path)
    assert len(holes) == 1
    assert "a damaged record" in holes[0].reason
    assert 0 < len(whole) - len(messages) < 30
    lost = [each for each in whole if each not in set(messages)]
    start = whole.index(lost[0])
    assert whole[start : start + len(lost)] == lost
    assert messages == whole[:start] + whole[start + len(lost) :]
    report = import_bag(path, tmp_path / "r", "bag", contract(tmp_path))
    assert report.episodes == 2


def test_topics_that_a_damaged_chunk_declared_are_found_in_the_index(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 1000), chunk=2000)
    whole, _ = read(path)
    data = bytearray(path.read_bytes())
    first = data.index(ZSTD)
    data[first + 40] ^= 255
    path.write_bytes(data)
    messages, holes = read(path)
    assert len(holes) == 1
    assert messages == whole[len(whole) - len(messages) :]
    assert 0 < len(messages) < len(whole)


def test_random_damage_is_never_a_traceback(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 300), chunk=500)
    good, generator = path.read_bytes(), random.Random(0)
    by = contract(tmp_path)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(generator.randint(1, 6)):
            data[generator.randrange(8, len(data))] = generator.randrange(256)
        path.write_bytes(data)
        read(path)
        with contextlib.suppress(DataError):
            rows(path, by)


def test_a_record_that_claims_to_be_huge_is_damage(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 300))
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + bytes([6]) + (MAX_RECORD + 1).to_bytes(8, "little") + whole[8:])
    messages, holes = read(path)
    assert messages == []
    assert "a record of 268,435,457 bytes" in holes[0].reason


def test_a_chunk_does_not_unpack_beyond_the_size_it_states(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", arm(0, 300), chunk=1 << 20)
    data = bytearray(path.read_bytes())
    chunk = data.index(ZSTD)
    # Before the frame lie the compression's name, its length, a checksum and the size when unpacked.
    size = slice(chunk - 8 - 8 - 4 - 8, chunk - 8 - 8 - 4)
    assert int.from_bytes(data[size], "little") > 1000
    data[size] = (1000).to_bytes(8, "little")
    path.write_bytes(data)
    messages, holes = read(path)
    assert messages == []
    assert "1,001 bytes instead of 1,000" in holes[0].reason


def test_a_cut_part_of_a_bag_does_not_cost_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    folder.mkdir()
    first = write_mcap(folder / "bag_0.mcap", arm(0, 1000), chunk=2000)
    write_mcap(folder / "bag_1.mcap", arm(1000, 2000), chunk=2000)
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    report = import_bag(folder, tmp_path / "r", "bag", contract(tmp_path))
    reader = ReplayReader(tmp_path / "r")
    assert report.episodes == 2 or len(reader.state) == 20
    assert reader.column("stamp_ns").tolist()[-20:] == [
        START + ms * 1_000_000 for ms in range(1000, 2000, 50)
    ]

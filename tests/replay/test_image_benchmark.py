"""The benchmark of images measures what it says: frames are counted, both readers see the same data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from flowrl.replay.reader import ReplayReader

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replay_images.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("replay_images", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_reads_are_counted_and_updates_are_timed(benchmark: Any, tmp_path: Path) -> None:
    benchmark.record(tmp_path, 4, 16)
    readers = {
        name: ReplayReader(tmp_path, decoded_bytes=kept)
        for name, kept in (("kept", 1 << 20), ("decoding", 0))
    }
    assert (readers["kept"].episodes, readers["kept"].rows) == (4, 240)
    assert next(benchmark.flowrl_reads(readers["kept"])) == 2 * 2 * benchmark.ROWS
    result = benchmark.ImageResult()
    benchmark.measure_update(readers, 1, result)
    assert 0 < result.data_time_share < 1
    assert 0 < result.decoding_time_share < 1
    assert result.image_updates_per_s > 0


def test_sides_are_measured_in_turn(benchmark: Any) -> None:
    order = list[str]()

    def side(name: str) -> Any:
        while True:
            order.append(name)
            yield 4

    found = benchmark.rates({name: side(name) for name in "ab"}, seconds=0.0, block=1e-9)
    assert order == list("ab" * 4)  # one to warm up, then three blocks
    assert set(found) == {"a", "b"}

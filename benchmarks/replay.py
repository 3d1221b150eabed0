"""Measure the replay: batches per second, images, commit time, torn rows, rows lost to kill -9, disk use.

    python benchmarks/replay.py [--quick] [--json FILE]

Images are measured by `benchmarks/replay_images.py`, whose keys the JSON file has as well.

Every row that the crash and tear measurements write can be recomputed from its number, so a reader
checks each row it sees. Targets: 5,000 batches of 256 state chunks per second on one free core, no torn
row, no committed row lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from flowrl.replay.info import disk_bytes
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.verify import verify
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec

STATE, ACTION, LENGTH = 19, 7, 100
SPEC = Spec(
    observation=(Feature("observation.state", (STATE,)),),
    action=ActionSpec(tuple(f"a{i}" for i in range(ACTION)), (-1.0,) * ACTION, (1.0,) * ACTION),
    control_hz=20.0,
)
BY_HAND = CommitRule(seconds=1e9, rows=10**9, open_seconds=1e9, compact_every=0)
SMALL_COMMITS = CommitRule(seconds=0.0, rows=17, open_seconds=1e9, compact_every=50, grace_s=2.0)


@dataclass
class Result:
    """What the benchmark measures; the keys of the JSON file."""

    state_batches_per_s: float = 0.0
    state_batches_per_cpu_s: float = 0.0
    commit_ms_p50: float = 0.0
    commit_ms_p95: float = 0.0
    append_us_p50: float = 0.0
    refresh_ms_p50: float = 0.0
    load_rows_per_s: float = 0.0
    torn_rows: int = 0
    rows_checked: int = 0
    committed_rows_lost: int = 0
    kills: int = 0
    disk_amplification_before: float = 0.0
    disk_amplification_after: float = 0.0


def main() -> None:
    """Run all measurements, print a table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="write the result as one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rows and kills, for CI")
    options = parser.parse_args()
    # Not above: processes that are started import this file, and the learner's modules take seconds.
    from replay_images import measure_images, rows_of

    torch.set_num_threads(1)
    result = Result()
    with tempfile.TemporaryDirectory() as directory:
        replay = Path(directory)
        measure_writing(replay / "write", 60 if options.quick else 300, result)
        measure_sampling(replay / "write", 1.0 if options.quick else 5.0, result)
        measure_kills(replay / "kill", 4 if options.quick else 20, result)
        images = measure_images(replay, 48, options.quick)
    show(result, rows_of(images))
    if options.json:
        options.json.write_text(json.dumps(asdict(result) | asdict(images), indent=2) + "\n")
    raise SystemExit(1 if result.torn_rows or result.committed_rows_lost else 0)


def measure_writing(replay: Path, episodes: int, result: Result) -> None:
    """Write episodes of 100 steps, one commit each, with a reader that refreshes after each; then compact."""
    random = np.random.default_rng(0)
    appends: list[float] = []
    commits: list[float] = []
    refreshes: list[float] = []
    with StreamWriter.create(replay, "w0", SPEC, Kind.POLICY, BY_HAND) as writer:
        reader = ReplayReader(replay)
        for episode in range(episodes):
            writer.begin_episode(seed=episode, task="benchmark")
            success = episode % 2 == 0
            for index in range(LENGTH):
                last = index == LENGTH - 1
                observation = random.standard_normal(STATE).astype(np.float32)
                action = random.uniform(-1, 1, ACTION).astype(np.float32)
                step = Step(observation, action, float(success and last), success and last)
                appends.append(_seconds(lambda step=step: writer.append(step)))
            outcome = Outcome.SUCCESS if success else Outcome.TIMEOUT
            writer.close_episode(outcome, OutcomeBy.ENVIRONMENT, random.standard_normal(STATE))
            commits.append(_seconds(writer.commit))
            refreshes.append(_seconds(reader.refresh))
        data = reader.rows * 4 * (STATE + 2 * ACTION + 1) + reader.integers.nbytes
        result.disk_amplification_before = disk_bytes(replay) / data
        writer.compact(grace_s=0.0)
        result.disk_amplification_after = disk_bytes(replay) / data
    result.append_us_p50 = statistics.median(appends) * 1e6
    result.commit_ms_p50 = statistics.median(commits) * 1e3
    result.commit_ms_p95 = float(np.percentile(commits, 95)) * 1e3
    result.refresh_ms_p50 = statistics.median(refreshes) * 1e3
    result.load_rows_per_s = reader.rows / _seconds(lambda: ReplayReader(replay))


def measure_sampling(replay: Path, seconds: float, result: Result) -> None:
    """Batches of 256 chunks, H = 5, from a mix of three sources; the median over windows.

    A window of 20 batches takes a few milliseconds, so that most are not cut by other processes.
    """
    mix = {"successes": 0.25, "policy": 0.5, "online": 0.25}
    config = SamplerConfig(batch_size=256, chunk=5, end_rule="padded", mix=mix)
    sampler = ChunkSampler(ReplayReader(replay), config)
    windows: list[float] = []
    end, cpu = time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        windows.append(_seconds(lambda: [sampler.batch() for _ in range(20)]))
    result.state_batches_per_cpu_s = 20 * len(windows) / (time.process_time() - cpu)
    result.state_batches_per_s = 20 / statistics.median(windows)


def measure_kills(replay: Path, kills: int, result: Result) -> None:
    """Kill a writer at random instants beside a live reader; reopen; count torn and lost rows."""
    random = np.random.default_rng(1)
    # The fork server imports torch once. Not icechunk: it starts threads when it is imported, and a
    # process that has threads must not be forked.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flowrl.policies.observation"])
    lines, theirs = context.Pipe()
    follower = context.Process(target=follow, args=(str(replay), theirs), daemon=True)
    StreamWriter.create(replay, "w0", SPEC, Kind.POLICY, SMALL_COMMITS).close()
    follower.start()
    theirs.close()
    lines.recv_bytes()
    for _ in range(kills):
        said, says = context.Pipe(duplex=False)
        writer = context.Process(target=write_pattern, args=(str(replay), says), daemon=True)
        writer.start()
        says.close()
        acknowledged = int(said.recv_bytes())
        time.sleep(random.uniform(0.0, 0.5))
        writer.kill()
        try:
            while True:
                acknowledged = int(said.recv_bytes())
        except (EOFError, ConnectionResetError):
            writer.join()
        with StreamWriter.open(replay, "w0", SPEC, SMALL_COMMITS) as reopened:
            result.committed_rows_lost += max(0, acknowledged - reopened.committed_rows)
        result.torn_rows += wrong_rows(ReplayReader(replay), 0)
    lines.send_bytes(b"stop")
    checked, torn = lines.recv_bytes().split()
    follower.join()
    result.kills, result.rows_checked = kills, int(checked)
    result.torn_rows += int(torn) + len(verify(replay).violations)


def write_pattern(replay: str, says: Connection) -> None:
    """Append pattern episodes for ever; say the committed rows after each commit."""
    with StreamWriter.open(replay, "w0", SPEC, SMALL_COMMITS) as writer:
        committed = -1
        while True:
            writer.begin_episode()
            for index in range(30):
                row = pattern(np.array([writer.rows]))[0]
                step = Step(row[:STATE], row[STATE:-1], float(row[-1]), truncated=index == 29, stamp_ns=index)
                writer.append(step)
                if writer.committed_rows != committed:
                    committed = writer.committed_rows
                    says.send_bytes(str(committed).encode())
            writer.close_episode(Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT, np.zeros(STATE))


def follow(replay: str, lines: Connection) -> None:
    """Refresh until told to stop, checking every new row; then say the rows checked and those torn."""
    reader, torn = ReplayReader(replay), 0
    lines.send_bytes(b"ready")
    while not lines.poll():
        seen = reader.rows
        reader.refresh()
        torn += wrong_rows(reader, seen)
    lines.send_bytes(f"{reader.rows} {torn}".encode())


def pattern(rows: np.ndarray) -> np.ndarray:
    """Observation, action and reward of rows by their number in the stream (R, S+A+1), float32."""
    columns = np.arange(STATE + ACTION + 1)
    return (((rows[:, None] * 31 + columns * 7) % 997) / 997.0).astype(np.float32)


def wrong_rows(reader: ReplayReader, start: int) -> int:
    """How many rows from ``start`` on are not exactly what the writer wrote there."""
    found = np.concatenate([reader.state, reader.action, reader.reward[:, None]], axis=1)[start:]
    return int((found != pattern(np.arange(start, reader.rows))).any(axis=1).sum())


def show(result: Result, more: Iterable[tuple[str, str, str]]) -> None:
    """Print the result, and ``more`` rows, as a table beside its targets."""
    table = Table("measured", "value", "target", title="replay benchmark")
    for name, value, target in (
        ("state batches of 256 per second (wall)", f"{result.state_batches_per_s:,.0f}", ">= 5,000"),
        ("state batches of 256 per CPU second", f"{result.state_batches_per_cpu_s:,.0f}", ""),
        ("commit of one 100-step episode, p50", f"{result.commit_ms_p50:.1f} ms", "about 10 ms"),
        ("commit, p95", f"{result.commit_ms_p95:.1f} ms", ""),
        ("append of one step, p50", f"{result.append_us_p50:.0f} µs", ""),
        ("reader refresh, one new episode, p50", f"{result.refresh_ms_p50:.1f} ms", ""),
        ("loading", f"{result.load_rows_per_s:,.0f} rows/s", ""),
        (f"torn rows of {result.rows_checked:,} seen live", str(result.torn_rows), "0"),
        (f"committed rows lost in {result.kills} kills", str(result.committed_rows_lost), "0"),
        ("disk / data before compaction", f"{result.disk_amplification_before:.1f}", ""),
        ("disk / data after compaction", f"{result.disk_amplification_after:.2f}", ""),
        *more,
    ):
        table.add_row(name, value, target)
    Console().print(table)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

"""Metrics: means between intervals, non-finite losses, and files that survive a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import NonFiniteLoss
from flowrl.learner.metrics import JsonlSink, Metrics, TensorBoardSink, read_metrics

NAN, INF = float("nan"), float("inf")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_interval_holds_means_last_values_and_counters(tmp_path: Path) -> None:
    clock = Clock()
    metrics = Metrics([JsonlSink(tmp_path / "metrics.jsonl")], wall_s=5.0, clock=clock)
    metrics.add({"critic/loss": 1.0, "actor/loss": 4.0})
    metrics.add({"critic/loss": 3.0})
    metrics.set({"evaluation/success": 0.5})
    metrics.count("env_steps", 10)
    clock.now = 102.0
    first = metrics.log(10)
    assert first == {"critic/loss": 2.0, "actor/loss": 4.0, "evaluation/success": 0.5, "env_steps": 10}
    metrics.add({"critic/loss": 7.0})
    metrics.count("env_steps")
    metrics.log(20)
    metrics.close()

    columns = read_metrics(tmp_path / "metrics.jsonl")
    np.testing.assert_array_equal(columns["step"], [10, 20])
    np.testing.assert_array_equal(columns["wall_s"], [7.0, 7.0])
    np.testing.assert_array_equal(columns["critic/loss"], [2, 7])
    np.testing.assert_array_equal(columns["env_steps"], [10, 11])
    np.testing.assert_array_equal(columns["evaluation/success"], [0.5, NAN])


@pytest.mark.parametrize("name", ["critic/loss", "actor/fm_loss", "loss", "critic/grad_norm"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_non_finite_loss_stops_the_run_by_name(name: str, value: float) -> None:
    metrics = Metrics()
    with pytest.raises(NonFiniteLoss, match=rf"{name} is {value}.*last good checkpoint"):
        metrics.add({"fine/loss": 1.0, name: value})
    with pytest.raises(NonFiniteLoss, match=name):
        metrics.set({name: value})


def test_other_metrics_may_be_undefined(tmp_path: Path) -> None:
    metrics = Metrics([JsonlSink(tmp_path / "metrics.jsonl")])
    metrics.add({"actor/adjoint_ratio": NAN, "critic/q_mean": INF})
    metrics.log(1)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line)["actor/adjoint_ratio"] is None
    assert np.isnan(read_metrics(tmp_path / "metrics.jsonl")["critic/q_mean"]).all()


def write(path: Path, *steps: int) -> None:
    sink = JsonlSink(path)
    for step in steps:
        sink.write(step, float(step), {"a": step})
    sink.close()


@pytest.mark.parametrize(
    "torn", [b'{"step": 4, "a"', b"\0\0\0", b'{"step": 4, "wall_s": 4.0, "a": 4}', b"{}\n"]
)
def test_a_torn_last_line_is_dropped_and_writing_goes_on(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 2, 3)
    path.write_bytes(path.read_bytes() + torn)
    assert read_metrics(path)["step"].tolist() == [1, 2, 3]
    write(path, 4)
    assert read_metrics(path)["a"].tolist() == [1, 2, 3, 4]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_resume_drops_the_lines_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 10, 20, 30)
    sink = JsonlSink(path, resume_step=20)
    sink.write(25, 1.0, {"a": 1.0})
    sink.close()
    assert read_metrics(path)["step"].tolist() == [10, 20, 25]


def test_absent_metrics_have_no_columns(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == {}


def test_a_resumed_collector_logs_what_an_uninterrupted_one_does() -> None:
    whole, parts = Metrics(clock=Clock()), Metrics(clock=Clock())
    for metrics in (whole, parts):
        metrics.add({"loss": 1.0})
        metrics.count("updates")
    resumed = Metrics(clock=Clock())
    resumed.load_state_dict(json.loads(json.dumps(parts.state_dict())))
    for metrics in (whole, resumed):
        metrics.add({"loss": 2.0})
        metrics.count("updates")
    assert resumed.log(2) == whole.log(2) == {"loss": 1.5, "updates": 2}
    assert resumed.wall_s == whole.wall_s


def test_tensorboard_reads_the_events_and_hides_what_a_resume_dropped(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resume_step, steps in ((None, (10, 20, 30)), (20, (25,))):
        metrics = Metrics([TensorBoardSink(tmp_path, resume_step)])
        for step in steps:
            metrics.add({"critic/loss": step})
            metrics.log(step)
        metrics.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/loss")] == [
        (10, 10),
        (20, 20),
        (25, 25),
    ]


def test_metrics_need_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from flowrl.learner.metrics import TensorBoardSink; "
        f"TensorBoardSink(Path({str(tmp_path)!r})).close(); "
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

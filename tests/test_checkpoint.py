"""Checkpoints: bit-equal round trips, kills at every step of a save, damage, a full disk."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.checkpoint import CheckpointStore, Disk, WeightsStore, load, save
from flowrl.errors import CheckpointError


def assert_bit_equal(left: Any, right: Any, path: str = "state") -> None:
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor), path
        assert (left.dtype, left.shape) == (right.dtype, right.shape), path
        as_bytes = [t.detach().contiguous().flatten().view(torch.uint8) for t in (left, right) if t.numel()]
        assert not as_bytes or torch.equal(*as_bytes), path
        return
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, path
        np.testing.assert_array_equal(left, right)
        return
    assert type(left) is type(right), path
    if isinstance(left, dict):
        assert list(left) == list(right), path
        assert [type(key) for key in left] == [type(key) for key in right], path
        for key in left:
            assert_bit_equal(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            assert_bit_equal(*pair, f"{path}.{index}")
    else:
        assert left == right or left != left, path


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint32]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.complex64]


def test_a_nested_state_comes_back_bit_equal(tmp_path: Path) -> None:
    base = torch.randn(6, 4)
    state = {
        "dtypes": {str(dtype): (torch.rand(3, 2) * 5).to(dtype) for dtype in DTYPES},
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "views": [base, base.T, base[::2], base[1], base],
        "parameter": torch.nn.Parameter(torch.ones(2)).data,
        "generators": [
            torch.get_rng_state(),
            random.getstate(),
            np.random.default_rng(0).bit_generator.state,
        ],
        "numpy": {"mt": np.random.RandomState(0).get_state()[1], "scalar": np.array(2.5)},
        "json": [None, True, 1, 2**200, -1, 0.1, float("nan"), float("inf"), "text", "é\n", [], {}, ()],
        "keys": {0: "int", "0": "text", "a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, "$tensor": 1},
        "$": {"$tuple": [1]},
        "__metadata__": torch.ones(1),
    }
    save(tmp_path / "1", state)
    assert_bit_equal(load(tmp_path / "1"), state)


def test_subclasses_come_back_plain(tmp_path: Path) -> None:
    save(tmp_path / "1", OrderedDict(a=np.float64(0.5)))
    assert_bit_equal(load(tmp_path / "1"), {"a": 0.5})


@pytest.mark.parametrize(
    "optimiser", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam]
)
def test_an_optimiser_goes_on_bit_equal(
    tmp_path: Path, optimiser: Callable[..., torch.optim.Optimizer]
) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        return network, optimiser(network.parameters(), lr=0.01)

    def train(network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimiser.zero_grad()
            network(torch.randn(5, 3)).square().mean().backward()
            optimiser.step()

    network, opt = make()
    train(network, opt)
    state = {"network": network.state_dict(), "optimiser": opt.state_dict(), "random": torch.get_rng_state()}
    save(tmp_path / "1", state)
    train(network, opt)

    resumed, resumed_opt = make()
    loaded = load(tmp_path / "1")
    resumed.load_state_dict(loaded["network"])
    resumed_opt.load_state_dict(loaded["optimiser"])
    torch.set_rng_state(loaded["random"])
    train(resumed, resumed_opt)
    assert_bit_equal(dict(resumed.state_dict()), dict(network.state_dict()))
    assert_bit_equal(resumed_opt.state_dict(), opt.state_dict())


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (lambda: 0, "tensors, numbers"),
        (object(), "tensors, numbers"),
        ({1, 2}, "tensors, numbers"),
        (np.int64(3), r"\.item\(\)"),
        (torch.Generator(), r"get_state\(\)"),
        (torch.nn.Linear(1, 1), r"state_dict\(\)"),
        ({1.5: 0}, "str or int keys"),
        (np.array(["a", None], dtype=object), "numbers"),
        (torch.eye(2).to_sparse(), "dense"),
        (torch.empty(2, device="meta"), "dense"),
    ],
)
def test_what_cannot_be_stored_is_named_before_anything_is_written(
    tmp_path: Path, value: object, remedy: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"state actor\.parts\.1: .*cannot be stored; .*{remedy}"):
        save(tmp_path / "1", {"actor": {"parts": [0, value]}})
    assert list(tmp_path.iterdir()) == []


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((300,), float(step)), "text": "x" * 100}


def write_policy(step: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "processors").mkdir(parents=True)
        (path / "processors" / "a.json").write_text(str(step))

    return write


class KilledAt(Disk):
    """Kills its process by SIGKILL at the n-th operation."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def step(self, operation: str, path: Path) -> None:
        if self.count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count -= 1


class Recorder(Disk):
    """Writes down every operation."""

    def __init__(self, durable: bool = True) -> None:
        super().__init__(durable)
        self.operations: list[tuple[str, str]] = []

    def step(self, operation: str, path: Path) -> None:
        self.operations.append((operation, path.name))


def killed(work: Callable[[], object]) -> bool:
    """Run ``work`` in a forked process; whether it was killed by SIGKILL rather than done."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
    return status != 0


@pytest.mark.parametrize("second", [20, 10], ids=["next step", "same step again"])
def test_a_kill_at_every_step_of_a_save_leaves_the_former_or_the_new(tmp_path: Path, second: int) -> None:
    new = {**state_of(20), "again": True}
    outcomes: list[bool] = []
    for count in range(1000):
        directory = tmp_path / str(count) / "checkpoints"
        CheckpointStore(directory).save(10, state_of(10), {"policy": write_policy(10)})
        was_killed = killed(
            lambda count=count, directory=directory: CheckpointStore(directory, KilledAt(count)).save(
                second, new, {"policy": write_policy(20)}
            )
        )
        store = CheckpointStore(directory)
        loaded = store.load_latest()
        assert loaded is not None
        is_new = "again" in loaded.state
        assert_bit_equal(loaded.state, new if is_new else state_of(10))
        assert (loaded.directory / "policy/processors/a.json").read_text() == ("20" if is_new else "10")
        assert loaded.skipped == ()
        outcomes.append(is_new)

        store.save(30, state_of(30))
        assert store.latest() == 30
        assert not [path.name for path in directory.iterdir() if path.name.startswith(".")]
        if not was_killed:
            break
    assert outcomes == sorted(outcomes), "once the new one is there, it stays"
    assert outcomes.count(False) > 15
    assert outcomes[-1]


def test_a_first_save_killed_anywhere_leaves_nothing_or_all(tmp_path: Path) -> None:
    for count in range(1000):
        directory = tmp_path / str(count)
        was_killed = killed(
            lambda count=count, directory=directory: CheckpointStore(directory, KilledAt(count)).save(
                10, state_of(10)
            )
        )
        loaded = CheckpointStore(directory).load_latest()
        assert loaded is None or loaded.state["step"] == 10
        if not was_killed:
            break
    assert loaded is not None


def test_everything_is_synced_before_the_rename_and_the_pointer_flips_last(tmp_path: Path) -> None:
    disk = Recorder()
    CheckpointStore(tmp_path / "checkpoints", disk).save(10, state_of(10), {"policy": write_policy(10)})
    done = disk.operations
    rename, flip = done.index(("rename", "10")), done.index(("rename", "latest"))
    names = [
        "state.json",
        "state.safetensors",
        "a.json",
        "processors",
        "policy",
        "manifest.json",
        ".saving-10",
    ]
    for name in names:
        assert ("sync", name) in done[:rename], name
    assert done.index(("write", "manifest.json")) > done.index(("sync", "a.json"))
    assert ("sync", "checkpoints") in done[rename:flip]
    assert done[-2:] == [("rename", "latest"), ("sync", "checkpoints")]


def test_prune_keeps_the_newest_the_latest_and_the_protected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 4, 5):
        store.save(step, state_of(step))
    assert store.prune(2, protect=[1]) == [2, 3]
    assert store.list() == [1, 4, 5]
    store.save(2, state_of(2))
    assert store.prune(1) == [1, 4, 5], "the run went back to step 2: the later ones are not its own"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink], ids=["flip", "truncate", "remove"])
@pytest.mark.parametrize(
    "name", ["state.json", "state.safetensors", "policy/processors/a.json", "manifest.json"]
)
def test_damage_is_named_and_the_former_checkpoint_is_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    store = CheckpointStore(tmp_path)
    for step in (5, 10, 20):
        store.save(step, state_of(step), {"policy": write_policy(step)})
    damage(tmp_path / "20" / name)
    with pytest.raises(CheckpointError) as caught:
        store.load(20)
    message = str(caught.value)
    assert name in message
    assert message.endswith("use an earlier checkpoint: 10, 5")
    loaded = store.load_latest()
    assert loaded is not None
    assert (loaded.step, loaded.skipped) == (10, (message,))


def test_a_damaged_pointer_is_no_loss(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (5, 10):
        store.save(step, state_of(step))
    for content in (b"", b"\xff\xfe", b"99", b"five"):
        (tmp_path / "latest").write_bytes(content)
        loaded = store.load_latest()
        assert loaded is not None
        assert loaded.step == 10


def test_all_damaged_is_an_error_and_a_missing_step_names_the_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.load_latest() is None
    store.save(5, state_of(5))
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has: 5"):
        store.load(7)
    truncate(tmp_path / "5" / "state.json")
    with pytest.raises(CheckpointError, match="no other checkpoint lies beside it"):
        store.load_latest()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a small file system")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def big(step: int, kilobytes: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.zeros(kilobytes * 256)}


@pytest.mark.parametrize("where", ["tensors", "json", "policy"])
def test_a_full_disk_keeps_the_former_checkpoint_and_names_the_remedy(small_disk: Path, where: str) -> None:
    store = CheckpointStore(small_disk / "checkpoints")
    store.save(10, big(10, 100))
    state: dict[str, Any] = {"tensors": big(20, 300), "json": {"text": "x" * 300_000}, "policy": {}}[where]
    policy = {"policy": lambda path: path.write_bytes(bytes(300_000))} if where == "policy" else {}
    with pytest.raises(CheckpointError, match=r"(?s)/20: cannot be saved.*untouched: 10; free disk space"):
        store.save(20, state, policy)
    loaded = store.load_latest()
    assert loaded is not None
    assert_bit_equal(loaded.state, big(10, 100))
    store.save(30, big(30, 50))
    assert store.list() == [10, 30], "the failed save left no bytes behind"


def test_a_file_size_limit_keeps_the_former_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(10, state_of(10))

    def save_under_a_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(CheckpointError, match=r"untouched: 10; free disk space"):
            store.save(20, big(20, 100))

    assert not killed(save_under_a_limit)
    loaded = store.load_latest()
    assert loaded is not None
    assert (loaded.step, store.list()) == (10, [10])


def write_version(version: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.mkdir()
        for name in ("a", "b"):
            (path / name).write_text(str(version))

    return write


def test_actors_pull_by_version_and_the_newest_three_stay(tmp_path: Path) -> None:
    learner, actor = WeightsStore(tmp_path / "weights"), WeightsStore(tmp_path / "weights")
    assert actor.pull() is None
    for version in range(1, 6):
        learner.publish(version, write_version(version), {"step": version * 10})
    pulled = actor.pull(newer_than=3)
    assert pulled is not None
    version, directory = pulled
    assert (version, (directory / "policy/a").read_text(), load(directory)["step"]) == (5, "5", 50)
    assert actor.pull(newer_than=5) is None
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["3", "4", "5", "latest"]


def test_publishing_never_waits_for_the_medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError("fsync")

    monkeypatch.setattr(os, "fsync", refuse)
    WeightsStore(tmp_path).publish(1, write_version(1))


def test_a_version_goes_up_only_and_rewind_takes_it_back(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path)
    for version in (1, 2, 3):
        store.publish(version, write_version(version))
    with pytest.raises(CheckpointError, match="version 3 is not above the latest, 3; publish 4, or rewind"):
        store.publish(3, write_version(3))
    store.rewind(1)
    assert store.latest() == 1
    store.publish(2, write_version(2))
    store.rewind(0)
    assert store.pull() is None


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path)
    store.publish(1, write_version(1))
    flip_a_byte(tmp_path / "1" / "policy" / "a")
    with pytest.raises(CheckpointError, match=r"policy/a does not hold"):
        store.pull()


def test_readers_never_see_a_torn_version_while_the_learner_publishes(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path, keep=1)
    store.publish(1, write_version(1))
    failures: list[BaseException] = []
    seen: set[int] = set()
    done = threading.Event()

    def read() -> None:
        reader = WeightsStore(tmp_path)
        try:
            while not done.is_set():
                found = reader.read(
                    lambda path: [(path / "policy" / name).read_text() for name in ("a", "b")]
                )
                assert found is not None
                version, contents = found
                assert contents == [str(version)] * 2
                seen.add(version)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(2, 150):
        store.publish(version, write_version(version))
    done.set()
    for reader in readers:
        reader.join(timeout=30)
    assert failures == []
    assert seen

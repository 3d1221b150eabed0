"""A policy directory: equal when read back, and refused by name when anything is wrong."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flowrl.checkpoint.disk import Disk
from flowrl.errors import CheckpointError
from flowrl.policies import FlowPolicy, Observation, create_policy, io, load_policy, save_policy
from flowrl.policies.io import POLICY_FILE, WEIGHTS_FILE
from flowrl.spec import Spec
from tests.policies.kinds import STATE_KINDS, small


@pytest.fixture
def saved(spec: Spec, tmp_path: Path) -> Path:
    save_policy(create_policy("flow_mlp", spec, {"width": 16}), tmp_path / "policy", {"run": "lift-1"})
    return tmp_path / "policy"


def edit(directory: Path, **changes: Any) -> None:
    path = directory / POLICY_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_a_policy_is_read_back_bit_for_bit(kind: str, spec: Spec, tmp_path: Path) -> None:
    policy = create_policy(kind, spec, small(kind))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_()
    save_policy(policy, tmp_path / "deep" / "policy", {"run": "lift-1", "step": 20})
    again = load_policy(tmp_path / "deep" / "policy")
    assert type(again) is type(policy)
    assert (again.spec, again.config()) == (policy.spec, policy.config())
    observation, noise = Observation(torch.randn(5, 3)), torch.randn(5, policy.noise_size)
    samples = [p.raw_action(p.sample(p.encode(observation), noise)) for p in (policy, again)]
    assert torch.equal(*samples)
    assert io.read_description(tmp_path / "deep" / "policy")["lineage"] == {"run": "lift-1", "step": 20}


def test_a_policy_directory_can_be_moved(saved: Path) -> None:
    saved.rename(saved.with_name("elsewhere"))
    load_policy(saved.with_name("elsewhere"))


def test_saving_again_replaces_the_policy_and_leaves_nothing_beside(saved: Path, spec: Spec) -> None:
    policy = create_policy("flow_mlp", spec, {"width": 8})
    save_policy(policy, saved)
    assert load_policy(saved).config()["width"] == 8
    assert [path.name for path in saved.parent.iterdir()] == ["policy"]


def test_a_directory_that_is_no_policy_is_not_replaced(spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is no policy"):
        save_policy(create_policy("flow_mlp", spec), tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("failing", [WEIGHTS_FILE, POLICY_FILE, "rename"])
def test_a_save_that_fails_leaves_the_old_policy(
    saved: Path, spec: Spec, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, rename = Disk.write, Path.rename

    def full_disk(self: Disk, path: Path, data: bytes) -> None:
        if path.name == failing:
            raise OSError(28, os.strerror(28))
        write(self, path, data)

    def refused(self: Path, target: Path) -> Path:
        if failing == "rename" and ".writing-" in self.name:
            raise OSError(5, os.strerror(5))
        return rename(self, target)

    monkeypatch.setattr(Disk, "write", full_disk)
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(CheckpointError, match=r"cannot be written.*free disk space"):
        save_policy(create_policy("flow_mlp", spec, {"width": 8}), saved)
    assert load_policy(saved).config()["width"] == 16
    assert [path.name for path in saved.parent.iterdir()] == ["policy"]


def flip_a_byte(directory: Path) -> None:
    path = directory / WEIGHTS_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(directory: Path) -> None:
    path = directory / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-100])


def forge(directory: Path) -> None:
    (directory / WEIGHTS_FILE).write_bytes(b"not tensors")
    edit(directory, sha256={WEIGHTS_FILE: hashlib.sha256(b"not tensors").hexdigest()})


DAMAGE = {
    "corrupt": (flip_a_byte, rf"{WEIGHTS_FILE}: SHA-256 .* damaged: copy it again"),
    "truncated": (truncate, rf"{WEIGHTS_FILE}: SHA-256 .* truncated"),
    "no weights": (lambda d: (d / WEIGHTS_FILE).unlink(), rf"{WEIGHTS_FILE}: cannot be read .*copy"),
    "forged weights": (forge, rf"{WEIGHTS_FILE}: is no safetensors file"),
    "no description": (lambda d: (d / POLICY_FILE).unlink(), rf"{POLICY_FILE}: cannot be read"),
    "no json": (lambda d: (d / POLICY_FILE).write_text('{"format": 1,'), rf"{POLICY_FILE}: is no valid JSON"),
    "not a policy": (lambda d: (d / POLICY_FILE).write_text("[]"), "no format version"),
    "incomplete": (lambda d: (d / POLICY_FILE).write_text('{"format": 1}'), "lacks config, kind"),
    "newer format": (lambda d: edit(d, format=2), "format 2 is newer than 1.*upgrade flowrl"),
    "unknown kind": (lambda d: edit(d, kind="flow_mpl"), "'flow_mpl'; the nearest is 'flow_mlp'"),
    "unknown setting": (lambda d: edit(d, config={"wdith": 1}), "no setting 'wdith'; the nearest is 'width'"),
    "wrong type": (lambda d: edit(d, config={"width": "wide"}), POLICY_FILE),
    "no spec": (lambda d: edit(d, spec={}), "spec: key 'observation' is missing"),
    "other shapes": (
        lambda d: edit(d, config={"width": 8}),
        r"tensor 'network.0.bias' is \(16,\) .* make it \(8,\).*do not belong together",
    ),
    "other tensors": (lambda d: edit(d, config={"width": 16, "depth": 1}), "do not belong together"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_file_and_remedy(saved: Path, damage: str) -> None:
    inflict, message = DAMAGE[damage]
    inflict(saved)
    with pytest.raises(CheckpointError, match=message):
        load_policy(saved)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*expected a policy directory"):
        load_policy(tmp_path / "nowhere")


def test_an_untrained_and_a_loaded_policy_differ_only_in_weights(saved: Path, spec: Spec) -> None:
    fresh: FlowPolicy = create_policy("flow_mlp", spec, {"width": 16})
    assert fresh.state_dict().keys() == load_policy(saved).state_dict().keys()

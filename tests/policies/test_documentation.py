"""The example in docs/policies.md works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from flowrl.policies import Observation, create_policy, io, load_policy, save_policy
from flowrl.policies.pretrain import PretrainConfig, pretrain
from flowrl.spec import Spec

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_the_example_policy_trains_saves_and_loads(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    line = re.search(r'`"(\w+)": "(my_policy:\w+)"`', text)
    assert example
    assert line
    (tmp_path / "my_policy.py").write_text(example.group(1))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(io.KINDS, line.group(1), line.group(2))
    policy = create_policy(line.group(1), spec)
    states, chunks = torch.randn(20, 3), torch.rand(20, 4, 2)
    metrics = pretrain(policy, (states.numpy(), chunks.numpy()), PretrainConfig(steps=20))
    assert metrics["pretrain/loss"] > 0
    save_policy(policy, tmp_path / "policy")
    again = load_policy(tmp_path / "policy")
    noise = torch.randn(20, 8)
    ends = [p.sample(p.encode(Observation(states)), noise) for p in (policy, again)]
    assert torch.equal(*ends)


def test_the_page_names_every_kind() -> None:
    text = PAGE.read_text()
    assert [kind for kind in io.KINDS if f"`{kind}`" not in text] == []

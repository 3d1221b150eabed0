"""The code in docs/replay.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.replay.schema import Outcome, Source
from tests.replay.streams import SPEC, new_stream, step, write_episode

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/replay.md").read_text(), re.S)


def test_stream_is_readable_with_plain_icechunk_and_zarr(tmp_path: Path) -> None:
    with new_stream(tmp_path, "worker-0") as writer:
        write_episode(writer, range(4), final=4)
        write_episode(writer, range(4, 9), Outcome.TIMEOUT, final=9)
    found: dict[str, Any] = {}
    exec(BLOCKS[1].replace("replays/lift", str(tmp_path)), found)
    assert found["rows"] == 9
    np.testing.assert_allclose(found["actions"][:, 0], np.arange(9) / 100, rtol=1e-6)
    assert found["source"].tolist() == [Source.POLICY] * 9


def test_writing_and_sampling_as_shown(tmp_path: Path) -> None:
    text = BLOCKS[0].replace("replays/lift", str(tmp_path)).replace("    ...\n", "    writer.append(last)\n")
    text = text.replace('{"demonstrations": 0.25, "online": 0.75}', '{"online": 1.0}, chunk=2')
    shown = step(1.0)
    found: dict[str, Any] = {
        "spec": SPEC,
        "observation": shown.observation,
        "action": shown.action,
        "final_observation": shown.observation,
        "last": step(2.0, 1.0, terminated=True),
    }
    exec(text, found)
    assert found["reader"].rows == 2
    assert found["batch"].action.shape == (256, 2, 1)

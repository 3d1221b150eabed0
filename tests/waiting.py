"""Waiting for a state of another process, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PAUSE = threading.Event()
"""Never set: a wait on it is a pause between two looks."""


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Poll until a condition holds. Fails with its description when the deadline passes."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not reached in {deadline_s:.0f} s: {what}"
        _PAUSE.wait(0.002)

"""Ctrl-C and SIGTERM, noticed between two updates so that what is saved is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from flowrl.errors import Terminated


class StopRequest:
    """A context in which a signal only asks for a stop; `check` raises it where the state is whole.

    A second signal stops at once. Outside the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def check(self) -> None:
        """Raise KeyboardInterrupt or Terminated when a signal has arrived."""
        if self._asked is not None:
            raise Terminated if self._asked == signal.SIGTERM else KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            raise KeyboardInterrupt
        self._asked = number

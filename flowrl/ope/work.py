"""Work on several candidates at once, in threads: torch's operations leave the interpreter meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


class Counter:
    """Counts units of work from any thread; after `stop`, counting raises, which ends the work."""

    def __init__(self, on_count: Callable[[int], None]) -> None:
        self._on_count, self._lock = on_count, threading.Lock()
        self._done, self._stopped = 0, False

    def add(self, units: int) -> None:
        """Some units are done. Raises KeyboardInterrupt when the work was stopped."""
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            self._done += units
            self._on_count(self._done)

    def stop(self) -> None:
        """Let whoever counts next end."""
        with self._lock:
            self._stopped = True


def in_threads[T](tasks: Sequence[Callable[[], T]], jobs: int, stop: Callable[[], None]) -> list[T]:
    """The results of all tasks, in their order, ``jobs`` at a time; ``stop`` is called when one fails."""
    if jobs == 1:
        return [task() for task in tasks]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise

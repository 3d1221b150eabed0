"""Who is in charge, a person or the policy: the level of a button or topic, and the number of the takeover."""

from __future__ import annotations

from typing import Any

from flowrl.replay.schema import NO_INTERVENTION
from robot_bridge.contract import Intervention, JoyIntervention
from robot_bridge.messages import read_bool, read_button


class Takeover:
    """Whether a person is in charge, from the messages of the contract's intervention.

    The newest message holds until the next one. A person is in charge from the press on, and for
    ``release_ms`` after the button was let go.
    """

    def __init__(self, intervention: Intervention | None) -> None:
        self._intervention = intervention
        self._held = False
        self._until_ns = -1

    def put(self, message: Any, arrival_ns: int) -> None:
        """Take a message. Raises DataError when it has no such button."""
        match self._intervention:
            case None:
                return
            case JoyIntervention() as joy:
                held = read_button(joy.topic, joy.button, message)
            case _:
                held = read_bool(message)
        if self._held and not held:
            self._until_ns = arrival_ns + self._intervention.release_ns
        self._held = held

    def human(self, now_ns: int) -> bool:
        """Whether a person is in charge at a time, not before that of the newest message."""
        return self._held or now_ns < self._until_ns

    def forget_time(self) -> None:
        """The clock has jumped: a release that is still running is over, a button that is held stays held."""
        self._until_ns = -1


class TakeoverCounter:
    """Numbers the takeovers of one episode 0, 1, 2, ... as its rows come."""

    def __init__(self) -> None:
        self._last, self._human = NO_INTERVENTION, False

    @property
    def count(self) -> int:
        """Takeovers so far."""
        return self._last + 1

    def number(self, human: bool) -> int:
        """The ``intervention_id`` of the next row."""
        self._last += human and not self._human
        self._human = human
        return self._last if human else NO_INTERVENTION

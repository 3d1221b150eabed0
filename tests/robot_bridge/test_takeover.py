"""Who is in charge, and which takeover it is."""

from __future__ import annotations

from types import SimpleNamespace as Message

from robot_bridge.contract import JoyIntervention, TakeoverIntervention
from robot_bridge.takeover import Takeover, TakeoverCounter


def test_a_button_holds_from_press_to_release_and_a_little_longer() -> None:
    takeover = Takeover(JoyIntervention(button=1, release_ms=300))
    charge: list[bool] = []
    held = {100: True, 130: True, 200: False}
    for ms in (0, 99, 100, 150, 200, 499, 500, 600):
        if ms in held:
            takeover.put(Message(buttons=[0, int(held[ms])]), ms * 1_000_000)
        charge.append(takeover.human(ms * 1_000_000))
    assert charge == [False, False, True, True, True, True, False, False]


def test_a_topic_says_it_exactly() -> None:
    takeover = Takeover(TakeoverIntervention(topic="/t"))
    takeover.put(Message(data=True), 10)
    assert takeover.human(10)
    takeover.put(Message(data=False), 20)
    assert not takeover.human(20)


def test_without_an_intervention_nobody_takes_over() -> None:
    takeover = Takeover(None)
    takeover.put(Message(data=True), 10)
    assert not takeover.human(10)


def test_a_jump_of_the_clock_ends_a_release_but_not_a_press() -> None:
    takeover = Takeover(JoyIntervention(button=0, release_ms=300))
    takeover.put(Message(buttons=[1]), 10)
    takeover.forget_time()
    assert takeover.human(0)
    takeover.put(Message(buttons=[0]), 1_000_000_000)
    takeover.forget_time()
    assert not takeover.human(0)


def test_takeovers_are_numbered_upwards() -> None:
    counter = TakeoverCounter()
    human = [False, True, True, False, False, True, False]
    assert [counter.number(each) for each in human] == [-1, 0, 0, -1, -1, 1, -1]
    assert counter.count == 2

"""The rows of a bag: read, decode, order and resample in one pass, and count what does not make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowrl.replay.frames import FrameCodec
from robot_bridge.assembler import Assembler
from robot_bridge.bags.bag import Bag
from robot_bridge.bags.decode import Decoder
from robot_bridge.bags.order import Break, Ordering
from robot_bridge.bags.records import Hole, Item
from robot_bridge.bags.resample import Event, Resampler
from robot_bridge.bags.tally import Tally
from robot_bridge.contract import Contract
from robot_bridge.messages import MessageFault, stamp_of

_PROGRESS_EVERY = 256
# Nanoseconds since 1970, in the year 2116: beyond it, a time is damage.
_LATEST = 1 << 62


class BagRows:
    """One pass over a bag by a contract. ``on_bytes`` is told how much of it is read."""

    def __init__(
        self,
        bag: Bag,
        contract: Contract,
        codec: FrameCodec | None = None,
        on_bytes: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._bag, self._on_bytes = bag, on_bytes
        self.types = contract.topics()
        """The message type of each topic that is read."""
        self._decoder = Decoder(self.types)
        self.assembler = Assembler(contract, codec)
        self.resampler = Resampler(contract, self.assembler)
        self.ordering = Ordering({part.topic: contract.command_after_ns for part in contract.command})
        self.tally = Tally()

    def events(self) -> Iterator[Event]:
        """Rows, the ends of their episodes, and what was said about them.

        Raises DataError when a topic contradicts the contract or a file is no bag file.
        """
        for event in self.ordering.events(self._counted()):
            if isinstance(event, Break):
                self.tally.breaks.append(event)
                yield from self.resampler.interrupt(event.kind, event.at_ns)
                continue
            yield from self.resampler.until(event.time_ns)
            topic = event.message.channel.topic
            try:
                message = self._decoder.decode(event.message)
                self.tally.stamp(topic, stamp_of(message), event.message.time_ns)
                yield from self.resampler.put(topic, message, event.time_ns)
            except MessageFault as fault:
                self.tally.faults[topic, str(fault)] += 1
        yield from self.resampler.finish()

    def _counted(self) -> Iterator[Item]:
        """The bag's items on the contract's topics, counted."""
        tally = self.tally
        for number, item in enumerate(self._bag.items()):
            if number % _PROGRESS_EVERY == 0:
                self._on_bytes(self._bag.position, self._bag.size)
            if isinstance(item, Hole):
                tally.holes.append(item)
                yield item
                continue
            topic = item.channel.topic
            if topic not in self.types:
                tally.foreign[topic] += 1
            elif item.time_ns > _LATEST:
                tally.faults[topic, "a time of arrival that is none"] += 1
            else:
                tally.messages[topic] += 1
                yield item

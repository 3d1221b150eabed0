"""From a message's bytes to an object with its fields, by the definition that the bag holds."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from flowrl.errors import DataError
from flowrl.replay.extras import data_module
from robot_bridge.bags.records import Channel, Recorded
from robot_bridge.messages import MessageFault

# What a decoder raises on bytes that are no such message.
_UNDECODABLE = (ValueError, struct.error, IndexError, KeyError, TypeError, NotImplementedError, OverflowError)


class Decoder:
    """Decodes the messages of a contract's topics. ``types`` is the message type of each topic."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self._decoders: dict[Channel, Callable[[bytes], Any]] = {}
        self._newest: tuple[Channel, Callable[[bytes], Any]] | None = None

    def decode(self, recorded: Recorded) -> Any:
        """The message. Raises MessageFault when its bytes are none, DataError when the topic has another type."""
        decoder = self._decoder(recorded.channel)
        try:
            return decoder(recorded.data)
        except _UNDECODABLE as error:
            raise MessageFault("bytes that cannot be decoded") from error

    def _decoder(self, channel: Channel) -> Callable[[bytes], Any]:
        # A channel is compared by its whole definition, which takes longer than to decode a message.
        if self._newest is None or self._newest[0] is not channel:
            if channel not in self._decoders:
                self._decoders[channel] = self._made(channel)
            self._newest = channel, self._decoders[channel]
        return self._newest[1]

    def _made(self, channel: Channel) -> Callable[[bytes], Any]:
        expected = self._types[channel.topic]
        if _plain(channel.kind) != _plain(expected):
            raise DataError(
                f"topic {channel.topic} has type {channel.kind}, the contract expects {expected}; name another topic, "
                "or another kind or encoding"
            )
        if channel.message_encoding != "cdr":
            raise DataError(
                f"topic {channel.topic} is encoded as {channel.message_encoding!r}, expected 'cdr'"
            )
        if channel.definition_encoding != "ros2msg":
            raise DataError(
                f"topic {channel.topic} is defined in {channel.definition_encoding or 'nothing'!r}; read are "
                "definitions in 'ros2msg'"
            )
        schema = data_module("mcap.records").Schema(
            id=1, name=channel.kind, encoding="ros2msg", data=channel.definition
        )
        try:
            made = data_module("mcap_ros2.decoder").DecoderFactory().decoder_for("cdr", schema)
        except Exception as error:  # the parser has no error of its own
            raise DataError(f"topic {channel.topic}: its definition cannot be parsed ({error})") from error
        if made is None:
            raise DataError(f"topic {channel.topic}: there is no decoder for {channel.kind}")
        return made


def _plain(kind: str) -> str:
    return kind.replace("/msg/", "/")

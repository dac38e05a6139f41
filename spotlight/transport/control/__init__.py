"""Control messages between processes: the codec, the transport protocol and its two
implementations."""

from spotlight.transport.control.bad_input import BadInput, Rejection
from spotlight.transport.control.base import NOT_ADMITTED, ControlTransport, TransportListener
from spotlight.transport.control.codec import (
    FRAME_LIMIT,
    PROTOCOL_VERSION,
    ActorRef,
    Envelope,
    Kind,
    Lane,
    Message,
    actor_incarnation,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
)
from spotlight.transport.control.dialect import Dialect
from spotlight.transport.control.guests import Guests
from spotlight.transport.control.keys import KeyPair, key_of
from spotlight.transport.control.zeromq import ZeroMQTransport
from spotlight.transport.control.zeromq_settings import ZeroMQSettings

__all__ = [
    "FRAME_LIMIT",
    "NOT_ADMITTED",
    "PROTOCOL_VERSION",
    "ActorRef",
    "BadInput",
    "ControlTransport",
    "Dialect",
    "Envelope",
    "Guests",
    "KeyPair",
    "Kind",
    "Lane",
    "Message",
    "Rejection",
    "TransportListener",
    "ZeroMQSettings",
    "ZeroMQTransport",
    "actor_incarnation",
    "decode_envelope",
    "decode_message",
    "encode_envelope",
    "encode_message",
    "key_of",
]

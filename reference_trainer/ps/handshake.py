"""Mutual authentication of a worker and a server: each proves that it knows the secret of this run.

The secret is never sent. Each side sends a random challenge and answers the other's with an HMAC of both challenges and
its own hello, so that an old answer is useless and no hello can be changed in transit. An accepted worker is not
challenged again: an attacker who can write into an established connection could also write the data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from typing import Any, Dict, Tuple

from preflight.agent import bounds
from reference_trainer.ps import frames
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.frames import Header

_NONCE_BYTES = 32
_PROOF_BYTES = 32


def challenge(channel: Channel, secret: bytes, deadline: float) -> Tuple[Dict[str, Any], bytes]:
    """The server's side: read the worker's hello, and return what its answer must prove.

    Raises PeerError of kind `protocol_error` for a stranger, which sends invalid data, nothing, or a wrong secret.
    """
    own = os.urandom(_NONCE_BYTES)
    channel.send(Header(frames.CHALLENGE, bytes=len(own)), memoryview(own))
    try:
        header = channel.receive(deadline)
    except PeerError as error:
        if error.kind == "silent":
            raise PeerError(
                "protocol_error", error.peer, "%s connected and did not identify itself" % error.peer
            ) from error
        raise
    if header.op != frames.HELLO or not _NONCE_BYTES + _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, "%s began with %s" % (channel.peer, header.name))
    data = bytearray(header.bytes)
    channel.read_payload(memoryview(data), deadline)
    theirs, proof = bytes(data[:_NONCE_BYTES]), bytes(data[_NONCE_BYTES : _NONCE_BYTES + _PROOF_BYTES])
    peer_values = bytes(data[_NONCE_BYTES + _PROOF_BYTES :])
    if not hmac.compare_digest(proof, _proof(secret, b"worker", own, theirs, peer_values)):
        raise PeerError("protocol_error", channel.peer, "%s does not know the secret of this run" % channel.peer)
    return _parsed(channel, peer_values), own + theirs


def welcome(channel: Channel, secret: bytes, challenges: bytes, own_values: Dict[str, Any]) -> None:
    """The server's answer, once it accepts the worker."""
    peer_values = json.dumps(own_values).encode("utf-8")
    proof = _proof(secret, b"server", challenges[:_NONCE_BYTES], challenges[_NONCE_BYTES:], peer_values)
    data = proof + peer_values
    channel.send(Header(frames.WELCOME, bytes=len(data)), memoryview(data))


def introduce(channel: Channel, secret: bytes, own_values: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
    """The worker's side: authenticate itself, and read the server's hello.

    Raises PeerError: `protocol_error` for a peer that is not a server of this run, `mismatch` and `ended` with the
    server's message.
    """
    header = _expected(channel, frames.CHALLENGE, limit_s)
    if header.bytes != _NONCE_BYTES:
        raise PeerError(
            "protocol_error", channel.peer, "%s sent a challenge of %d bytes" % (channel.peer, header.bytes)
        )
    theirs = bytearray(_NONCE_BYTES)
    channel.read_payload(memoryview(theirs), time.monotonic() + limit_s)
    own = os.urandom(_NONCE_BYTES)
    peer_values = json.dumps(own_values).encode("utf-8")
    data = own + _proof(secret, b"worker", bytes(theirs), own, peer_values) + peer_values
    channel.send(Header(frames.HELLO, bytes=len(data)), memoryview(data))
    header = _expected(channel, frames.WELCOME, limit_s)
    if not _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, "%s sent a welcome of %d bytes" % (channel.peer, header.bytes))
    answer = bytearray(header.bytes)
    channel.read_payload(memoryview(answer), time.monotonic() + limit_s)
    proof, peer_data = bytes(answer[:_PROOF_BYTES]), bytes(answer[_PROOF_BYTES:])
    if not hmac.compare_digest(proof, _proof(secret, b"server", bytes(theirs), own, peer_data)):
        raise PeerError("protocol_error", channel.peer, "%s does not know the secret of this run" % channel.peer)
    return _parsed(channel, peer_data)


def _expected(channel: Channel, op: int, limit_s: float) -> Header:
    try:
        header = channel.receive(time.monotonic() + limit_s)
    except PeerError as error:
        if error.kind == "silent":
            text = (
                "%s accepted the connection and sent nothing for %.1f s: it is not a server of this run, or is stopped"
            )
            raise PeerError("silent", error.peer, text % (error.peer, limit_s)) from error
        raise
    if header.op != op:
        raise PeerError(
            "protocol_error", channel.peer, "%s sent %s, not %s" % (channel.peer, header.name, frames.NAMES[op])
        )
    return header


def _proof(secret: bytes, role: bytes, of_server: bytes, of_worker: bytes, peer_values: bytes) -> bytes:
    return hmac.new(secret, b"preflight ps " + role + of_server + of_worker + peer_values, hashlib.sha256).digest()


def _parsed(channel: Channel, peer_values: bytes) -> Dict[str, Any]:
    try:
        found = bounds.parse(peer_values)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PeerError("protocol_error", channel.peer, "%s sent a message that is not valid JSON" % channel.peer)
    return found

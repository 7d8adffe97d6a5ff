"""How a worker and a server make sure of each other: each proves that it knows the secret of this run.

The secret never travels. Each side sends a random challenge, and answers the other's with an HMAC over both and over
what it says of itself, so that an old answer is worth nothing and nothing said can be changed on the way. A worker
that was let in is not asked again: whoever can write into an established connection could also write the data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from typing import Any, Dict, Tuple

from reference_trainer.ps import frames
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.frames import Header

_NONCE_BYTES = 32
_PROOF_BYTES = 32


def challenge(channel: Channel, secret: bytes, deadline: float) -> Tuple[Dict[str, Any], bytes]:
    """The server's side: what the worker says of itself, and what the answer to it must prove.

    Raises PeerError of kind `confused` for a stranger: one that speaks otherwise, says nothing, or has no such secret.
    """
    own = os.urandom(_NONCE_BYTES)
    channel.send(Header(frames.CHALLENGE, bytes=len(own)), memoryview(own))
    try:
        header = channel.receive(deadline)
    except PeerError as error:
        if error.kind == "silent":
            raise PeerError("confused", error.peer, "%s connected and said nothing" % error.peer) from error
        raise
    if header.op != frames.HELLO or not _NONCE_BYTES + _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("confused", channel.peer, "%s began with %s" % (channel.peer, header.name))
    data = bytearray(header.bytes)
    channel.take(memoryview(data), deadline)
    theirs, proof = bytes(data[:_NONCE_BYTES]), bytes(data[_NONCE_BYTES : _NONCE_BYTES + _PROOF_BYTES])
    said = bytes(data[_NONCE_BYTES + _PROOF_BYTES :])
    if not hmac.compare_digest(proof, _proof(secret, b"worker", own, theirs, said)):
        raise PeerError("confused", channel.peer, "%s does not know the secret of this run" % channel.peer)
    return _parsed(channel, said), own + theirs


def welcome(channel: Channel, secret: bytes, challenges: bytes, says: Dict[str, Any]) -> None:
    """The server's answer, once it is content with the worker."""
    said = json.dumps(says).encode("utf-8")
    proof = _proof(secret, b"server", challenges[:_NONCE_BYTES], challenges[_NONCE_BYTES:], said)
    data = proof + said
    channel.send(Header(frames.WELCOME, bytes=len(data)), memoryview(data))


def introduce(channel: Channel, secret: bytes, says: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
    """The worker's side: prove itself, and hear what the server says of itself.

    Raises PeerError: `confused` for whoever is no server of this run, `mismatch` and `ended` with the server's text.
    """
    header = _expected(channel, frames.CHALLENGE, limit_s)
    if header.bytes != _NONCE_BYTES:
        raise PeerError("confused", channel.peer, "%s sent a challenge of %d bytes" % (channel.peer, header.bytes))
    theirs = bytearray(_NONCE_BYTES)
    channel.take(memoryview(theirs))
    own = os.urandom(_NONCE_BYTES)
    said = json.dumps(says).encode("utf-8")
    data = own + _proof(secret, b"worker", bytes(theirs), own, said) + said
    channel.send(Header(frames.HELLO, bytes=len(data)), memoryview(data))
    header = _expected(channel, frames.WELCOME, limit_s)
    if not _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("confused", channel.peer, "%s sent a welcome of %d bytes" % (channel.peer, header.bytes))
    answer = bytearray(header.bytes)
    channel.take(memoryview(answer))
    proof, heard = bytes(answer[:_PROOF_BYTES]), bytes(answer[_PROOF_BYTES:])
    if not hmac.compare_digest(proof, _proof(secret, b"server", bytes(theirs), own, heard)):
        raise PeerError("confused", channel.peer, "%s does not know the secret of this run" % channel.peer)
    return _parsed(channel, heard)


def _expected(channel: Channel, op: int, limit_s: float) -> Header:
    try:
        header = channel.receive(time.monotonic() + limit_s)
    except PeerError as error:
        if error.kind == "silent":
            text = "%s took the connection and said nothing for %.1f s: no server of this run, or one that is stopped"
            raise PeerError("silent", error.peer, text % (error.peer, limit_s)) from error
        raise
    if header.op != op:
        raise PeerError("confused", channel.peer, "%s sent %s, not %s" % (channel.peer, header.name, frames.NAMES[op]))
    return header


def _proof(secret: bytes, role: bytes, of_server: bytes, of_worker: bytes, said: bytes) -> bytes:
    return hmac.new(secret, b"preflight ps " + role + of_server + of_worker + said, hashlib.sha256).digest()


def _parsed(channel: Channel, said: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(said.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerError("confused", channel.peer, "%s said nothing that can be read" % channel.peer)
    return found

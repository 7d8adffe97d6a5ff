"""Host names and addresses as jobs spell them."""

from __future__ import annotations

import pytest

from preflight._util.hostnames import is_loopback


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.0.1.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "::1",
        "[::1]",
        "[::1]:29500",
        "0:0:0:0:0:0:0:1",
        "::1%lo",
        "::ffff:127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        " localhost ",
        "localhost:29500",
        "127.0.0.1:29500",
        "localhost.localdomain",
        "ip6-localhost",
        "ip6-loopback",
        "trainer.localhost",
    ],
)
def test_every_spelling_of_loopback_is_recognised(text: str) -> None:
    assert is_loopback(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.0.0.0",
        "::",
        "::ffff:10.0.0.1",
        "128.0.0.1",
        "10.127.0.1",
        "127.0.0.1.example.org",
        "127-0-0-1",
        "1127",
        "localhost1",
        "notlocalhost",
        "localhost.example.org",
        "node1",
        "node1:29500",
        "fe80::1",
        "[",
        "127.0.0.1 node1",
        "$MASTER_ADDR",
    ],
)
def test_other_addresses_are_not_loopback(text: str) -> None:
    assert not is_loopback(text)

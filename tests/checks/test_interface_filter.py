"""Interface filters, as NCCL, Gloo and TensorPipe read them."""

from __future__ import annotations

import pytest

from preflight_checks.interface_filter import nearest, select
from preflight_checks.probes.interfaces import Address, Interface


def nic(name: str, address: str = "10.0.0.1", *, loopback: bool = False) -> Interface:
    found = [Address(address, 24)] if address else []
    return Interface(name, True, True, loopback, found, 1500)


HAVE = [
    nic("lo", "127.0.0.1", loopback=True),
    nic("eth0", "10.0.0.1"),
    nic("eth1", "10.1.0.1"),
    nic("eth10", "10.2.0.1"),
    nic("docker0", "172.17.0.1"),
    nic("ib0", ""),
]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("eth1,eth0", ["eth0", "eth1", "eth10"]),
        ("=eth10,eth0", ["eth0", "eth10"]),
        ("eth1:1", ["eth1", "eth10"]),
        ("^docker,lo", ["eth0", "eth1", "eth10"]),
        ("^=eth1", ["lo", "eth0", "eth10", "docker0"]),
        ("ib", []),
        ("bond0", []),
        ("e", ["eth0", "eth1", "eth10"]),
    ],
)
def test_nccl(value: str, left: list[str]) -> None:
    assert [item.name for item in select("NCCL_SOCKET_IFNAME", value, HAVE).interfaces] == left


def test_gloo_takes_whole_names_in_the_order_listed() -> None:
    choice = select("GLOO_SOCKET_IFNAME", "eth1,eth0,ib9", HAVE)
    assert [item.name for item in choice.interfaces] == ["eth1", "eth0"]
    assert choice.missing == ("ib9",)
    assert select("GLOO_SOCKET_IFNAME", "eth", HAVE).interfaces == ()


def test_tensorpipe_takes_one_name() -> None:
    assert select("TP_SOCKET_IFNAME", "eth0,eth1", HAVE).interfaces == ()
    assert [i.name for i in select("TP_SOCKET_IFNAME", "eth1", HAVE).interfaces] == ["eth1"]


def test_an_interface_without_address_is_not_left() -> None:
    assert select("NCCL_SOCKET_IFNAME", "ib0", HAVE).unaddressed == ("ib0",)


def test_the_nearest_name_is_one_that_could_be_used() -> None:
    assert nearest("enth0", HAVE) == "eth0"
    assert nearest("zzz", HAVE) == ""

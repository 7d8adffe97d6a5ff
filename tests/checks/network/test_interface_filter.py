"""Interface filters, as NCCL, Gloo and TensorPipe read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight_checks.network.interface_filter import nearest, select, unusable_reason
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


def test_the_family_of_nccl() -> None:
    both = [
        nic("eth0", "10.0.0.1"),
        nic("eth1", "fe80::1"),
        nic("eth2", "2001:db8::2"),
        nic("lo", "::1", loopback=True),
    ]
    six = select("NCCL_SOCKET_IFNAME", "^docker", both, "AF_INET6")
    assert [item.name for item in six.interfaces] == ["eth1", "eth2"] and six.unaddressed == ("eth0",)
    assert [i.name for i in select("NCCL_SOCKET_IFNAME", "eth", both, "AF_INET").interfaces] == ["eth0"]


@pytest.mark.parametrize(
    ("variable", "value", "left", "missing"),
    [
        ("btl_tcp_if_include", "eth1", ["eth1"], ()),
        ("btl_tcp_if_include", "eth", [], ("eth",)),
        ("btl_tcp_if_include", "10.1.0.0/16,eth10", ["eth1", "eth10"], ()),
        # No interface is in it: Open MPI warns and uses all.
        ("btl_tcp_if_include", "192.168.0.0/16", ["eth0", "eth1", "eth10", "docker0"], ()),
        ("btl_tcp_if_exclude", "lo,eth1", ["eth0", "docker0"], ()),
        ("btl_tcp_if_exclude", "127.0.0.0/8,172.16.0.0/12", ["eth0", "eth1", "eth10"], ()),
        ("oob_tcp_if_include", "ib7", [], ("ib7",)),
    ],
)
def test_open_mpi_takes_names_and_networks(
    variable: str, value: str, left: list[str], missing: tuple[str, ...]
) -> None:
    choice = select(f"OMPI_MCA_{variable}", value, HAVE)
    assert [item.name for item in choice.interfaces] == left and choice.missing == missing


def test_horovod_and_libfabric_take_one_whole_name() -> None:
    for variable in ("HOROVOD_GLOO_IFACE", "FI_TCP_IFACE"):
        assert [item.name for item in select(variable, "eth1", HAVE).interfaces] == ["eth1"]
        assert select(variable, "eth", HAVE).missing == ("eth",)


def test_unusable_interfaces() -> None:
    up = nic("eth0", "10.0.0.1")
    assert unusable_reason(up, several=True) == ""
    assert unusable_reason(replace(up, up=False), several=False) == "is down"
    assert unusable_reason(replace(up, running=False), several=False) == "has no carrier"
    assert "link-local" in unusable_reason(nic("eth0", "169.254.1.1"), several=True)
    assert "loopback" in unusable_reason(nic("lo", "127.0.0.1", loopback=True), several=True)
    assert unusable_reason(nic("lo", "127.0.0.1", loopback=True), several=False) == ""
    # On a node with BGP, lo has its own address.
    assert unusable_reason(nic("lo", "10.3.0.1", loopback=True), several=True) == ""


def test_tensorpipe_takes_one_name() -> None:
    assert select("TP_SOCKET_IFNAME", "eth0,eth1", HAVE).interfaces == ()
    assert [i.name for i in select("TP_SOCKET_IFNAME", "eth1", HAVE).interfaces] == ["eth1"]


def test_an_interface_without_address_is_skipped() -> None:
    assert select("NCCL_SOCKET_IFNAME", "ib0", HAVE).unaddressed == ("ib0",)


def test_the_nearest_name_is_one_that_could_be_used() -> None:
    assert nearest("enth0", HAVE) == "eth0"
    assert nearest("zzz", HAVE) == ""

"""The state of interfaces, from a folder like /sys/class/net, and from answers of netlink and ethtool."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import nic_state
from preflight_checks.probes.interfaces import routes
from preflight_checks.probes.nic_state import nic_states, parse_driver, parse_rules


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


@pytest.fixture
def sys_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bond of two cards, one end of a veth pair, and the bonding driver's own file."""
    index = {"bond0": 7, "ens1": 8, "ens2": 9, "veth4": 10, "lo": 1}
    monkeypatch.setattr(nic_state, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(nic_state, "CONF", str(tmp_path / "conf"))
    monkeypatch.setattr(socket, "if_nametoindex", lambda name: index[name])
    for name, number in index.items():
        write_tree(tmp_path / "net" / name, {"ifindex": str(number), "speed": "-1"})
    write_tree(tmp_path / "net", {"bonding_masters": "bond0", "bond0/speed": "50000", "bond0/duplex": "full"})
    write_tree(
        tmp_path / "net/bond0", {"bonding/mode": "802.3ad 4", "bonding/slaves": "ens1 ens2", "carrier_changes": "3"}
    )
    write_tree(tmp_path / "net/ens1", {"bonding_slave/mii_status": "up", "speed": "25000"})
    write_tree(tmp_path / "net/ens2", {"bonding_slave/mii_status": "down"})
    write_tree(tmp_path / "net/bond0/statistics", {"rx_packets": "900", "rx_errors": "7"})
    write_tree(
        tmp_path / "conf",
        {"all/rp_filter": "0", "bond0/rp_filter": "1", "all/arp_ignore": "1", "bond0/arp_ignore": "0"},
    )
    return tmp_path / "net"


def test_a_bond_with_a_dead_member(sys_net: Path) -> None:
    found = {item.name: item for item in nic_states({}).interfaces}
    assert set(found) == {"bond0", "ens1", "ens2"}
    bond = found["bond0"]
    assert (bond.bond_mode, bond.speed_mbps, bond.duplex, bond.carrier_changes) == ("802.3ad", 50000, "full", 3)
    assert [(item.name, item.up, item.speed_mbps) for item in bond.members] == [
        ("ens1", True, 25000),
        ("ens2", False, None),
    ]
    assert bond.counters == {"rx_packets": 900, "rx_errors": 7}
    assert (bond.rp_filter, bond.arp_ignore, bond.arp_announce) == (1, 1, None)
    assert found["ens2"].speed_mbps is None and found["ens1"].bond_mode == ""


def test_sysfs_of_another_namespace_is_ignored(sys_net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strange(name: str) -> int:
        raise OSError("no interface with this name")

    monkeypatch.setattr(socket, "if_nametoindex", strange)
    with pytest.raises(ProbeUnavailable) as caught:
        nic_states({})
    assert caught.value.kind == "missing" and "another network namespace" in caught.value.reason


def test_missing_sysfs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_state, "NET", str(tmp_path / "nothing"))
    with pytest.raises(ProbeUnavailable):
        nic_states({})


def test_an_answer_of_ethtool() -> None:
    words = [b"mlx5_core", b"5.8-1.1.2", b"28.39.1002 (MT_0000000838)", b"0000:86:00.0", b""]
    data = struct.pack("=I", 3) + b"".join(struct.pack("32s", word) for word in words) + b"\0" * 32
    assert parse_driver(data) == ("mlx5_core", "28.39.1002 (MT_0000000838)")
    words[2] = b"N/A"
    data = struct.pack("=I", 3) + b"".join(struct.pack("32s", word) for word in words) + b"\0" * 32
    assert parse_driver(data) == ("mlx5_core", "")


def message(kind: int, size: int = 28) -> bytes:
    return struct.pack("=IHHII", size, kind, 2, 1, 0) + b"\0" * (size - 16)


def test_rules_are_counted_to_the_end_of_the_list() -> None:
    assert parse_rules(message(32) + message(32, 29) + b"\0" * 3 + message(32)) == (3, True)
    assert parse_rules(message(32) + message(3, 20)) == (1, False)
    assert parse_rules(b"") == (0, False)
    with pytest.raises(OSError):
        parse_rules(message(2, 36))


def test_routes_keep_the_requested_order() -> None:
    found = routes({"addresses": ["127.0.0.2", "127.0.0.1"]}).routes
    assert [(item.destination, item.interface) for item in found] == [("127.0.0.2", "lo"), ("127.0.0.1", "lo")]
    with pytest.raises(ProbeUnavailable):
        routes({"addresses": ["a-name"]})

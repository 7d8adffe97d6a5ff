"""Names, identity, proxies and the kernel's network, on this machine and on made-up files."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import environment, machine, names
from preflight_checks.probes import environment as probe
from preflight_checks.probes import interfaces as kernel_network
from preflight_checks.probes import interfaces as nic_state
from preflight_checks.probes import ports as module
from preflight_checks.probes.environment import is_own, logins, server_place, tools
from preflight_checks.probes.interfaces import (
    RUNNING,
    UP,
    Address,
    KernelNetwork,
    group_by_interface,
    interfaces,
    nic_states,
    parse_driver,
    parse_ip_addr,
    parse_route_answer,
    parse_rules,
    route,
    routes,
)
from preflight_checks.probes.names import first_bindable, parse_hosts, resolve, resolve_many
from preflight_checks.probes.neighbours import neighbours, parse_neighbours
from preflight_checks.probes.ports import (
    FIRST,
    bind_socket,
    bindable,
    candidates,
    entries,
    free_ports,
    holders_of,
    is_vacant,
    parse_tcp_table,
    proxies,
    without_user,
)
from tests.ports import free_port
from tests.waiting import scaled


def test_the_own_name_has_its_bindable_address() -> None:
    own = resolve({"name": ""})
    assert own.bound is not None and (not own.bound or own.bound in own.addresses)
    assert resolve({"name": "localhost"}).bound is None


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    assert first_bindable(["192.0.2.1", "127.0.0.1"]) == "127.0.0.1"
    assert first_bindable(["192.0.2.1"]) == "" == first_bindable([])


HOSTS = """\
127.0.0.1 localhost
10.0.0.1\tnode1.cluster Node1  # the first
#10.0.0.9 node2
10.0.0.2 node2
10.9.0.2 node2 node2-mgmt
broken
"""


def test_lines_of_etc_hosts() -> None:
    found = parse_hosts(HOSTS, ["node1", "node2", "node3"])
    assert found == {"node1": ["10.0.0.1"], "node2": ["10.0.0.2", "10.9.0.2"]}


def test_many_names_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.0.0.1 localhost\n")
    monkeypatch.setattr(names, "HOSTS", str(tmp_path / "hosts"))
    found = resolve_many({"names": ["localhost", "does-not-exist.invalid"]})
    assert [item.name for item in found.lookups] == ["localhost", "does-not-exist.invalid"]
    assert found.lookups[0].addresses and not found.lookups[1].addresses
    assert found.hosts_file == {"localhost": ["10.0.0.1"]}


def test_a_resolver_that_is_stuck_for_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    release = socket.socketpair()
    real = socket.getaddrinfo

    def hanging(name: bytes, *rest: object) -> object:
        if name == b"stuck":
            release[0].recv(1)
        return real("localhost", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    try:
        found = resolve_many({"names": ["quick", "stuck"], "limit_s": 0.2})
    finally:
        release[1].send(b"x")
    assert [item.problem for item in found.lookups] == ["", "timeout"]


def test_identity_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.identity({})
    assert found.hostname == socket.gethostname() and found.boot_id and found.boot_id in found.place
    assert machine.identity({}).place == found.place
    monkeypatch.setattr(machine, "NAMESPACES", "/nowhere")
    assert machine.identity({}).place == ""


def test_a_hanging_reverse_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    release = socket.socketpair()

    def hanging() -> str:
        release[0].recv(1)
        return ""

    monkeypatch.setattr(socket, "getfqdn", hanging)
    try:
        found = machine.identity({"limit_s": 0.05})
    finally:
        release[1].send(b"x")
    assert found.fqdn == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@proxy.site:3128/", "http://proxy.site:3128"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://me:pa/ss?word@proxy:3128/", "http://proxy:3128"),
        ("proxy:3128", "proxy:3128"),
        ("me:pa@ss@proxy:3128/x?token=1", "proxy:3128"),
        ("http://[2001:db8::1]:3128", "http://[2001:db8::1]:3128"),
        ("http://a b\x1b[31m", "http://a?b?[31m"),
    ],
)
def test_proxy_credentials_never_leave(text: str, shown: str) -> None:
    assert without_user(text) == shown


def test_proxies_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://u:p@proxy:1")
    monkeypatch.setenv("no_proxy", "localhost, 10.0.0.0/8 .site")
    found = proxies({})
    assert found.proxies == {"https_proxy": "http://proxy:1"}
    assert found.exceptions == {"no_proxy": ["localhost", "10.0.0.0/8", ".site"]}
    assert entries(" ,, ") == []


def test_settings_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "ipv4/ip_local_port_range": "50000\t50099",
        "ipv4/ip_local_reserved_ports": "50010,50090-50200,nonsense,9-5",
        "core/somaxconn": "128",
        "netfilter/nf_conntrack_count": "7",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(kernel_network, "SYSCTL", str(tmp_path))
    found = kernel_network.kernel_network({})
    assert (found.first_port, found.last_port, found.ports) == (50000, 50099, 89)
    assert (found.listen_backlog, found.connections, found.most_connections) == (128, 7, None)
    assert found.may_assign(50000) and not found.may_assign(50010) and not found.may_assign(49999)
    monkeypatch.setattr(kernel_network, "SYSCTL", str(tmp_path / "nothing"))
    with pytest.raises(ProbeUnavailable):
        kernel_network.kernel_network({})


# Names, interfaces and routes of this machine, and parsers on recorded text.


def test_localhost_resolves_to_loopback() -> None:
    found = resolve({"name": "localhost"})
    assert not found.problem and not found.own
    assert set(found.addresses) <= {"127.0.0.1", "::1"} and found.addresses


def test_no_name_means_the_own_name() -> None:
    found = resolve({"name": ""})
    assert found.own and found.name == socket.gethostname()


def test_a_name_that_cannot_exist_is_an_observation() -> None:
    found = resolve({"name": "does-not-exist.invalid"})
    assert found.addresses == [] and found.problem in ("unresolved", "timeout")
    assert found.detail


def test_a_malformed_name_does_not_crash() -> None:
    assert resolve({"name": "a" * 300}).problem == "unresolved"


def test_a_hanging_resolver_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    release = socket.socketpair()

    def hanging(*_args: object) -> object:
        release[0].recv(1)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    try:
        found = resolve({"name": "head", "limit_s": 0.05})
    finally:
        release[1].send(b"x")
    assert found.problem == "timeout"


def test_this_machine_has_a_loopback_interface_that_is_up() -> None:
    found = {item.name: item for item in interfaces({}).interfaces}
    lo = found["lo"]
    assert lo.loopback and lo.kind == "loopback" and lo.mtu
    assert Address("127.0.0.1", 8) in lo.addresses


RECORDED = """[
{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,"operstate":"UNKNOWN",
 "addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host"}]},
{"ifindex":4,"ifname":"ib0","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"mtu":2044,"operstate":"UP",
 "addr_info":[{"family":"inet","local":"10.1.0.4","prefixlen":16},
              {"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]},
{"ifindex":5,"ifname":"eno2","flags":["NO-CARRIER","BROADCAST","MULTICAST","UP"],"mtu":1500,"addr_info":[]},
{"deleted":true}
]"""


def test_ip_addr_gives_the_same_rows_as_getifaddrs() -> None:
    rows = group_by_interface(parse_ip_addr(RECORDED))
    assert [(name, addresses) for name, _flags, addresses in rows] == [
        ("lo", [Address("127.0.0.1", 8)]),
        ("ib0", [Address("10.1.0.4", 16), Address("fe80::1", 64)]),
        ("eno2", []),
    ]
    assert rows[1][1] & UP and rows[1][1] & RUNNING
    assert rows[2][1] & UP and not rows[2][1] & RUNNING


@pytest.mark.parametrize("text", ["", 'Object "-j" is unknown, try "ip help".', '{"a": 1}'])
def test_an_invalid_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ip_addr(text)


def test_the_route_to_loopback_leaves_through_lo() -> None:
    found = route({"destination": "127.0.0.1"})
    assert (found.interface, found.source, found.problem) == ("lo", "127.0.0.1", "")


def test_a_route_to_an_unknown_name_is_unresolved() -> None:
    assert route({"destination": "does-not-exist.invalid"}).problem in ("unresolved", "timeout")


def answer(*attributes: tuple[int, bytes], kind: int = 24) -> bytes:
    body = b"".join(struct.pack("=HH", 4 + len(data), name) + data for name, data in attributes)
    return struct.pack("=IHHII", 28 + len(body), kind, 0, 1, 0) + b"\0" * 12 + body


def test_a_route_answer_gives_the_outgoing_interface() -> None:
    found = answer((1, bytes([10, 0, 0, 1])), (4, struct.pack("=I", 7)), (5, bytes([10, 0, 0, 1])))
    assert parse_route_answer(found) == 7


@pytest.mark.parametrize("data", [b"", b"\0" * 40, answer((1, b"\0" * 4)), answer((4, b"\7\0\0\0"), kind=2)])
def test_other_answers_give_none(data: bytes) -> None:
    assert parse_route_answer(data) is None


# The kernel's neighbour table, from made-up answers and from this machine.


def entry(family: int, address: str, hardware: bytes, state: int = 0x02) -> bytes:
    """One RTM_NEWNEIGH message."""

    def attribute(kind: int, value: bytes) -> bytes:
        return (struct.pack("=HH", 4 + len(value), kind) + value).ljust((4 + len(value) + 3) & ~3, b"\0")

    body = struct.pack("=BxxxiHBB", family, 3, state, 0, 0) + attribute(1, socket.inet_pton(family, address))
    body += attribute(2, hardware)
    return struct.pack("=IHHII", 16 + len(body), 28, 0, 1, 0) + body


DONE = struct.pack("=IHHII", 20, 3, 0, 1, 0) + bytes(4)


def test_entries_of_both_families_are_read() -> None:
    data = entry(socket.AF_INET, "10.0.0.2", bytes(range(6))) + entry(socket.AF_INET6, "fe80::2", bytes([2] * 6)) + DONE
    rows, over = parse_neighbours(data)
    assert rows == [(3, "10.0.0.2", "00:01:02:03:04:05"), (3, "fe80::2", "02:02:02:02:02:02")] and over


def test_entries_without_an_answer_are_skipped() -> None:
    for state in (0x01, 0x20, 0x40):
        assert parse_neighbours(entry(socket.AF_INET, "10.0.0.2", bytes(6), state))[0] == []


def test_an_infiniband_address_is_skipped() -> None:
    assert parse_neighbours(entry(socket.AF_INET, "10.0.0.2", bytes(20)))[0] == []


def test_malformed_data_ends_the_answer() -> None:
    assert parse_neighbours(b"") == ([], False)
    assert parse_neighbours(bytes(16)) == ([], True)
    cut = entry(socket.AF_INET, "10.0.0.2", bytes(range(6)))[:-8]
    assert parse_neighbours(cut)[0] in ([], [(3, "10.0.0.2", "00:01:02:03:04:05")])


def test_this_machine_has_a_table_and_a_reason_for_no_requests() -> None:
    found = neighbours({"ask": ["198.51.100.77", "2001:db8::1"]})
    assert isinstance(found.table, list)
    assert all(card.hardware.count(":") == 5 for card in found.cards)
    assert set(found.answers) <= {"198.51.100.77"}


# The state of interfaces, from a folder like /sys/class/net, and from answers of netlink and ethtool.


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


# Ports that can be bound, and the processes that hold others.


@pytest.fixture
def bound_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_held_port_is_in_use_by_this_process(bound_port: int) -> None:
    state = bindable({"port": bound_port})
    assert state.problem == "in-use"
    assert [(item.pid, item.local, item.listening) for item in state.holders] == [
        (os.getpid(), f"127.0.0.1:{bound_port}", True)
    ]
    assert "python" in state.holders[0].command or "pytest" in state.holders[0].command


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_vacant_port_has_no_listener_at_any_address(family: socket.AddressFamily, address: str) -> None:
    port = free_port()
    assert is_vacant(port) and is_vacant(port), "to look at it leaves nothing behind"
    with bind_socket(family, (address, port)):
        assert not is_vacant(port)
    assert is_vacant(port)


def test_testing_a_port_does_not_block_it() -> None:
    port = free_port()
    with socket.socket(socket.AF_INET6) as looking:
        # `vacant` also binds the port for an instant.
        looking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        looking.bind(("::", port))
        assert bindable({"port": port}).problem == ""


def test_a_released_port_can_be_bound_at_once() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert bindable({"port": port}).problem == ""
    assert bindable({"port": port}).problem == ""


def test_an_address_of_another_machine_is_not_local() -> None:
    assert bindable({"port": 6174, "host": "192.0.2.77"}).problem == "not-local"


@pytest.mark.parametrize("port", [0, 70000])
def test_an_invalid_port_is_refused(port: int) -> None:
    assert "from 1 to 65535" in bindable({"port": port}).detail


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 "
    "123456 1 0 100 0 0 10 0\n"
    "   1: 0100007F:1F90 0100007F:A1B2 01 00000000:00000000 02:000005B5 00000000     0        0 99 2 0 20 4 30 10 -1\n"
)
TCP6 = (
    "   0: 00000000000000000000000001000000:733C 00000000000000000000000000000000:0000 0A "
    "00000000:00000000 00:00000000 00000000     0        0 777 1 0 100 0 0 10 0\n"
)


def test_the_tables_of_the_kernel() -> None:
    rows = parse_tcp_table(HEAD + TCP)
    assert [(r.address, r.port, r.state, r.uid, r.inode) for r in rows] == [
        ("0.0.0.0", 29500, 10, 1000, 123456),
        ("127.0.0.1", 8080, 1, 0, 99),
    ]
    assert [(r.address, r.inode) for r in parse_tcp_table(HEAD + TCP6)] == [("::1", 777)]


@pytest.mark.parametrize("text", ["", HEAD, HEAD + "garbage\n", HEAD + "0: zz:yy 0 0A 0 0 0 0 0 0\n"])
def test_tables_without_rows(text: str) -> None:
    assert parse_tcp_table(text) == []


def test_a_free_port_has_no_holder(bound_port: int) -> None:
    assert list(holders_of(bound_port))
    assert list(holders_of(1)) == []


# Free ports of this node.


def test_found_ports_can_be_bound_together_and_vary() -> None:
    found = free_ports({"count": 16}).ports
    assert len(set(found)) == 16
    for port in found:
        with socket.create_server(("", port)):
            pass
    assert found != free_ports({"count": 16}).ports


def test_a_bound_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        monkeypatch.setattr(module, "candidates", lambda network: [taken])
        with pytest.raises(ProbeUnavailable, match="no free port"):
            free_ports({"count": 1})


@pytest.mark.parametrize(
    ("first", "last", "low", "high"),
    [
        (32768, 60999, FIRST, 32767),
        (9000, 60000, 60001, 65535),
        (1024, 65535, FIRST, 65535),
        (None, None, FIRST, 65535),
    ],
)
def test_ephemeral_ports_are_avoided(first: int | None, last: int | None, low: int, high: int) -> None:
    found = candidates(KernelNetwork(first, last, reserved_ports="20000-20010"))
    assert (found[0], found[-1]) == (low, high) and 20005 not in found


# The resources of a node for parameter servers.


def test_loopback_and_other_addresses_are_not_own() -> None:
    assert not is_own("127.0.0.1") and not is_own("::1") and not is_own("0.0.0.0") and not is_own("nonsense")
    assert not is_own("203.0.113.7")


def test_this_machine() -> None:
    seen = server_place({"hosts": ["127.0.0.1", "203.0.113.7", "no-such-host.invalid"]})
    loopback, stranger, missing = seen.hosts
    assert loopback.addresses == ["127.0.0.1"] and not loopback.local
    assert not stranger.local and missing.problem in ("unresolved", "timeout")
    assert seen.memory_bytes and seen.cores and seen.cores > 0


def test_an_own_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "is_own", lambda address: address == "192.0.2.1")
    monkeypatch.setattr(probe, "_speeds", lambda: {"192.0.2.1": 10000})
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
    (host,) = server_place({"hosts": ["ps-a"]}).hosts
    assert host.local and host.speed_mbps == 10000


def test_a_node_without_proc_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MEMINFO", str(tmp_path / "none"))
    monkeypatch.setattr(kernel_network, "SYSCTL", str(tmp_path / "none"))
    seen = server_place({})
    assert seen.first_ephemeral_port is None and seen.hosts == []


# The search for tools, and logins, with shell scripts in place of both.


SSH = """#!/bin/sh
case "$*" in
  *"-- good true") exit 0;;
  *"-- slow true") exec sleep 20;;
esac
echo "noise" >&2
echo "me@denied: Permission denied (publickey)." >&2
exit 255
"""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_a_tool_is_found_with_its_version(path: Path) -> None:
    program(path, "pdsh", "#!/bin/sh\n[ $1 = -V ] && echo pdsh-2.31\n")
    program(path, "prted", "#!/bin/sh\necho prted 5.0\n")
    program(path, "torchrun", "#!/bin/sh\nexit 1\n")
    found = {tool.name: tool for tool in tools({"names": ["pdsh", "orted-x|prted", "torchrun", "not-there"]}).tools}
    assert found["pdsh"].version == "pdsh-2.31" and found["pdsh"].took_s is not None
    assert found["orted-x|prted"].path == str(path / "prted") and found["orted-x|prted"].version == "prted 5.0"
    assert found["torchrun"].path == str(path / "torchrun") and found["torchrun"].took_s is None
    assert found["not-there"].path == ""


def test_a_hanging_tool_is_found_and_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "VERSION_WITHIN_S", 0.2)
    program(path, "mpirun", "#!/bin/sh\nexec sleep 20\n")
    (tool,) = tools({"names": ["mpirun"]}).tools
    assert tool.path and "did not finish" in tool.problem


def test_a_tool_beside_the_interpreter_counts_if_requested(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "env", "composer", "#!/bin/sh\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "env" / "python3"))
    assert not tools({"names": ["composer"]}).tools[0].path
    assert tools({"names": ["composer"], "beside": True}).tools[0].path


def test_logins_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOGIN_S", scaled(1.5))
    program(path, "ssh", SSH)
    seen = logins({"targets": ["good", "denied", "slow"], "options": ["-o", "A=b"]})
    good, denied, slow = seen.logins
    assert good.exit_code == 0 and denied.exit_code == 255 and slow.exit_code is None
    assert denied.said.splitlines()[-1] == "me@denied: Permission denied (publickey)."
    assert seen.untried == []


def test_logins_neither_prompt_nor_write(path: Path) -> None:
    program(path, "ssh", '#!/bin/sh\necho "$@" >&2\nexit 1\n')
    said = logins({"targets": ["host"], "options": []}).logins[0].said
    assert all(f"-o {word}" in said for word in ("BatchMode=yes", "ControlMaster=no", "ControlPath=none"))
    assert said.endswith("-- host true")


def test_without_ssh_or_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "ssh", SSH)
    monkeypatch.setattr(environment, "LOGINS_S", 0.0)
    assert logins({"targets": ["good"]}).untried == ["good"]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProbeUnavailable, match="ssh"):
        logins({"targets": ["good"]})

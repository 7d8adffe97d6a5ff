"""Names, identity, proxies and the kernel's network, on this machine and on made-up files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import kernel_network, machine, names
from preflight_checks.probes.names import first_bindable, parse_hosts, resolve, resolve_many
from preflight_checks.probes.proxies import entries, proxies, without_user


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

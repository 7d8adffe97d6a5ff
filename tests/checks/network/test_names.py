"""Host names: a node's own, and that of rank 0."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import FactRecord
from preflight_checks.network.names import (
    hostname_loopback,
    master_name,
    master_of_another_family,
    name_differs,
    published_name,
    slow_lookups,
    two_names_of_one_machine,
)
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.machine import Identity, identity
from preflight_checks.probes.names import Lookup, Lookups, resolve, resolve_many
from tests.checks.check_builders import (
    LAUNCH,
    TIMEOUT,
    fact,
    facts,
    fleet,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)


def own_name(node: str, *addresses: str, problem: str = "") -> FactRecord:
    return fact(resolve, node, Lookup(node, list(addresses), problem, own=True), params={"name": ""})


def lookup_of(node: str, name: str, *addresses: str, problem: str = "", took_s: float = 0.0) -> FactRecord:
    return fact(resolve, node, Lookup(name, list(addresses), problem, "", took_s), params={"name": name})


def interfaces_of(node: str, *addresses: str) -> FactRecord:
    item = Interface("eth0", True, True, False, [Address(a, 24) for a in addresses], 1500)
    return fact(interfaces, node, Interfaces([item]))


NETWORK = [interfaces_of(f"node{i}", f"10.0.0.{i + 1}") for i in range(4)]


def test_a_name_on_loopback_is_an_error_for_gloo() -> None:
    seen = facts(own_name("node0", "10.0.0.1"), own_name("node1", "127.0.1.1"), own_name("node2", "::1"))
    found = one(judge(hostname_loopback, job(backend="gloo"), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    assert found.severity is None
    assert "127.0.1.1" in found.message and "GLOO_SOCKET_IFNAME" in found.remedy


def test_an_unspecified_backend_is_a_warning() -> None:
    found = one(judge(hostname_loopback, job(), fleet(2), facts(own_name("node0", "127.0.1.1"))), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_an_unresolvable_own_name_makes_gloo_fall_back_on_loopback() -> None:
    seen = facts(own_name("node1", problem="timeout"))
    assert one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.FAIL).nodes == ("node1",)


def test_an_interface_override_makes_the_own_name_irrelevant_for_gloo_but_not_for_servers() -> None:
    seen = facts(own_name("node1", "127.0.1.1"))
    chosen = job(backend="gloo", env_GLOO_SOCKET_IFNAME="eth0")
    assert statuses(judge(hostname_loopback, chosen, fleet(2), seen)) == {"not-applicable"}
    servers = job(ps_mode=True, env_GLOO_SOCKET_IFNAME="eth0")
    assert statuses(judge(hostname_loopback, servers, fleet(2), seen)) == {"fail"}


def test_nccl_does_not_use_the_own_name() -> None:
    assert plan(hostname_loopback, job(backend="nccl"), fleet(2)) == []
    assert statuses(judge(hostname_loopback, job(backend="nccl"), fleet(2), facts())) == {"not-applicable"}


def test_a_failed_lookup_is_unknown_and_required() -> None:
    seen = facts(fact(resolve, "node1", TIMEOUT, params={"name": ""}))
    assert one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.UNKNOWN).required


def test_every_node_looks_up_the_master() -> None:
    wanted = plan(master_name, job(master_addr="head", master_port=29500), fleet(3))
    assert [r.node for r in wanted if r.params.get("name") == "head"] == ["node0", "node1", "node2"]
    assert all(r.because for r in wanted)
    assert plan(master_name, job(master_addr="127.0.0.1"), fleet(3)) == []
    assert plan(master_name, job(master_addr=Unresolved("$1")), fleet(3)) == []


def test_a_master_that_one_node_cannot_resolve_names_that_node() -> None:
    seen = facts(
        *NETWORK,
        lookup_of("node0", "head", "127.0.1.1"),
        lookup_of("node1", "head", "10.0.0.1"),
        lookup_of("node2", "head", problem="unresolved"),
        lookup_of("node3", "head", problem="timeout", took_s=3.0),
    )
    found = one(judge(master_name, job(master_addr="head"), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_loopback_is_fine_only_for_rank_0() -> None:
    seen = facts(*NETWORK, lookup_of("node0", "head", "127.0.1.1"), lookup_of("node1", "head", "127.0.0.1"))
    found = one(judge(master_name, job(master_addr="head"), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "connect to itself" in found.message


def test_the_address_of_another_node_is_an_error_and_of_no_node_a_warning() -> None:
    wrong = facts(*NETWORK, lookup_of("node1", "head", "10.0.0.3"))
    found = one(judge(master_name, job(master_addr="head"), fleet(), wrong), Status.FAIL)
    assert found.severity is None and "node2" in found.message
    foreign = facts(*NETWORK, lookup_of("node1", "head", "192.0.2.9"))
    assert one(judge(master_name, job(master_addr="head"), fleet(), foreign), Status.FAIL).severity is Severity.WARNING


def test_a_c10d_rendezvous_may_be_on_any_node() -> None:
    seen = facts(*NETWORK, lookup_of("node0", "node2", "10.0.0.3"), lookup_of("node1", "node2", "10.0.0.3"))
    c10d = job(rendezvous_backend="c10d", rendezvous_endpoint="node2:29400")
    assert statuses(judge(master_name, c10d, fleet(), seen)) == {"pass"}


def test_a_good_name_passes() -> None:
    seen = facts(*NETWORK, *(lookup_of(f"node{i}", "head", "10.0.0.1") for i in range(4)))
    assert statuses(judge(master_name, job(master_addr="head"), fleet(), seen)) == {"pass"}


def test_names_of_nodes_on_one_machine_are_not_judged() -> None:
    named = job(backend="gloo", master_addr="head", master_port=29500)
    for check in (hostname_loopback, master_name):
        assert plan(check, named, local_fleet(2)) == []
        assert statuses(judge(check, named, local_fleet(2), facts())) == {"not-applicable"}


def test_paddle_uses_the_own_name_despite_gloos_variable() -> None:
    launch = replace(LAUNCH, launcher="paddle")
    loop = fact(resolve, "node1", Lookup("node1", ["127.0.1.1"], own=True, bound="127.0.1.1"))
    told = replace(job(env_GLOO_SOCKET_IFNAME="eth0"), launches=(launch,))
    found = one(judge(hostname_loopback, told, fleet(2), facts(loop)), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "--host" in found.remedy
    given = replace(job(env_GLOO_SOCKET_IFNAME="eth0", node_address="10.0.0.1"), launches=(launch,))
    assert "fail" not in statuses(judge(hostname_loopback, given, fleet(2), facts(loop)))


def test_a_master_of_an_address_family_that_a_node_lacks() -> None:
    have = [interfaces_of(f"node{i}", f"10.0.0.{i}", "fe80::1") for i in range(2)]
    six = [fact(resolve, f"node{i}", Lookup("head", ["2001:db8::1"]), params={"name": "head"}) for i in range(2)]
    meeting = job(master_addr="head", master_port=29500)
    found = one(judge(master_of_another_family, meeting, fleet(2), facts(*have, *six)), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "only IPv4" in found.message
    both = [
        fact(resolve, f"node{i}", Lookup("head", ["2001:db8::1", "10.0.0.0"]), params={"name": "head"})
        for i in range(2)
    ]
    assert statuses(judge(master_of_another_family, meeting, fleet(2), facts(*have, *both))) == {"pass"}
    blind = [fact(resolve, f"node{i}", TIMEOUT, params={"name": "head"}) for i in range(2)]
    assert statuses(judge(master_of_another_family, meeting, fleet(2), facts(*have, *blind))) == {"unknown"}


# Names that differ between nodes, two names of one machine, the name torchrun publishes, slow look-ups.


#: The address of every name: node0 ... node3 are 10.0.0.0 ... 10.0.0.3.
RIGHT = {f"node{i}": [f"10.0.0.{i}"] for i in range(4)}


def lookups_of(node: str, hosts: dict[str, list[str]] | None = None, **other: list[str]) -> FactRecord:
    """The look-ups of a node for the names of all nodes; an empty list is a name that does not resolve."""
    answers = [
        Lookup(name, addresses, "" if addresses else "unresolved") for name, addresses in {**RIGHT, **other}.items()
    ]
    return fact(resolve_many, node, Lookups(answers, hosts or {}), params={"names": list(RIGHT)})


def four_nodes(**other: dict[str, list[str]]) -> list[FactRecord]:
    return [lookups_of(f"node{i}", **other.get(f"node{i}", {})) for i in range(4)]


PS = job(ps_mode=True, ps_server_endpoints=("node1:6170", "node2:6170"))


def test_equal_names_pass() -> None:
    assert statuses(judge(name_differs, job(), fleet(), facts(*four_nodes()))) == {"pass"}
    own = four_nodes(node2={"node2": ["127.0.1.1"]})
    assert statuses(judge(name_differs, job(), fleet(), facts(*own))) == {"pass"}


def test_a_different_address_on_one_node_and_its_source() -> None:
    seen = [*four_nodes()[:3], lookups_of("node3", {"node1": ["10.5.0.1"]}, node1=["10.5.0.1"])]
    found = one(judge(name_differs, job(), fleet(), facts(*seen)), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is Severity.WARNING
    assert "10.5.0.1" in found.message and "/etc/hosts" in found.message and "10.0.0.1" in found.message


def test_a_name_that_fails_or_loops_back_on_one_node() -> None:
    for answer, word in (([], "does not resolve"), (["127.0.0.1"], "is 127.0.0.1")):
        found = one(judge(name_differs, job(), fleet(), facts(*four_nodes(node0={"node2": answer}))), Status.FAIL)
        assert found.nodes == ("node0",) and word in found.message


def test_one_file_with_many_wrong_names_is_one_finding() -> None:
    seen = four_nodes(node0={"node1": [], "node2": [], "node3": []})
    assert (
        "node1, node2, node3 does not resolve"
        in one(judge(name_differs, job(), fleet(), facts(*seen)), Status.FAIL).message
    )


def test_rotating_addresses_have_one_in_common() -> None:
    turns = four_nodes(node0={"node1": ["10.0.0.1", "10.8.0.1"]}, node1={"node1": ["10.8.0.1", "10.0.0.1"]})
    assert statuses(judge(name_differs, job(), fleet(), facts(*turns))) == {"pass"}


def test_ssh_aliases_are_not_judged() -> None:
    nobody = [lookups_of(f"node{i}", **{name: [] for name in RIGHT}) for i in range(4)]
    assert statuses(judge(name_differs, job(), fleet(), facts(*nobody))) == {"pass"}


def test_endpoints_of_servers_are_errors_and_required() -> None:
    found = one(judge(name_differs, PS, fleet(), facts(*four_nodes(node0={"node2": []}))), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None
    assert all(request.required and request.because for request in plan(name_differs, PS, fleet()))
    assert not any(request.required for request in plan(name_differs, job(), fleet()))


def test_the_rendezvous_host_is_left_to_nam002() -> None:
    meeting = job(master_addr="node0", master_port=29500)
    assert all("node0" not in request.params["names"] for request in plan(name_differs, meeting, fleet()))


def test_in_large_fleets_each_node_looks_up_some_names() -> None:
    wanted = plan(name_differs, job(), fleet(500))
    assert len(wanted) == 500 and {len(request.params["names"]) for request in wanted} == {16}
    assert sum("node7" in request.params["names"] for request in wanted) == 16
    assert {len(request.params["names"]) for request in plan(name_differs, job(), fleet(2000))} == {4}


def test_unknown_without_facts() -> None:
    blind = facts(fact(resolve_many, "node0", TIMEOUT), fact(identity, "node0", TIMEOUT))
    for check in (name_differs, two_names_of_one_machine, slow_lookups):
        assert statuses(judge(check, job(), fleet(2), blind)) == {"unknown"}
        assert statuses(judge(check, job(), local_fleet(2), blind)) == {"not-applicable"}
        assert plan(check, job(), local_fleet(2)) == [] and plan(check, job(), fleet(1)) == []


def identity_of(name: str, **other: str) -> Identity:
    usual = {
        "fqdn": f"{name}.cluster",
        "machine_id": f"m-{name}",
        "boot_id": f"b-{name}",
        "place": f"b-{name} net pid",
    }
    return Identity(name, **{**usual, **other})  # type: ignore[arg-type]


def machines(*found: Identity) -> list[FactRecord]:
    return [fact(identity, f"node{i}", item) for i, item in enumerate(found)]


def test_two_names_of_one_machine() -> None:
    found = one(
        judge(
            two_names_of_one_machine,
            job(),
            fleet(3),
            facts(*machines(identity_of("a"), identity_of("b"), identity_of("a"))),
        ),
        Status.FAIL,
    )
    assert found.nodes == ("node0", "node2") and found.severity is None and "one machine, a" in found.message


def test_pods_of_one_machine_are_different_nodes() -> None:
    pods = [identity_of(f"pod{i}", boot_id="same", place=f"same net{i} pid{i}", machine_id="same") for i in range(3)]
    assert statuses(judge(two_names_of_one_machine, job(), fleet(3), facts(*machines(*pods)))) == {"pass"}
    hidden = [identity_of(f"n{i}", place="") for i in range(2)]
    assert statuses(judge(two_names_of_one_machine, job(), fleet(2), facts(*machines(*hidden)))) == {"pass"}


def test_cloned_images_are_a_warning() -> None:
    clones = [identity_of("a", machine_id="same"), identity_of("b", machine_id="same"), identity_of("c")]
    found = one(judge(two_names_of_one_machine, job(), fleet(3), facts(*machines(*clones))), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity is Severity.INFO and "machine id" in found.message
    named = [replace(identity_of(x), hostname="localhost") for x in "ab"]
    found = one(judge(two_names_of_one_machine, job(), fleet(2), facts(*machines(*named))), Status.FAIL)
    assert found.severity is Severity.WARNING and "the same host name, localhost" in found.message


C10D = job(rendezvous_backend="c10d", rendezvous_endpoint="10.0.0.0:29400")


def published_lookup(node: str, name: str, *addresses: str) -> FactRecord:
    answer = Lookup(name, list(addresses), "" if addresses else "unresolved")
    return fact(resolve, node, answer, params={"name": name})


def test_torchrun_publishes_the_first_name_in_order() -> None:
    seen = facts(*machines(identity_of("c"), identity_of("a"), identity_of("b")))
    wanted = plan(published_name, C10D, fleet(3), seen)
    assert [(request.node, request.params["name"]) for request in wanted] == [
        ("node0", "a.cluster"),
        ("node2", "a.cluster"),
    ]
    assert all(request.required for request in wanted)


def test_a_published_name_that_a_peer_does_not_know() -> None:
    good = published_lookup("node0", "a.cluster", "10.0.0.1")
    seen = facts(
        *machines(identity_of("c"), identity_of("a"), identity_of("b")), good, published_lookup("node2", "a.cluster")
    )
    found = one(judge(published_name, C10D, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "a.cluster" in found.message and "--local-addr" in found.remedy
    seen = facts(
        *machines(identity_of("c"), identity_of("a"), identity_of("b")),
        good,
        published_lookup("node2", "a.cluster", "10.0.0.1"),
    )
    assert statuses(judge(published_name, C10D, fleet(3), seen)) == {"pass"}


def test_a_node_whose_full_name_is_localhost() -> None:
    seen = facts(*machines(identity_of("n0"), identity_of("n1", fqdn="localhost")))
    assert plan(published_name, C10D, fleet(2), seen) == []
    found = one(judge(published_name, C10D, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "would connect to itself" in found.message


def test_the_published_name_is_requested_only_for_torchrun() -> None:
    seen = facts(*machines(identity_of("a"), identity_of("b")))
    static = job(master_addr="node0", master_port=29500)
    told = job(rendezvous_backend="c10d", rendezvous_endpoint="10.0.0.0:29400", local_addr="10.0.0.1")
    assert plan(published_name, static, fleet(2), seen) == [] == plan(published_name, told, fleet(2), seen)
    assert statuses(judge(published_name, static, fleet(2), seen)) == {"not-applicable"}
    assert statuses(judge(published_name, told, fleet(2), seen)) == {"not-applicable"}
    some = facts(*machines(identity_of("a"), identity_of("b", fqdn="")))
    assert statuses(judge(published_name, C10D, fleet(2), some)) == {"unknown"}
    late = facts(
        *machines(identity_of("a"), identity_of("b")), fact(resolve, "node1", TIMEOUT, params={"name": "a.cluster"})
    )
    assert one(judge(published_name, C10D, fleet(2), late), Status.UNKNOWN).required


def test_slow_lookups() -> None:
    slow = Lookups([Lookup("node1", ["10.0.0.1"], took_s=2.4), Lookup("node2", ["10.0.0.2"], took_s=0.01)])
    quick = Lookups([Lookup("node1", ["10.0.0.1"], took_s=0.01)])
    seen = facts(fact(resolve_many, "node0", quick), fact(resolve_many, "node1", slow))
    found = one(judge(slow_lookups, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "2.4 s" in found.message
    reverse = [fact(identity, "node0", replace(identity_of("a"), fqdn_took_s=2.0)), fact(resolve_many, "node0", quick)]
    assert one(judge(slow_lookups, job(), fleet(2), facts(*reverse)), Status.FAIL).nodes == ("node0",)
    assert statuses(judge(slow_lookups, job(), fleet(2), facts(fact(resolve_many, "node0", quick)))) == {"pass"}


def test_gloo_takes_the_first_address_that_the_node_has() -> None:
    stale = Lookup("node1", ["10.5.0.1"], own=True, bound="")
    second = Lookup("node0", ["10.5.0.9", "10.0.0.1"], own=True, bound="10.0.0.1")
    seen = facts(fact(resolve, "node0", second), fact(resolve, "node1", stale))
    found = one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "10.5.0.1, which is not an address of this node" in found.message

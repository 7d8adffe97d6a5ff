"""Names that differ between nodes, two names of one machine, the name torchrun publishes, slow look-ups."""

from __future__ import annotations

from dataclasses import replace

from preflight.outcome import Severity, Status
from preflight.recording import FactRecord
from preflight_checks.network.names import hostname_loopback
from preflight_checks.network.peer_names import names_differ, one_machine_twice, published_name, slow_lookups
from preflight_checks.probes.identity import Identity, identity
from preflight_checks.probes.names import Lookup, Lookups, resolve, resolve_many

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, plan, stand_ins, statuses

#: Where every name is known; node0 ... node3 are 10.0.0.0 ... 10.0.0.3.
RIGHT = {f"node{i}": [f"10.0.0.{i}"] for i in range(4)}


def asked(node: str, hosts: dict[str, list[str]] | None = None, **other: list[str]) -> FactRecord:
    """What a node answers for the names of all nodes; an empty list stands for a name it cannot resolve."""
    answers = [
        Lookup(name, addresses, "" if addresses else "unresolved") for name, addresses in {**RIGHT, **other}.items()
    ]
    return fact(resolve_many, node, Lookups(answers, hosts or {}), params={"names": list(RIGHT)})


def four(**other: dict[str, list[str]]) -> list[FactRecord]:
    return [asked(f"node{i}", **other.get(f"node{i}", {})) for i in range(4)]


PS = job(ps_mode=True, ps_server_endpoints=("node1:6170", "node2:6170"))


def test_names_that_are_alike() -> None:
    assert statuses(judge(names_differ, job(), fleet(), facts(*four()))) == {"pass"}
    own = four(node2={"node2": ["127.0.1.1"]})
    assert statuses(judge(names_differ, job(), fleet(), facts(*own))) == {"pass"}


def test_another_address_on_one_node_and_where_it_comes_from() -> None:
    seen = [*four()[:3], asked("node3", {"node1": ["10.5.0.1"]}, node1=["10.5.0.1"])]
    found = one(judge(names_differ, job(), fleet(), facts(*seen)), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is Severity.WARNING
    assert "10.5.0.1" in found.message and "/etc/hosts" in found.message and "10.0.0.1" in found.message


def test_a_name_that_one_node_cannot_resolve_or_takes_for_itself() -> None:
    for answer, word in (([], "does not resolve"), (["127.0.0.1"], "is 127.0.0.1")):
        found = one(judge(names_differ, job(), fleet(), facts(*four(node0={"node2": answer}))), Status.FAIL)
        assert found.nodes == ("node0",) and word in found.message


def test_one_file_with_many_wrong_names_is_one_finding() -> None:
    seen = four(node0={"node1": [], "node2": [], "node3": []})
    assert (
        "node1, node2, node3 does not resolve"
        in one(judge(names_differ, job(), fleet(), facts(*seen)), Status.FAIL).message
    )


def test_addresses_that_come_in_turns_have_one_in_common() -> None:
    turns = four(node0={"node1": ["10.0.0.1", "10.8.0.1"]}, node1={"node1": ["10.8.0.1", "10.0.0.1"]})
    assert statuses(judge(names_differ, job(), fleet(), facts(*turns))) == {"pass"}


def test_aliases_of_ssh_are_no_names() -> None:
    nobody = [asked(f"node{i}", **{name: [] for name in RIGHT}) for i in range(4)]
    assert statuses(judge(names_differ, job(), fleet(), facts(*nobody))) == {"pass"}


def test_endpoints_of_servers_are_errors_and_required() -> None:
    found = one(judge(names_differ, PS, fleet(), facts(*four(node0={"node2": []}))), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None
    assert all(request.required and request.because for request in plan(names_differ, PS, fleet()))
    assert not any(request.required for request in plan(names_differ, job(), fleet()))


def test_the_rendezvous_host_is_left_to_its_own_check() -> None:
    meeting = job(master_addr="node0", master_port=29500)
    assert all("node0" not in request.params["names"] for request in plan(names_differ, meeting, fleet()))


def test_many_nodes_are_asked_for_some_names_each() -> None:
    wanted = plan(names_differ, job(), fleet(500))
    assert len(wanted) == 500 and {len(request.params["names"]) for request in wanted} == {16}
    assert sum("node7" in request.params["names"] for request in wanted) == 16
    assert {len(request.params["names"]) for request in plan(names_differ, job(), fleet(2000))} == {4}


def test_what_cannot_be_seen_is_unknown() -> None:
    blind = facts(fact(resolve_many, "node0", TIMEOUT), fact(identity, "node0", TIMEOUT))
    for check in (names_differ, one_machine_twice, slow_lookups):
        assert statuses(judge(check, job(), fleet(2), blind)) == {"unknown"}
        assert statuses(judge(check, job(), stand_ins(2), blind)) == {"not-applicable"}
        assert plan(check, job(), stand_ins(2)) == [] and plan(check, job(), fleet(1)) == []


def who(name: str, **other: str) -> Identity:
    usual = {"fqdn": f"{name}.cluster", "machine_id": f"m-{name}", "boot_id": f"b-{name}", "place": f"b-{name} net pid"}
    return Identity(name, **{**usual, **other})  # type: ignore[arg-type]


def machines(*found: Identity) -> list[FactRecord]:
    return [fact(identity, f"node{i}", item) for i, item in enumerate(found)]


def test_two_names_of_one_machine() -> None:
    found = one(judge(one_machine_twice, job(), fleet(3), facts(*machines(who("a"), who("b"), who("a")))), Status.FAIL)
    assert found.nodes == ("node0", "node2") and found.severity is None and "one machine, a" in found.message


def test_pods_of_one_machine_are_different_nodes() -> None:
    pods = [who(f"pod{i}", boot_id="same", place=f"same net{i} pid{i}", machine_id="same") for i in range(3)]
    assert statuses(judge(one_machine_twice, job(), fleet(3), facts(*machines(*pods)))) == {"pass"}
    hidden = [who(f"n{i}", place="") for i in range(2)]
    assert statuses(judge(one_machine_twice, job(), fleet(2), facts(*machines(*hidden)))) == {"pass"}


def test_cloned_images_are_a_warning() -> None:
    clones = [who("a", machine_id="same"), who("b", machine_id="same"), who("c")]
    found = one(judge(one_machine_twice, job(), fleet(3), facts(*machines(*clones))), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity is Severity.INFO and "machine id" in found.message
    named = [replace(who(x), hostname="localhost") for x in "ab"]
    found = one(judge(one_machine_twice, job(), fleet(2), facts(*machines(*named))), Status.FAIL)
    assert found.severity is Severity.WARNING and "one host name, localhost" in found.message


C10D = job(rendezvous_backend="c10d", rendezvous_endpoint="10.0.0.0:29400")


def published(node: str, name: str, *addresses: str) -> FactRecord:
    answer = Lookup(name, list(addresses), "" if addresses else "unresolved")
    return fact(resolve, node, answer, params={"name": name})


def test_torchrun_publishes_the_first_name_in_order() -> None:
    seen = facts(*machines(who("c"), who("a"), who("b")))
    wanted = plan(published_name, C10D, fleet(3), seen)
    assert [(request.node, request.params["name"]) for request in wanted] == [
        ("node0", "a.cluster"),
        ("node2", "a.cluster"),
    ]
    assert all(request.required for request in wanted)


def test_a_published_name_that_a_peer_does_not_know() -> None:
    good = published("node0", "a.cluster", "10.0.0.1")
    seen = facts(*machines(who("c"), who("a"), who("b")), good, published("node2", "a.cluster"))
    found = one(judge(published_name, C10D, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "a.cluster" in found.message and "--local-addr" in found.remedy
    seen = facts(*machines(who("c"), who("a"), who("b")), good, published("node2", "a.cluster", "10.0.0.1"))
    assert statuses(judge(published_name, C10D, fleet(3), seen)) == {"pass"}


def test_a_node_that_takes_itself_for_localhost() -> None:
    seen = facts(*machines(who("n0"), who("n1", fqdn="localhost")))
    assert plan(published_name, C10D, fleet(2), seen) == []
    found = one(judge(published_name, C10D, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "would dial itself" in found.message


def test_the_published_name_is_asked_for_only_where_torchrun_finds_it() -> None:
    seen = facts(*machines(who("a"), who("b")))
    static = job(master_addr="node0", master_port=29500)
    told = job(rendezvous_backend="c10d", rendezvous_endpoint="10.0.0.0:29400", local_addr="10.0.0.1")
    assert plan(published_name, static, fleet(2), seen) == [] == plan(published_name, told, fleet(2), seen)
    assert statuses(judge(published_name, static, fleet(2), seen)) == {"not-applicable"}
    assert statuses(judge(published_name, told, fleet(2), seen)) == {"not-applicable"}
    some = facts(*machines(who("a"), who("b", fqdn="")))
    assert statuses(judge(published_name, C10D, fleet(2), some)) == {"unknown"}
    late = facts(*machines(who("a"), who("b")), fact(resolve, "node1", TIMEOUT, params={"name": "a.cluster"}))
    assert one(judge(published_name, C10D, fleet(2), late), Status.UNKNOWN).required


def test_look_ups_that_take_seconds() -> None:
    slow = Lookups([Lookup("node1", ["10.0.0.1"], took_s=2.4), Lookup("node2", ["10.0.0.2"], took_s=0.01)])
    quick = Lookups([Lookup("node1", ["10.0.0.1"], took_s=0.01)])
    seen = facts(fact(resolve_many, "node0", quick), fact(resolve_many, "node1", slow))
    found = one(judge(slow_lookups, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "2.4 s" in found.message
    reverse = [fact(identity, "node0", replace(who("a"), fqdn_took_s=2.0)), fact(resolve_many, "node0", quick)]
    assert one(judge(slow_lookups, job(), fleet(2), facts(*reverse)), Status.FAIL).nodes == ("node0",)
    assert statuses(judge(slow_lookups, job(), fleet(2), facts(fact(resolve_many, "node0", quick)))) == {"pass"}


def test_gloo_takes_the_first_address_that_the_node_has() -> None:
    stale = Lookup("node1", ["10.5.0.1"], own=True, bound="")
    second = Lookup("node0", ["10.5.0.9", "10.0.0.1"], own=True, bound="10.0.0.1")
    seen = facts(fact(resolve, "node0", second), fact(resolve, "node1", stale))
    found = one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "10.5.0.1, not an address of this node" in found.message

"""Hostfiles: hosts, their slots, and invalid lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.hostnames import is_hostname, split_endpoint
from preflight.model.job import Claim, Known, NoteKind, Relation, Scope, Strength
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.line_files import HostfileSource
from preflight.sources.formats.tree import MemoryTree


def _file(text: str, path: str = "hostfile") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str, scope: Scope = Scope()) -> Reading:  # noqa: B008
    return HostfileSource().read(_file(text), MemoryTree({}), scope=scope, role="hostfile")


def _value(reading: Reading, quantity: str, relation: Relation = Relation.SETS) -> object:
    (claim,) = [c for c in reading.claims if c.quantity == quantity and c.relation is relation]
    assert isinstance(claim.value, Known)
    return claim.value.value


def _of(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def test_two_hosts_with_slots() -> None:
    reading = _read("# nodes\nworker-1 slots=8\n\n  worker-2   slots=8 # spare\n", Scope(launch="run.sh:3"))
    assert _value(reading, "hosts") == ("worker-1", "worker-2")
    assert _value(reading, "nodes") == 2
    assert _value(reading, "nodes", Relation.AT_MOST) == 2
    assert _value(reading, "world_size") == 16
    assert _value(reading, "processes_per_node") == 8
    first, second = _of(reading, "host_slots")
    assert first.scope == Scope(launch="run.sh:3", node="worker-1")
    assert (second.span.line, second.span.column, second.span.end_column) == (4, 3, 29)
    assert second.spelling == "worker-2   slots=8 # spare"
    assert all(claim.strength is Strength.CONFIG and claim.source == "hostfile" for claim in reading.claims)
    assert all(is_known(claim.quantity) for claim in reading.claims)
    (hosts,) = _of(reading, "hosts")
    assert (hosts.span.line, hosts.span.end_line) == (2, 4)
    assert reading.notes == ()


def test_unequal_slots_have_no_processes_per_node() -> None:
    reading = _read("a slots=8\nb slots=4\n")
    assert _value(reading, "world_size") == 12
    assert not _of(reading, "processes_per_node")


def test_a_repeated_host_keeps_both_claims() -> None:
    reading = _read("a slots=8\na slots=8\n")
    assert len(_of(reading, "host_slots")) == 2
    assert _value(reading, "hosts") == ("a", "a")
    assert _value(reading, "nodes") == 1
    assert not _of(reading, "processes_per_node")


def test_other_dialects() -> None:
    mpich = _read("node1:4\nnode2:4\n")
    assert _value(mpich, "world_size") == 8 and not mpich.notes
    bare = _read("10.0.0.1\n10.0.0.2 # second\n")
    assert _value(bare, "nodes") == 2 and not _of(bare, "world_size") and not bare.notes
    assert _value(_read("a slots=0\n"), "world_size") == 0
    assert _value(_read("a slots=4 max_slots=8\n"), "world_size") == 4


@pytest.mark.parametrize(
    "line",
    [
        "a slots=-1",
        "a slots = 8",
        "a slot=8",
        "a 8",
        "-oProxyCommand=x slots=8",
        "$(reboot) slots=8",
        "a;b slots=8",
        "user@a slots=8",
        "node[1-4] slots=8",
        "a slots=12345678901",
        "{{ host }}",
    ],
)
def test_a_bad_line_gives_a_note_and_no_claim(line: str) -> None:
    reading = _read(f"good slots=8\n  {line}\n")
    assert _value(reading, "hosts") == ("good",)
    (note,) = reading.notes
    assert note.kind is NoteKind.MALFORMED
    assert (note.span.line, note.span.column, note.span.end_column) == (2, 3, 3 + len(line))


def test_bare_lines_among_slots_are_noted() -> None:
    (note,) = _read("a slots=8\nb\n").notes
    assert note.span.line == 2 and "bad entry" in note.message


def test_an_empty_file() -> None:
    (note,) = _read("# nobody\n").notes
    assert note.kind is NoteKind.MALFORMED and "names no host" in note.message


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("hostfile", "a slots=8", True),
        ("conf/hostfile.txt", "a1\na2\n", True),
        ("my_hostfile", "a slots=1", True),
        ("hosts", "10.0.0.1\n", True),
        ("hosts.py", "a slots=8", False),
        ("hostfile", "this is prose and\nnothing like it\n", False),
        ("README", "a slots=8", False),
        ("hostfile", "", False),
    ],
)
def test_recognition(path: str, text: str, expected: bool) -> None:
    assert HostfileSource().recognises(_file(text, path)) is expected


@given(st.text(max_size=200))
def test_any_text_gives_claims_or_located_notes(text: str) -> None:
    reading = _read(text)
    assert reading.claims or reading.notes
    for claim in reading.claims:
        if claim.scope.node:
            assert is_hostname(claim.scope.node)


@pytest.mark.parametrize("name", ["a", "node-1", "n_1.cluster.local", "10.0.0.1", "::1", "fe80::1", "A.b."])
def test_host_names(name: str) -> None:
    assert is_hostname(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a-",
        "a b",
        "a;b",
        "$a",
        "a/b",
        "u@a",
        "a..b",
        "300.1.1.1",
        "1234",
        "é",
        "a" * 64,
        "::1%lo",
        "a\n",
    ],
)
def test_invalid_host_names(name: str) -> None:
    assert not is_hostname(name)


def test_endpoints() -> None:
    assert split_endpoint("a:1") == ("a", 1)
    assert split_endpoint("a") == ("a", None)
    assert split_endpoint("[::1]:29500") == ("::1", 29500)
    assert split_endpoint("::1") == ("::1", None)
    assert split_endpoint("a:b") is None
    assert split_endpoint("-a:1") is None

"""Recordings: what is saved is what is loaded, what is not ours is refused, and facts have the probe's type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import api
from preflight.errors import UsageError
from preflight.job import Job, Known, Launch, Note, NoteKind, OneOf, Plain, Reference, Suppression, Unresolved
from preflight.judgement import Verdict, failed, passed, unknown
from preflight.outcome import Severity
from preflight.recording import (
    Configuration,
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    Observed,
    Recording,
    Unavailable,
    load,
    save,
)
from preflight.report import to_json
from preflight.request import Request, probe_name
from tests.building import (
    a_check,
    a_recording,
    a_rule,
    assert_follows_schema,
    claim,
    job,
    judged,
    reached,
    seen,
    span,
)

# --- round trip ---

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
PLAINS: st.SearchStrategy[Plain] = SCALARS | st.lists(SCALARS, max_size=3).map(tuple)
VALUES = (
    st.builds(Known, PLAINS)
    | st.builds(OneOf, st.lists(PLAINS, min_size=2, max_size=3).map(tuple))
    | st.builds(Unresolved, TEXT)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def full_recording(value: Any = None, fact: Any = None) -> Recording:
    """A recording in which every field says something."""
    stated = claim("nodes", value if value is not None else Known(2))
    subject = replace(
        job(stated, replace(stated, because=(stated,))),
        launches=(Launch("run.sh:3", "torchrun", span(), ("srun",), "train.py", ("--lr", None), "$X = 1"),),
        notes=(Note(NoteKind.TEMPLATE, "filled in later", span("ds.json")),),
        references=(Reference("train.py", "script", span()),),
        suppressions=(Suppression("run.sh", 3, ("TST001",), "on purpose", span()),),
    )
    request = Request("m:f", "a", {"port": 29500}, peer="b", because=(stated,), required=True)
    return a_recording(
        subject,
        verb="check",
        configuration=Configuration("gate", ("NET",), ("TST001",), "warning", True),
        nodes=reached("a", silent=["b"]),
        stages=("node",),
        skipped=[("smoke", "b is silent")],
        facts=(
            FactRecord(request, fact, None, 0.5, 0.75, "the job"),
            FactRecord(replace(request, node="b"), None, Unavailable("timeout", "no answer", "", 7)),
        ),
        events=(EventRecord(request.key, "a", 1.5, "child", {"phase": fact}),),
        interrupted=130,
    )


@given(VALUES, JSON)
def test_what_is_saved_is_what_is_loaded(value: Any, fact: Any) -> None:
    recording = full_recording(value, fact)
    written = save(recording)
    loaded = load(written)
    assert loaded == recording
    # Equal is not enough: 1, 1.0 and True are equal and are not the same claim.
    assert save(loaded) == written


def test_a_recording_follows_the_committed_schema() -> None:
    assert_follows_schema(save(full_recording(fact={"a": [1, None]})), "recording")


def test_text_that_utf8_cannot_hold_is_saved_all_the_same() -> None:
    loaded = load(save(full_recording(Known("half of \ud83d"))))
    assert loaded.jobs[0].claims[0].value == Known("half of ?")


def test_no_character_that_a_terminal_obeys_stands_in_a_document() -> None:
    hostile = "\x1b[2J\x9b2J\u202egnp\u200b"
    recording = full_recording(Known(hostile), {"name": hostile})
    for document in (save(recording), to_json(judged(recording))):
        assert all(character.isprintable() or character == "\n" for character in document.decode())
        assert load(save(recording)).jobs[0].claims[0].value == Known(hostile)


# --- what is no recording ---


def broken(change: Any) -> bytes:
    """A saved recording with one thing in it changed."""
    document = json.loads(save(full_recording()))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "EOF"),
        (save(full_recording())[:2000], "line"),
        (b'{"hello": 1}', "jobs: Field required"),
        (b"[1, 2]", "an object"),
        (b"#!/bin/sh\n", "line 1 column 1"),
        (b"\xff\xfe\x00", "line 1"),
        (b'{"jobs": ' + b"[" * 100_000, "recursion"),
        (broken(lambda d: d.update(schema_version=2)), "schema_version: Input should be 1"),
        (broken(lambda d: d["facts"][0]["request"].pop("node")), "facts[0].request.node: Field required"),
        (broken(lambda d: d["jobs"][0]["claims"][1].update(strength="big")), "jobs[0].claims[1].strength"),
        (broken(lambda d: d["configuration"].update(fail_on="never")), "there is no severity 'never'"),
        (broken(lambda d: d.update(interrupted=77)), "130 or 143"),
        (to_json(judged(a_recording(job()))), "a report; `preflight check --save"),
    ],
    ids=[
        "empty",
        "truncated",
        "other-object",
        "list",
        "script",
        "binary",
        "deep",
        "newer",
        "missing",
        "wrong-type",
        "severity",
        "exit-code",
        "report",
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_the_place(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        api.judge(path)
    message = str(refused.value)
    assert message.startswith(f"{path} is no recording")
    assert says in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        api.judge(tmp_path / "saved.json")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        api.judge(tmp_path)


# --- facts ---


@dataclass(frozen=True)
class Gpu:
    """What the probe below observes."""

    name: str
    memory_bytes: int
    clocks: tuple[int, ...] = ()


def gpus(index: int = 0) -> tuple[Gpu, ...]:
    """A probe; never run here."""
    raise NotImplementedError


def fact(node: str, value: Any, problem: Unavailable | None = None) -> FactRecord:
    """An observation of `gpus`."""
    return FactRecord(Request(probe_name(gpus), node), value, problem)


H200 = {"name": "H200", "memory_bytes": 141, "clocks": [1980, 3201]}


def test_a_fact_has_the_type_that_its_probe_returns() -> None:
    facts = Facts((fact("a", [H200]),))
    assert facts.of(gpus, "a") == Observed((Gpu("H200", 141, (1980, 3201)),))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"name": "H200"}], "[0].memory_bytes: Field required"),
        ([{**H200, "memory_bytes": "much"}], "[0].memory_bytes: Input should be a valid integer"),
        ("H200", "valid tuple"),
        (None, "valid tuple"),
        ([None] * 9, "and 6 more"),
    ],
)
def test_a_fact_of_another_shape_is_unavailable(value: Any, says: str) -> None:
    found = Facts((fact("a", value),)).of(gpus, "a")
    assert isinstance(found, Unavailable)
    assert found.kind == "crashed"
    assert says in found.reason
    assert "\n" not in found.reason


def test_what_nobody_asked_for_and_what_could_not_be_had() -> None:
    late = Unavailable("timeout", "no answer within 5 s")
    facts = Facts((fact("b", None, late), fact("a", [])))
    assert facts.of(gpus, "b") is late
    assert facts.of(gpus, "c") == Unavailable("blocked", "it was not asked for")
    assert facts.observed(gpus) == {"a": ()}


def test_facts_come_in_the_same_order_however_answers_arrived() -> None:
    records = tuple(fact(name, []) for name in ("b", "c", "a"))
    assert [s.node for s in Facts(records).each(gpus)] == [s.node for s in Facts(records[::-1]).each(gpus)]


def test_events_of_one_request() -> None:
    events = (EventRecord("k", "a", 0.5, "child", {}), EventRecord("other", "a", 0.6, "child", {}))
    assert Facts((), events).events("k") == events[:1]
    assert Facts((), events).events() == events


# --- the same verdict again ---


def test_judging_a_saved_recording_gives_the_same_report() -> None:
    def looks(subject: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        for item in facts.each(gpus):
            if isinstance(item.fact, Unavailable):
                yield unknown(item.node, item.fact.reason, required=True)
            elif not item.fact.value:
                yield failed(item.node, "no GPU", at=seen(item.node), nodes=[item.node], remedy="Load the driver.")
            else:
                yield passed(item.node)

    recording = a_recording(
        job(claim("nodes", 3)),
        verb="check",
        nodes=reached("a", "b", "c", silent=["d"]),
        stages=("node",),
        facts=(
            fact("c", []),
            fact("b", [H200]),
            fact("a", "nonsense"),
            fact("d", None, Unavailable("timeout", "late")),
        ),
    )
    rules = [a_rule(lambda subject: [failed("x", "wrong", at=span(), remedy="-")], severity=Severity.WARNING)]
    live = judged(recording, rules, [a_check(looks)])
    again = judged(load(save(recording)), rules, [a_check(looks)])
    assert to_json(again) == to_json(live)
    assert [finding.nodes for finding in live.findings] == [("c",), ()]
    assert len(live.coverage.not_told) == 2

"""Recordings: a saved recording loads unchanged, other files are rejected, and facts have the probe's type."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.engine.report import to_json
from preflight.model import requests as typing_facts
from preflight.model.findings import Severity
from preflight.model.job import Job, Known, Launch, Note, NoteKind, OneOf, Plain, Reference, Suppression, Unresolved
from preflight.model.recording import (
    Configuration,
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    Observed,
    Recording,
    Unavailable,
)
from preflight.model.recording_io import load, save
from preflight.model.requests import Answers, LazyJson, Request, probe_name
from preflight.plugins.authoring import Verdict, failed, passed, unknown
from tests.builders import (
    assert_follows_schema,
    claim,
    job,
    judged,
    make_check,
    make_recording,
    make_rule,
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
    """A recording with a value in every field."""
    stated = claim("nodes", value if value is not None else Known(2))
    subject = replace(
        job(stated, replace(stated, because=(stated,))),
        launches=(Launch("run.sh:3", "torchrun", span(), ("srun",), "train.py", ("--lr", None), "$X = 1"),),
        notes=(Note(NoteKind.TEMPLATE, "filled in later", span("ds.json")),),
        references=(Reference("train.py", "script", span()),),
        suppressions=(Suppression("run.sh", 3, ("TST001",), "on purpose", span()),),
    )
    request = Request("m:f", "a", {"port": 29500}, peers=("b",), because=(stated,), required=True)
    return make_recording(
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


@settings(deadline=None)
@given(VALUES, JSON)
def test_a_saved_recording_is_loaded_unchanged(value: Any, fact: Any) -> None:
    recording = full_recording(value, fact)
    written = save(recording)
    loaded = load(written)
    assert loaded == recording
    # Equal is not enough: 1, 1.0 and True are equal and are not the same claim.
    assert save(loaded) == written


def test_a_recording_may_be_compressed() -> None:
    recording = full_recording(fact={"a": [1, None]})
    packed = save(recording, compressed=True)
    assert load(packed) == recording
    assert save(recording, compressed=True) == packed and len(packed) < len(save(recording))


def test_shared_data_of_facts_is_stored_once() -> None:
    claims = tuple(claim("nodes", Known(n)) for n in (2, True, 1))
    facts = tuple(
        FactRecord(Request("m:f", f"n{n}", {"port": 1}, because=claims), {"same": n % 2}, None, 0.1, 0.2, "the job")
        for n in range(1000)
    )
    written = save(make_recording(job(), verb="check", facts=facts))
    document = json.loads(written)
    tables = ("claims", "params", "values", "facts")
    assert {name: len(document[name]) for name in tables} == {"claims": 3, "params": 1, "values": 2, "facts": 1}
    assert len(document["facts"][0]["nodes"]) == 1000
    assert len(written) < 40 * 1000
    loaded = load(written)
    assert loaded.facts == facts
    # 1 equals True, but neither replaced the other.
    assert [repr(one.value) for one in loaded.facts[7].request.because] == [repr(one.value) for one in claims]
    assert loaded.facts[0].value is loaded.facts[998].value


@pytest.mark.parametrize("rewritten", [False, True], ids=["as-written", "rewritten"])
def test_values_are_parsed_only_when_judged(rewritten: bool) -> None:
    value = [{"name": 'says\\n"values": [\\n in "quotes",', "memory_bytes": 80}]
    records = (fact("a", value), fact("b", None, Unavailable("timeout", "no answer")), fact("c", [*value, *value]))
    recording = make_recording(job(), verb="check", facts=records)
    written = save(recording)
    if rewritten:
        written = json.dumps(json.loads(written)).encode()
    lazy, eager = load(written, to_judge=True), load(written)
    assert eager == recording
    assert isinstance(lazy.facts, Answers)
    (series,) = lazy.facts.series
    assert [isinstance(value, LazyJson) for value in series.values] == [not rewritten, False, not rewritten]
    assert lazy.facts == eager.facts and lazy.facts[-1] == lazy.facts[2] == eager.facts[2]
    assert lazy.facts[1:] == eager.facts[1:]
    with pytest.raises(IndexError):
        lazy.facts[3]
    assert Facts(lazy.facts).observed(gpus) == Facts(eager.facts).observed(gpus)
    assert save(lazy) == save(recording)


def test_equal_facts_of_many_nodes_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[Any] = []
    adapter = typing_facts._adapter(gpus)

    class Counting:
        def validate_python(self, value: Any) -> Any:
            validated.append(value)
            return adapter.validate_python(value)

    monkeypatch.setattr(typing_facts, "_adapter", lambda probe: Counting())
    same = [{"name": "H100", "memory_bytes": 80}]
    records = tuple(fact(f"n{n}", same if n % 100 else [{"name": "A100", "memory_bytes": n}]) for n in range(1000))
    facts = Facts(load(save(make_recording(job(), verb="check", facts=records))).facts)
    for _ in range(3):
        assert len(facts.observed(gpus)) == 1000
    assert len(validated) == 11


def test_a_recording_follows_the_committed_schema() -> None:
    assert_follows_schema(save(full_recording(fact={"a": [1, None]})), "recording")


def test_text_that_utf8_cannot_encode_is_saved() -> None:
    loaded = load(save(full_recording(Known("half of \ud83d"))))
    assert loaded.jobs[0].claims[0].value == Known("half of ?")


def test_documents_have_no_control_characters() -> None:
    hostile = "\x1b[2J\x9b2J\u202egnp\u200b"
    recording = full_recording(Known(hostile), {"name": hostile})
    for document in (save(recording), to_json(judged(recording))):
        assert all(character.isprintable() or character == "\n" for character in document.decode())
        assert load(save(recording)).jobs[0].claims[0].value == Known(hostile)


# --- files that are not recordings ---


def broken(change: Any) -> bytes:
    """A saved recording with one change."""
    document = json.loads(save(full_recording()))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "EOF"),
        (save(full_recording())[:2000], "line"),
        (b'{"hello": 1}', "jobs: Field required"),
        (b"[1, 2]", "an object"),
        (b"#!/bin/sh\n", "line 1 column 1"),
        (b"\xff\xfe\x00", "line 1"),
        (b'{"jobs": ' + b"[" * 100_000, "levels deep"),
        (broken(lambda d: d.update(schema_version=5)), "schema_version is 5; this version of preflight reads"),
        (broken(lambda d: d.update(schema_version=3)), "schema_version is 3; this version of preflight reads"),
        (broken(lambda d: d["facts"][0].pop("nodes")), "facts[0].nodes: Field required"),
        (broken(lambda d: d["jobs"][0]["claims"][1].update(strength="big")), "jobs[0].claims[1].strength"),
        (broken(lambda d: d["configuration"].update(fail_on="never")), "'never' is not a valid severity"),
        (broken(lambda d: d.update(interrupted=77)), "130, 143"),
        (broken(lambda d: d["facts"][1].update(params=[2])), "facts[1].params: row 2 of params does not exist (rows: "),
        (broken(lambda d: d["facts"][0].update(values=[-1])), "facts[0].values: row -1 of values does not exist"),
        (broken(lambda d: d["facts"][0].update(because=[9])), "facts[0].because: row 9 of claims does not exist"),
        (broken(lambda d: d["facts"][0].update(started_s=[])), "facts[0].started_s: it has 0 entries for 1 nodes"),
        (
            broken(lambda d: d["facts"][1]["unavailable"].update({"1": {"kind": "", "reason": ""}})),
            "row 1 of",
        ),
        (save(full_recording(), compressed=True)[:300], "compressed, and cannot be unpacked"),
        (to_json(judged(make_recording(job()))), "preflight check --save"),
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
        "older",
        "missing",
        "wrong-type",
        "severity",
        "exit-code",
        "no-params",
        "no-value",
        "no-claim",
        "short-column",
        "no-row",
        "cut-short",
        "report",
    ],
)
def test_an_invalid_recording_is_rejected_with_the_location(data: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        api.judge(path)
    message = str(refused.value)
    assert message.startswith(f"{path} is ") and "not a recording" in message
    assert expected in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_a_missing_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        api.judge(tmp_path / "saved.json")
    with pytest.raises(UsageError, match="cannot be read: it is a directory, not a regular file"):
        api.judge(tmp_path)


# --- facts ---


@dataclass(frozen=True)
class Gpu:
    """The fact of the probe below."""

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
    ("value", "expected"),
    [
        ([{"name": "H200"}], "[0].memory_bytes: Field required"),
        ([{**H200, "memory_bytes": "much"}], "[0].memory_bytes: Input should be a valid integer"),
        ("H200", "valid tuple"),
        (None, "valid tuple"),
        ([None] * 9, "and 6 more"),
    ],
)
def test_a_fact_of_an_unexpected_type_is_unavailable(value: Any, expected: str) -> None:
    found = Facts((fact("a", value),)).of(gpus, "a")
    assert isinstance(found, Unavailable)
    assert found.kind == "crashed"
    assert expected in found.reason
    assert "\n" not in found.reason


def test_unrequested_and_unavailable_facts() -> None:
    late = Unavailable("timeout", "no answer within 5 s")
    facts = Facts((fact("b", None, late), fact("a", [])))
    assert facts.of(gpus, "b") is late
    assert facts.of(gpus, "c") == Unavailable("blocked", "it was not requested")
    assert facts.observed(gpus) == {"a": ()}


def test_missing_facts_and_groups_are_found_separately() -> None:
    late = Unavailable("timeout", "no answer within 5 s")
    grouped = FactRecord(Request("m:rank", "a", {"rank": 1}, group="smoke"), {"ok": True})
    other = FactRecord(Request("m:rank", "a", {"rank": 1}, group="again"), {"ok": False})
    facts = Facts((fact("b", None, late), grouped, fact("a", [H200]), other, fact("c", "nonsense")))
    assert [(node, why.kind) for node, why in facts.missing(gpus)] == [("b", "timeout"), ("c", "crashed")]
    assert list(facts.records_of(group="smoke")) == [grouped]
    assert len(list(facts.records_of())) == len(facts.records)


def test_requests_are_sorted_by_parameters_if_all_else_is_equal() -> None:
    records = tuple(
        FactRecord(Request(probe_name(gpus), node, {"index": index}), []) for node in "ba" for index in (2, 0, 1)
    )
    for loaded in (records, load(save(make_recording(job(), verb="check", facts=records)), to_judge=True).facts):
        order = [(one.node, one.params["index"], one.request.params) for one in Facts(loaded).each(gpus)]
        assert order == [(node, index, {"index": index}) for node in "ab" for index in range(3)]


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

    recording = make_recording(
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
    rules = [make_rule(lambda subject: [failed("x", "wrong", at=span(), remedy="-")], severity=Severity.WARNING)]
    live = judged(recording, rules, [make_check(looks)])
    again = judged(load(save(recording)), rules, [make_check(looks)])
    assert to_json(again) == to_json(live)
    assert [finding.nodes for finding in live.findings] == [("c",), ()]
    assert len(live.coverage.unknown_outcomes) == 2


def test_unpacking_allocates_only_the_needed_memory() -> None:
    # Allocating the largest recording at once would exceed a limit on memory.
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"schema_version|jobs|JSON"):
            load(gzip.compress(b"{}"))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()

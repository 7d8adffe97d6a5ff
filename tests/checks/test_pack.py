"""The pack as a whole: every check is listed, and an empty job is no fault."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import TypeAdapter

import preflight_checks
from preflight.config.resolve import jobs_in
from preflight.model.configuration import STAGES
from preflight.model.findings import Command, Severity, Status
from preflight.model.job import Job
from preflight.model.recording import FactRecord, Facts, Fleet, Node, NodeRecord, Unavailable
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Verdict, command, failed, passed, root_command
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from preflight_checks.plans import (
    combine_plans,
    has_several_nodes,
    on_every_node,
    only_if,
    runs_on_several_machines,
    table,
)
from preflight_checks.probes.machine import clock, identity
from preflight_checks.requirements import gpu_claims
from tests.builders import job as command_job
from tests.builders import judged, make_check, make_recording, make_rule, reached, seen, span
from tests.checks.check_builders import fleet, job


def test_the_pack_holds_every_check_once() -> None:
    found = set()
    for module in pkgutil.walk_packages(preflight_checks.__path__, "preflight_checks."):
        if not module.name.startswith("preflight_checks.probes"):
            # A check that a module imports from another is the same object.
            found |= {
                item.meta.id for item in vars(importlib.import_module(module.name)).values() if isinstance(item, Check)
            }
    assert sorted(check.meta.id for check in registry.checks()) == sorted(found)


def test_every_title_of_an_area_has_a_check() -> None:
    assert {check.meta.area for check in registry.checks()} == set(preflight_checks.PACK.areas)


def test_evidence_and_costs_are_listed_for_the_checks_of_the_pack_alone() -> None:
    ids = {check.meta.id for check in registry.checks()}
    assert set(table("evidence")) == ids
    costs = TypeAdapter(dict[Literal["cost", "without_root"], dict[str, str]]).validate_python(table("costs"))
    assert set(costs["cost"]) == ids and set(costs["without_root"]) < ids


def test_an_empty_job_has_no_finding() -> None:
    for check in registry.checks():
        for verdict in check.judge(job(), fleet(1), Facts()):
            assert verdict.status.value != "fail", check.meta.id
            # A smoke run that did not happen is the one thing that is always missed.
            assert not verdict.required or check.meta.id == "SMK001", check.meta.id


# Without any fact no check passes, and a check that requested facts is not `not-applicable`.


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: These judge whether nodes were reached, which is known without facts.
OF_NODES = {"NOD001", "NOD002"}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir() if (path / "good").is_dir()))
def test_no_check_passes_without_facts(example: str) -> None:
    (job,) = jobs_in([EXAMPLES / example / "good"], root=EXAMPLES)
    fleet = Fleet(tuple(NodeRecord(Node(f"node{index + 1}", index)) for index in range(2)))
    denied: dict[str, FactRecord] = {}
    asking: set[str] = set()
    for stage in STAGES:
        facts = Facts(tuple(denied.values()))
        for check in registry.checks():
            for request in check.plan(job, fleet, facts) if check.when == stage else ():
                asking.add(check.meta.id)
                denied[request.key] = FactRecord(request, None, Unavailable("denied", "permission denied"), 0.0, 1.0)
    facts = Facts(tuple(denied.values()))
    assert asking
    for check in registry.checks():
        if check.meta.id in OF_NODES:
            continue
        said = {verdict.status for verdict in check.judge(job, fleet, facts)}
        assert Status.PASS not in said, check.meta.id
        if check.meta.id in asking:
            assert said & {Status.UNKNOWN, Status.FAIL}, f"{check.meta.id} asked for facts, got none, and said {said}"


# Commands of findings: complete, quoted, and one line for all nodes.


ROOT = Path(__file__).resolve().parents[2]
#: A placeholder that a reader would have to replace: dots, angle brackets, a word in capitals.
HOLE = re.compile(r"\.\.\.|…|<[\w -]+>|(?<![\w$./{-])[A-Z][A-Z_]+(?![\w=}./-])")
#: Calls that make commands; a module without them is skipped.
MAKES = re.compile(r"\b(command|root_command|Command)\(")
#: Words in capitals that are not placeholders.
NAMES = {"ACCEPT", "INPUT"}


def written() -> list[tuple[str, str]]:
    """Every literal word of every command of a check or rule, with its location."""
    found: list[tuple[str, str]] = []
    for folder in ("checks/preflight_checks", "rules/preflight_rules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            # Each test process collects this; parsing all modules would take a tenth of its time.
            if not MAKES.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id in ("command", "root_command", "Command"):
                    words = [
                        part.value for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Constant)
                    ]
                    found.extend((f"{path.name}:{node.lineno}", word) for word in words if isinstance(word, str))
    return found


def test_many_checks_have_commands() -> None:
    assert len({place for place, _ in written()}) >= 20


def test_no_command_has_a_placeholder() -> None:
    for place, word in written():
        assert word in NAMES or not HOLE.search(word), f"{place}: {word!r} is to be replaced by somebody"


@pytest.mark.parametrize("word", ["<first node>", "--rdzv_endpoint=HOST", "...", "NAME", "ip link set DEV up"])
def test_placeholders_are_recognized(word: str) -> None:
    assert HOLE.search(word)


@pytest.mark.parametrize("path", ["/data/my set", "/tmp/$(rm -rf x)", "it's", "a;b", "~root", "*"])
def test_words_are_quoted(path: str) -> None:
    made = root_command("umount", "-l", path, on=["a", "b"])
    assert shlex.split(made.line) == ["sudo", "umount", "-l", path]
    assert made.nodes == ("a", "b")
    assert made.can_be_pasted


@pytest.mark.parametrize("path", ["/data/a\nrm -rf x", "/data/\x1b[2J", "/data/\u202e"])
def test_control_characters_are_removed(path: str) -> None:
    verdict = failed("x", "wrong", at=span(), remedy="-", run=[command("rm", path), command("true")])
    assert verdict.commands == (Command("true"),)


def test_a_page_gives_each_command_one_line() -> None:
    def judge(*_: object):  # type: ignore[no-untyped-def]
        for name in ("n1", "n2", "n4"):
            run = [root_command("modprobe", "nvidia_peermem", on=(name,)), command("ulimit", "-n", "65536")]
            yield failed(name, "no module", at=seen(name, "none"), nodes=(name,), remedy="Load it.", run=run)

    record = make_recording(command_job(), verb="check", nodes=reached("n1", "n2", "n3", "n4"), stages=("node",))
    lines = REPORTER.render(judged(record, [], [make_check(judge)]), Style(width=40)).decode().splitlines()
    at = lines.index("  fix: Load it.")
    assert lines[at + 1 : at + 5] == [
        "  run on n[1-2,4]:",
        "    sudo modprobe nvidia_peermem",
        "  run:",
        "    ulimit -n 65536",
    ]


def test_commands_are_never_wrapped() -> None:
    long = command("export", "no_proxy=" + ",".join(f"node{n}" for n in range(40)))
    rule = make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-", run=[long])], severity=Severity.WARNING)
    page = REPORTER.render(judged(make_recording(command_job()), [rule]), Style(width=40)).decode()
    assert f"\n    {long.line}\n" in page


# Shared plans: the requested nodes, the conditions, and judgements with a condition.


def test_every_reached_node_gets_every_probe() -> None:
    plan = on_every_node(clock, identity, params={"a": 1}, context=True, required=True, deadline_s=2.0)
    requests = list(plan(job(), fleet(2), Facts()))
    assert [(request.node, request.probe.rpartition(":")[2]) for request in requests] == [
        ("node0", "clock"),
        ("node0", "identity"),
        ("node1", "clock"),
        ("node1", "identity"),
    ]
    assert all(r.params == {"a": 1} and r.context and r.required and r.deadline_s == 2.0 for r in requests)


def test_a_condition_or_missing_claims_request_nothing() -> None:
    assert not list(on_every_node(clock, when=runs_on_several_machines)(job(), fleet(1), Facts()))
    assert not list(on_every_node(clock, needed_by=gpu_claims)(job(), fleet(2), Facts()))
    assert not list(combine_plans(on_every_node(clock), when=has_several_nodes)(job(), fleet(1), Facts()))
    needed = list(on_every_node(clock, needed_by=gpu_claims)(job(backend="nccl"), fleet(1), Facts()))
    assert needed[0].because


def test_a_judgement_is_asked_only_if_its_condition_holds() -> None:
    @only_if(runs_on_several_machines, "clocks", "the job runs on one machine")
    def judge(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        yield passed("clocks")

    assert [verdict.status for verdict in judge(job(), fleet(1), Facts())] == [Status.NOT_APPLICABLE]
    assert [verdict.status for verdict in judge(job(), fleet(2), Facts())] == [Status.PASS]

"""Checks that a site declares: the result of their command becomes pass, fault, warning or unknown, for each node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.agent.command import CommandResult, command
from preflight.cli import main
from preflight.commands.rule_docs import explanation
from preflight.model.configuration import Configuration
from preflight.model.findings import Severity, Status
from preflight.model.recording import Unavailable
from preflight.plugins.authoring import Check, Verdict
from preflight.plugins.site.checks import checks_of
from preflight.plugins.site.loader import parse
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, plan, statuses

EXAMPLE = Path(__file__).parents[3] / "examples" / "site-rules" / "site-rules.toml"
HEAD = """[[check]]
id = "ACM201"
name = "site-fault"
message = "Not so."
remedy = "Change it."
evidence = "https://example.org/"
severity = "error"
command = ["tool", "-a b"]
"""


def declared(more: str = "") -> Check:
    """The check that `HEAD` and these lines declare."""
    (found,) = checks_of(parse(HEAD + more, "site.toml").checks)
    return found


def ran(output: str = "", exit_code: int = 0, error: str = "") -> CommandResult:
    """A result of the command."""
    return CommandResult(("tool", "-a b"), exit_code, output, error, 0.1)


def judged(more: str, *answers: CommandResult | Unavailable) -> list[Verdict]:
    """The verdicts on these answers of node0, node1 ..."""
    check = declared(more)
    there = fleet(len(answers))
    requests = plan(check, job(), there)
    records = [fact(command, r.node, a, params=r.params) for r, a in zip(requests, answers, strict=True)]
    return list(check.judge(job(), there, facts(*records)))


def only_verdict(more: str, *answers: CommandResult | Unavailable) -> Verdict:
    """The only verdict."""
    (found,) = judged(more, *answers)
    return found


@pytest.mark.parametrize(
    ("more", "answer", "status"),
    [
        ("", ran(), "pass"),
        ("", ran(exit_code=1), "fail"),
        ("", ran(exit_code=-9), "fail"),
        ("exit = [0, 4]", ran(exit_code=4), "pass"),
        ("unknown-exit = [3]", ran(exit_code=3), "unknown"),
        ("output = '^up [0-9]+'", ran("x\nup 3\n"), "pass"),
        ("output = '^up [0-9]+$'", ran("up\n"), "fail"),
        ("value = [{ json = 'a.0.b', at-least = 3 }]", ran('{"a": [{"b": 3}]}'), "pass"),
        ("value = [{ json = 'a.0.b', at-least = 3 }]", ran('{"a": [{"b": 2}]}'), "fail"),
        ("value = [{ json = 'a', includes = ['x'] }]", ran('{"a": ["x", "y"]}'), "pass"),
        ("value = [{ json = 'a', includes = ['x'] }]", ran('{"a": ["y"]}'), "fail"),
        ("value = [{ json = 'a.b', required = true }]", ran('{"a": {}}'), "fail"),
        ("value = [{ json = 'a.b', forbidden = true }]", ran('{"a": {"b": 1}}'), "fail"),
        ("value = [{ json = 'a.b', forbidden = true }]", ran('{"a": {}}'), "pass"),
        ("value = [{ json = 'a.b', equals = 1 }]", ran('{"a": {}}'), "unknown"),
        ("value = [{ json = 'a', at-most = 1 }]", ran('{"a": "many"}'), "unknown"),
        ("value = [{ json = 'a', equals = 1 }]", ran("no json"), "unknown"),
        ("", Unavailable("missing", "`tool` was not found"), "unknown"),
        ("absent = 'fault'", Unavailable("missing", "`tool` was not found"), "fail"),
        ("absent = 'pass'", Unavailable("missing", "`tool` was not found"), "pass"),
        ("absent = 'pass'", TIMEOUT, "unknown"),
    ],
)
def test_outcomes_of_a_command(more: str, answer: CommandResult | Unavailable, status: str) -> None:
    assert only_verdict(more, answer).status.value == status


def test_one_fault_on_several_nodes_is_one_finding() -> None:
    found = judged("", ran(), ran("bad disk", 2), ran("bad disk", 2), ran("", 5))
    faults = [verdict for verdict in found if verdict.status is Status.FAIL]
    assert [verdict.nodes for verdict in faults] == [("node1", "node2"), ("node3",)]
    assert "exit code 2 (bad disk)" in faults[0].message and "`tool '-a b'`" in faults[0].message
    assert faults[0].evidence[0].command == "tool '-a b'"


def test_a_warning_is_milder() -> None:
    assert only_verdict("warning-exit = [1]", ran(exit_code=1)).severity is Severity.WARNING


def test_nodes_with_different_output_are_named() -> None:
    found = judged("agree = true", ran("5.1\n"), ran("5.1"), ran("5.2"))
    assert [(v.status, v.nodes) for v in found] == [(Status.FAIL, ("node2",)), (Status.PASS, ())]
    assert "5.2" in found[0].message and "as on most nodes: 5.1" in found[0].message
    assert only_verdict("agree = true", ran("5.1"), ran("5.2")).nodes == ("node0", "node1")


def test_a_missing_answer_makes_the_verdict_incomplete_by_default() -> None:
    assert only_verdict("", TIMEOUT).required
    assert not only_verdict("required = false", TIMEOUT).required


def test_first_node_requests_only_that_node() -> None:
    assert [request.node for request in plan(declared("nodes = 'first'"), job(), fleet(3))] == ["node0"]
    assert plan(declared("nodes = 'first'"), job(), fleet(3, node0="gone")) == []


def test_checks_of_one_command_with_different_deadlines_are_separate() -> None:
    one, other = declared(), declared("deadline = 9")
    assert plan(one, job(), fleet(1))[0].key != plan(other, job(), fleet(1))[0].key
    answered = facts(fact(command, "node0", ran(), params=plan(one, job(), fleet(1))[0].params))
    assert statuses(list(other.judge(job(), fleet(1), answered))) == {"not-applicable"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HEAD.replace('["tool", "-a b"]', '["df -h"]'),
            '8:11: `command` runs without a shell; write each word as its own string: ["df"',
        ),
        (HEAD.replace('["tool", "-a b"]', "[]"), "8:11: `command` is empty"),
        (HEAD.replace('["tool", "-a b"]', '"df"'), "`check.0.command` is expected to be a list"),
        (HEAD + "deadline = 0\n", "9:12: `deadline` must be more than 0"),
        (HEAD + "exit = [0, 300]\n", "9:12: 300 is not an exit code"),
        (HEAD + "warning-exit = [0]\n", "the exit code 0 has two meanings"),
        (HEAD + "output = '('\n", "9:10: it is not a valid regular expression"),
        (HEAD + "value = [{ json = 'a', equals = 1, at-mots = 2 }]\n", "did you mean `at-most`"),
        (HEAD + "value = [{ json = 'a' }]\n", "it has no test"),
        (HEAD + "value = [{ json = 'a..b', equals = 1 }]\n", "`json` must be the path of a value"),
        (HEAD + "shell = 'x'\n", "unknown key `shell`"),
        (HEAD.replace("ACM201", "NOD001"), "2:6: NOD001 is already used"),
        (HEAD + HEAD, "ACM201 is already used"),
    ],
)
def test_a_mistake_is_reported_with_its_location(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "site.toml")
    assert expected in str(raised.value)


def test_a_tree_cannot_define_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text(HEAD)
    (tmp_path / "preflight.toml").write_text('site-rules = ["site.toml"]\n')
    (tmp_path / "run.sh").write_text("torchrun train.py\n")
    assert main.run(["check", str(tmp_path / "run.sh"), "--on", "local", "--until", "node"]) == 2
    assert "only a configuration given with --config may name site rules" in capfd.readouterr().err


def test_the_example_runs_and_is_judged_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text("torchrun --standalone train.py\n")
    saved = tmp_path / "recording.json"
    words = ["--select", "ACM201,ACM202,ACM203", "-o", "json"]
    options = ["--on", "local", "--until", "node", "--site-rules", str(EXAMPLE), "--save", str(saved)]
    code = main.run(["check", str(tmp_path / "run.sh"), *options, *words])
    report = json.loads(capfd.readouterr().out)
    assert {o["id"]: o["status"] for o in report["outcomes"]} == {"ACM201": "fail", "ACM202": "pass", "ACM203": "pass"}
    assert code == 1
    again = api.judge(saved)
    assert [f.message for f in again.findings] == [f["message"] for f in report["findings"]]


def test_lint_runs_none_of_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text("torchrun --standalone train.py\n")
    ran_it = tmp_path / "ran"
    (tmp_path / "site.toml").write_text(HEAD.replace('["tool", "-a b"]', f'["touch", "{ran_it}"]'))
    main.run(["lint", str(tmp_path / "run.sh"), "--site-rules", str(tmp_path / "site.toml")])
    assert not ran_it.exists()


def test_it_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(HEAD + "value = [{ json = 'a.b', at-least = 3 }]\n")
    said = explanation("ACM201", [file])
    assert "`tool '-a b'` on every node" in said and "a.b in the JSON it prints is at least 3" in said
    assert "cost on a node: runs `tool '-a b'`, for at most 5 s" in said


def test_a_recording_keeps_them() -> None:
    from preflight.model.recording_io import load, save
    from tests.builders import job as a_job
    from tests.builders import make_recording

    site = parse(HEAD, "site.toml")
    recording = replace(make_recording(a_job()), configuration=Configuration(site_checks=site.checks))
    assert load(save(recording)).configuration.site_checks == site.checks

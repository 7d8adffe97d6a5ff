"""Rules that a site declares: their findings, their unknown outcomes, and errors for mistakes in them."""

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
from preflight.config.resolve import Choices
from preflight.model.configuration import Configuration
from preflight.model.findings import Outcome, Severity, Status
from preflight.model.job import Job, Launch, OneOf, Unresolved, Value
from preflight.model.recording import Unavailable
from preflight.model.recording_io import load, save
from preflight.plugins.authoring import Check, Verdict
from preflight.plugins.site.checks import checks_of
from preflight.plugins.site.loader import parse
from preflight.plugins.site.rules import rules_of
from tests.builders import DOCS, claim, job, judged, make_recording, span
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, plan, statuses
from tests.checks.check_builders import job as check_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "site-rules" / "site-rules.toml"
HEAD = """[[rule]]
id = "ACM001"
name = "site-fault"
message = "Not here."
remedy = "Change it."
evidence = "https://example.org/"
"""


def outcome(rule: str, subject: Job) -> Outcome:
    """The outcome of one declared rule for a job."""
    declared = rules_of(parse(HEAD + rule, "site.toml").rules)
    report = judged(make_recording(subject), declared)
    assert len(report.outcomes) == 1
    return report.outcomes[0]


def nodes(value: Value | int) -> Job:
    """A job of this many nodes."""
    return job(claim("nodes", value))


@pytest.mark.parametrize(
    ("test", "value", "status"),
    [
        ("at-most = 16", 16, "pass"),
        ("at-most = 16", 17, "fail"),
        ("at-most = 16.5", 17, "fail"),
        ("at-least = 2", 1, "fail"),
        ("at-least = 2\nat-most = 4", 3, "pass"),
        ("at-least = 2\nat-most = 4", 5, "fail"),
        ("equals = 4", 4, "pass"),
        ("equals = '4'", 4, "pass"),
        ("equals = 4", 5, "fail"),
        ("one-of = [1, 2, 4]", 4, "pass"),
        ("one-of = [1, 2, 4]", 3, "fail"),
        ("none-of = [3]", 3, "fail"),
        ("none-of = [3]", 4, "pass"),
        ("matches = '[124]'", 4, "pass"),
        ("matches = '[124]'", 14, "fail"),
        ("required = true", 4, "pass"),
        ("forbidden = true", 4, "fail"),
        ("at-most = 16", OneOf((8, 32)), "pass"),
        ("at-most = 16", OneOf((20, 32)), "fail"),
        ("at-most = 16", Unresolved("$N is set by the caller"), "unknown"),
        ("forbidden = true", Unresolved("$N is set by the caller"), "fail"),
        ("required = true", Unresolved("$N is set by the caller"), "pass"),
    ],
)
def test_a_quantity(test: str, value: Value | int, status: str) -> None:
    assert outcome(f'quantity = "nodes"\n{test}\n', nodes(value)).status.value == status


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ('env = "NCCL_DEBUG"\nequals = "INFO"', "pass"),
        ('env = "NCCL_DEBUG"\none-of = ["WARN"]', "fail"),
        ('env = "NCCL_DEBUG"\nforbidden = true', "fail"),
        ('env = "NCCL_NET"\nforbidden = true', "not-applicable"),
        ('env = "NCCL_NET"\nequals = "IB"', "not-applicable"),
        ('env = "NCCL_NET"\nrequired = true', "fail"),
        ('env = "TIMEOUT"\nat-most = 20', "fail"),
        ('env = "TIMEOUT"\nequals = 22', "pass"),
        ('env = "NCCL_DEBUG"\nat-most = 20', "unknown"),
        ('launch = "launcher"\none-of = ["deepspeed"]', "fail"),
        ('launch = "wrappers"\nincludes = ["srun"]', "pass"),
        ('launch = "wrappers"\nnone-of = ["srun"]', "fail"),
        ('launch = "arguments"\nnone-of = ["--fp16"]', "unknown"),
        ('launch = "program"\nmatches = ".*[.]py"', "pass"),
    ],
)
def test_a_variable_or_a_part_of_the_launch(rule: str, status: str) -> None:
    launch = Launch("run.sh:3", "torchrun", span(), ("srun",), "train.py", ("--fp16", None))
    subject = job(claim("env.NCCL_DEBUG", "INFO"), claim("env.TIMEOUT", "22"), launches=(launch,))
    assert outcome(rule + "\n", subject).status.value == status


@pytest.mark.parametrize(
    ("when", "status"),
    [
        ('{ quantity = "nodes", at-least = 2 }', "fail"),
        ('{ quantity = "nodes", at-least = 5 }', "not-applicable"),
        ('{ quantity = "processes_per_node", at-least = 2 }', "not-applicable"),
        ('{ quantity = "processes_per_node", forbidden = true }', "fail"),
        ('{ quantity = "world_size", at-least = 2 }', "unknown"),
        ('{ quantity = "world_size", at-least = 2 }, { quantity = "nodes", equals = 1 }', "not-applicable"),
    ],
)
def test_where_a_rule_applies(when: str, status: str) -> None:
    subject = job(claim("nodes", 4), claim("world_size", Unresolved("$N")), claim("env.A", "1"))
    assert outcome(f'env = "A"\nforbidden = true\nwhen = [{when}]\n', subject).status.value == status


def test_a_finding_has_the_seen_and_the_expected_value() -> None:
    found = outcome('quantity = "nodes"\nat-most = 16\nseverity = "error"\n', nodes(32)).finding
    assert found is not None
    assert found.message == "`--nodes=32`; expected nodes: at most 16. Not here."
    assert (found.remedy, found.severity.value, found.name) == ("Change it.", "error", "site-fault")
    assert found.locations[0].path == "run.sh"


def test_a_claim_in_one_branch_is_unknown() -> None:
    from dataclasses import replace

    subject = job(replace(claim("nodes", 32), condition='[ "$BIG" = 1 ]'))
    assert outcome('quantity = "nodes"\nat-most = 16\n', subject).status.value == "unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: it has neither a [[rule]] nor a [[check]]"),
        (HEAD + "quantity = 'node'\nequals = 1\n", "7:12: unknown quantity 'node'; did you mean nodes?"),
        (HEAD + "quantity = 'nodes'\natmost = 1\n", "8:1: unknown key `atmost`; did you mean `at-most`?"),
        (HEAD + "quantity = 'nodes'\nat-most = 'many'\n", "8:11: `rule.0.at-most` must be a number"),
        (HEAD + "quantity = 'nodes'\none-of = 3\n", "8:10: `rule.0.one-of` must be a list, not 3"),
        (
            HEAD + "quantity = 'nodes'\none-of = [[1]]\n",
            "8:11: `rule.0.one-of.0`: expected a string, a number, true or false",
        ),
        (HEAD + "quantity = 'nodes'\nmatches = '('\n", "8:11: it is not a valid regular expression"),
        (HEAD + "quantity = 'nodes'\nrequired = false\n", "8:12: `required` must be true or omitted"),
        (HEAD + "quantity = 'nodes'\nrequired = true\nequals = 1\n", "8:12: `required` cannot be combined"),
        (HEAD + "quantity = 'nodes'\n", "1:1: it has no test; add one of equals, "),
        (HEAD + "equals = 1\n", "1:1: expected exactly one of quantity, env and launch, not none"),
        (HEAD + "env = 'A'\nquantity = 'nodes'\nequals = 1\n", "not quantity and env"),
        (
            HEAD + "launch = 'luncher'\nequals = 1\n",
            "`rule.0.launch` must be one of launcher, program, wrappers, arguments",
        ),
        (HEAD + "env = 'A'\nequals = 1\nwhen = [{ env = 'B' }]\n", "9:9: it has no test"),
        (
            HEAD + "env = 'A'\nequals = 1\nwhen = [{ evn = 'B' }]\n",
            "9:11: unknown key `evn`; did you mean `env`",
        ),
        (HEAD.replace("ACM001", "RDV001") + "env = 'A'\nequals = 1\n", "2:6: RDV001 is already used"),
        (HEAD.replace("ACM001", "acm1") + "env = 'A'\nequals = 1\n", "2:6: 'acm1' is not an id"),
        (HEAD.replace("site-fault", "Site Fault") + "env = 'A'\nequals = 1\n", "3:8: 'Site Fault' is not a name"),
        (HEAD.replace("message", "severity"), "`rule.0.severity` must be one of error, warning, info"),
        (HEAD.partition("evidence")[0] + "env = 'A'\nequals = 1\n", "1:1: `evidence` is missing in [[rule]]"),
        ("rule = 3\n", "1:8: `rule` must be a list, not 3"),
        ("[[rule]\n", "site.toml:1:7:"),
    ],
)
def test_a_mistake_is_reported_with_its_location(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "site.toml")
    assert expected in str(raised.value)


def test_ids_are_used_once_over_all_files() -> None:
    rule = HEAD + 'env = "A"\nequals = 1\n'
    with pytest.raises(UsageError, match="ACM001 is already used"):
        parse(rule + rule, "site.toml")
    with pytest.raises(UsageError, match="ACM001 is already used"):
        parse(rule, "site.toml", taken=parse(rule, "other.toml"))


# --- from the command line ---


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job over 32 nodes, and the site's rules beside it."""
    (tmp_path / "run.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=32\nsrun torchrun --nnodes=32 train.py\n")
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "site.toml").write_bytes(EXAMPLE.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_runs(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint", "--site-rules", "site.toml", "--select", "ACM"]) == 1
    out = capfd.readouterr().out
    assert "error[ACM001] more-nodes-than-the-partition-has" in out
    assert "--> run.sbatch:2:9" in out
    assert "warning[ACM002] bootstrap-interface-not-named" in out
    assert "ACM003" not in out and "ACM004" not in out
    assert main.run(["lint", "--site-rules", "site.toml", "--select", "ACM", "--ignore", "ACM001"]) == 0
    assert main.run(["lint", "--select", "ACM"]) == 2


def test_only_a_configuration_named_by_the_user_may_name_site_rules(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tree / "preflight.toml").write_text('site-rules = ["site.toml"]\nselect = ["ACM001"]\n')
    assert main.run(["lint"]) == 2
    assert "preflight.toml:1:14: only a configuration passed with --config" in capfd.readouterr().err
    assert main.run(["lint", "--config", "preflight.toml"]) == 1
    assert "error[ACM001]" in capfd.readouterr().out


def test_they_are_waived_explained_and_recorded_like_any_other(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "preflight.toml").write_text('[[waive]]\nrule = "ACM001"\nreason = "reserved"\n')
    assert main.run(["lint", "--site-rules", "site.toml", "--select", "ACM"]) == 0
    assert "suppressed ACM001 at run.sbatch:2: reserved" in capfd.readouterr().out
    chosen = api.configure(Choices(site_rules=(Path("site.toml"),)), ["."]).configuration
    recording = make_recording(nodes(32), configuration=chosen)
    assert load(save(recording)) == recording
    assert [finding.id for finding in api.judge(load(save(recording))).suppressed] == ["ACM001"]
    text = explanation("acm001", [Path("site.toml")])
    assert "nodes: at most 16" in text and "Ask for 16 nodes" in text


def test_the_schema_is_the_committed_one_and_accepts_the_example() -> None:
    import jsonschema

    from preflight._util.toml import parse as loads
    from preflight.plugins.site.loader import schema

    committed = json.loads((DOCS / "site-rules.schema.json").read_text())
    assert committed == schema(), "the schema changed: run `make schema`"
    jsonschema.Draft202012Validator(committed).validate(loads(EXAMPLE.read_text()))


# Checks that a site declares: the result of their command becomes pass, fault, warning or unknown, for each node.


CHECK_HEAD = """[[check]]
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
    (found,) = checks_of(parse(CHECK_HEAD + more, "site.toml").checks)
    return found


def ran(output: str = "", exit_code: int = 0, error: str = "") -> CommandResult:
    """A result of the command."""
    return CommandResult(("tool", "-a b"), exit_code, output, error, 0.1)


def check_judged(more: str, *answers: CommandResult | Unavailable) -> list[Verdict]:
    """The verdicts on these answers of node0, node1 ..."""
    check = declared(more)
    there = fleet(len(answers))
    requests = plan(check, check_job(), there)
    records = [fact(command, r.node, a, params=r.params) for r, a in zip(requests, answers, strict=True)]
    return list(check.judge(check_job(), there, facts(*records)))


def only_verdict(more: str, *answers: CommandResult | Unavailable) -> Verdict:
    """The only verdict."""
    (found,) = check_judged(more, *answers)
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
    found = check_judged("", ran(), ran("bad disk", 2), ran("bad disk", 2), ran("", 5))
    faults = [verdict for verdict in found if verdict.status is Status.FAIL]
    assert [verdict.nodes for verdict in faults] == [("node1", "node2"), ("node3",)]
    assert "exit code 2 (bad disk)" in faults[0].message and "`tool '-a b'`" in faults[0].message
    assert faults[0].evidence[0].command == "tool '-a b'"


def test_a_warning_is_milder() -> None:
    assert only_verdict("warning-exit = [1]", ran(exit_code=1)).severity is Severity.WARNING


def test_nodes_with_different_output_are_named() -> None:
    found = check_judged("agree = true", ran("5.1\n"), ran("5.1"), ran("5.2"))
    assert [(v.status, v.nodes) for v in found] == [(Status.FAIL, ("node2",)), (Status.PASS, ())]
    assert "5.2" in found[0].message and "as on most nodes: 5.1" in found[0].message
    assert only_verdict("agree = true", ran("5.1"), ran("5.2")).nodes == ("node0", "node1")


def test_a_missing_answer_makes_the_verdict_incomplete_by_default() -> None:
    assert only_verdict("", TIMEOUT).required
    assert not only_verdict("required = false", TIMEOUT).required


def test_first_node_requests_only_that_node() -> None:
    assert [request.node for request in plan(declared("nodes = 'first'"), check_job(), fleet(3))] == ["node0"]
    assert plan(declared("nodes = 'first'"), check_job(), fleet(3, node0="gone")) == []


def test_checks_of_one_command_with_different_deadlines_are_separate() -> None:
    one, other = declared(), declared("deadline = 9")
    assert plan(one, check_job(), fleet(1))[0].key != plan(other, check_job(), fleet(1))[0].key
    answered = facts(fact(command, "node0", ran(), params=plan(one, check_job(), fleet(1))[0].params))
    assert statuses(list(other.judge(check_job(), fleet(1), answered))) == {"not-applicable"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CHECK_HEAD.replace('["tool", "-a b"]', '["df -h"]'),
            '8:11: `command` runs without a shell; write each word as its own string: ["df"',
        ),
        (CHECK_HEAD.replace('["tool", "-a b"]', "[]"), "8:11: `command` is empty"),
        (CHECK_HEAD.replace('["tool", "-a b"]', '"df"'), "`check.0.command` must be a list"),
        (CHECK_HEAD + "deadline = 0\n", "9:12: `deadline` must be more than 0"),
        (CHECK_HEAD + "exit = [0, 300]\n", "9:12: 300 is not an exit code"),
        (CHECK_HEAD + "warning-exit = [0]\n", "the exit code 0 has two meanings"),
        (CHECK_HEAD + "output = '('\n", "9:10: it is not a valid regular expression"),
        (CHECK_HEAD + "value = [{ json = 'a', equals = 1, at-mots = 2 }]\n", "did you mean `at-most`"),
        (CHECK_HEAD + "value = [{ json = 'a' }]\n", "it has no test"),
        (CHECK_HEAD + "value = [{ json = 'a..b', equals = 1 }]\n", "`json` must be the path of a value"),
        (CHECK_HEAD + "shell = 'x'\n", "unknown key `shell`"),
        (CHECK_HEAD.replace("ACM201", "NOD001"), "2:6: NOD001 is already used"),
        (CHECK_HEAD + CHECK_HEAD, "ACM201 is already used"),
    ],
)
def test_check_a_mistake_is_reported_with_its_location(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "site.toml")
    assert expected in str(raised.value)


def test_a_tree_cannot_define_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text(CHECK_HEAD)
    (tmp_path / "preflight.toml").write_text('site-rules = ["site.toml"]\n')
    (tmp_path / "run.sh").write_text("torchrun train.py\n")
    assert main.run(["check", str(tmp_path / "run.sh"), "--on", "local", "--until", "node"]) == 2
    assert "only a configuration passed with --config may name site rules" in capfd.readouterr().err


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
    (tmp_path / "site.toml").write_text(CHECK_HEAD.replace('["tool", "-a b"]', f'["touch", "{ran_it}"]'))
    main.run(["lint", str(tmp_path / "run.sh"), "--site-rules", str(tmp_path / "site.toml")])
    assert not ran_it.exists()


def test_it_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(CHECK_HEAD + "value = [{ json = 'a.b', at-least = 3 }]\n")
    said = explanation("ACM201", [file])
    assert "`tool '-a b'` on every node" in said and "a.b in its JSON output is at least 3" in said
    assert "cost on a node: runs `tool '-a b'`, for at most 5 s" in said


def test_a_recording_keeps_them() -> None:
    from preflight.model.recording_io import load, save
    from tests.builders import job as a_job
    from tests.builders import make_recording

    site = parse(CHECK_HEAD, "site.toml")
    recording = replace(make_recording(a_job()), configuration=Configuration(site_checks=site.checks))
    assert load(save(recording)).configuration.site_checks == site.checks

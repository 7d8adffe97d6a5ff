"""`preflight diff` as a command: reports and recordings, with faults inserted into a real recording."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from preflight import api
from preflight._util.json_output import to_bytes
from preflight.cli import main
from preflight.commands.diff import difference
from preflight.commands.diff.difference import Answer
from preflight.commands.diff.difference_text import page
from preflight.engine.report import to_json
from preflight.model.configuration import RunOptions
from preflight.model.recording import Recording, Unavailable
from preflight.model.recording_io import load, save
from preflight.reporters.base import Style
from tests.builders import DOCS, assert_follows_schema, make_recording
from tests.checks.check_builders import fleet, job
from tests.checks.links.test_slow_links import GOOD, measured

JOB = """\
#!/usr/bin/env bash
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=node1 --master_port=29500 train.py
"""
SCRIPT = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real check of two processes of this machine."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "run.sh").write_text(JOB)
    (folder / "train.py").write_text(SCRIPT)
    options = RunOptions(executor="local", hosts="node1,node2", until="node", open_deadline=30)
    made, _ = api.check([folder / "run.sh"], options, root=folder)
    (folder / "old.json").write_bytes(save(made))
    return folder / "old.json"


def changed(recording: Path, target: Path, change: Callable[[Recording], Recording]) -> Path:
    """The same recording with a change."""
    target.write_bytes(save(change(load(recording.read_bytes())), compressed=target.suffix == ".gz"))
    return target


def wrong_clock(recording: Recording) -> Recording:
    """The second node's clock is a minute off."""
    first, second = recording.nodes
    return replace(recording, nodes=(first, replace(second, clock_offset_s=60.0)))


def silent(recording: Recording) -> Recording:
    """The second node did not answer."""
    first, second = recording.nodes
    facts = tuple(fact for fact in recording.facts if fact.request.node == "node1")
    return replace(recording, nodes=(first, replace(second, problem="no answer within 8 s")), facts=facts)


def slow_to_answer(recording: Recording) -> Recording:
    """The second node was too slow for its requests."""
    late = Unavailable("timeout", "no answer within 10 s")
    facts = [
        replace(fact, value=None, unavailable=late) if fact.request.node == "node2" else fact
        for fact in recording.facts
    ]
    return replace(recording, facts=tuple(facts))


def another_kernel(recording: Recording) -> Recording:
    """The second node runs another kernel."""
    facts = []
    for fact in recording.facts:
        if fact.request.node == "node2" and fact.value is not None:
            said = json.dumps(fact.value).replace(platform.release(), "5.15.0-old")
            fact = replace(fact, value=json.loads(said))
        facts.append(fact)
    return replace(recording, facts=tuple(facts))


def measured_links(several_mbps: float) -> Recording:
    """A check of eight nodes, in which node3 sends at this rate over several streams."""
    slow = replace(GOOD, single_mbps=min(several_mbps, GOOD.single_mbps or 0), several_mbps=several_mbps)
    seen = measured(lambda source, peer, look: slow if source == "node3" else GOOD, 8, looks=1)
    told = job(backend="gloo", master_addr="node0", master_port=29500)
    stages = ("node", "link")
    return make_recording(told, verb="check", nodes=fleet(8).records, stages=stages, facts=tuple(seen.records))


def run_command(*arguments: str | Path) -> int:
    return main.run(["diff", *map(str, arguments)])


def test_a_fault_added_to_a_recording_is_new(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json.gz", wrong_clock)
    assert run_command(recording, new, "-o", "text", "-o", f"json:{tmp_path / 'diff.json'}") == 1
    said = capfd.readouterr().out
    assert "new     error CLK001" in said and "node2" in said
    assert said.splitlines()[-1].startswith("WORSE  1 new, 0 fixed")
    document = assert_follows_schema((tmp_path / "diff.json").read_bytes(), "difference")
    assert [item["finding"]["id"] for item in document["appeared"]] == ["CLK001"]
    assert run_command(new, recording) == 0
    said = capfd.readouterr().out
    assert "fixed   error CLK001" in said and said.splitlines()[-1].startswith("BETTER")


def test_a_different_kernel_on_one_node_is_only_drift(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json", another_kernel)
    run_command(recording, new)
    assert f"drift: nodes, kernel: {platform.release()} -> 5.15.0-old on node2" in capfd.readouterr().out


def test_a_slower_link_is_reported_before_a_check_fails() -> None:
    good, slower = measured_links(9400.0), measured_links(4000.0)
    found = api.diff(good, slower)
    bandwidth = next(item for item in found.measured if item.id == "links.bandwidth")
    (worse,) = bandwidth.worse
    assert (worse.where, worse.nodes) == ("from node3", ("node3",)) and worse.factor > 2
    assert bandwidth.noise.allowed == 1.25 and not found.appeared
    assert (found.answer, found.exit_code) == (Answer.SAME, 0), "a warning, and only errors count"
    assert api.diff(good, slower, fail_on="warning").exit_code == 1
    said = page(found, Style())
    assert "slower  Bandwidth  from node3" in said
    assert said.splitlines()[-1].startswith("NOTHING WORSE THAT COUNTS  0 new")
    assert not any(item.worse for item in api.diff(slower, good).measured)


def test_a_silent_node_is_worse_and_its_faults_are_not_fixed(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(recording, changed(recording, tmp_path / "new.json", silent)) == 1
    said = capfd.readouterr().out
    assert "new     error NOD001" in said
    assert "node node2: could be checked before and cannot now: no answer within 8 s" in said
    assert "not checked now: node2" in said and "fixed" not in said.replace(" 0 fixed", "")


def test_a_missing_fact_is_not_a_pass(recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    new = changed(recording, tmp_path / "new.json", slow_to_answer)
    assert run_command(recording, new) == 3
    said = capfd.readouterr().out
    assert "became unknown:" in said and "(required)" in said
    assert said.splitlines()[-1].startswith("INCOMPLETE")
    assert "not checked now: node2" in said and "no longer on" not in said
    assert run_command(recording, new, "--allow-incomplete", "-q") == 0


def test_a_report_and_the_recording_it_was_made_from_are_the_same(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(to_json(api.judge(recording)))
    compact = json.dumps(json.loads((tmp_path / "report.json").read_bytes()))
    (tmp_path / "compact.json").write_text(compact)
    for one, other in ((recording, "report.json"), ("report.json", recording), ("compact.json", "report.json")):
        found = api.diff(tmp_path / one, tmp_path / other)
        assert found.answer is Answer.SAME and not found.changed
        assert not found.became_unknown and not found.became_known and not found.nodes
    assert api.diff(api.judge(recording), load(recording.read_bytes())).old.name == "old"


def test_the_same_pair_gives_the_same_bytes(recording: Path, tmp_path: Path) -> None:
    new = changed(recording, tmp_path / "new.json", wrong_clock)
    first, second = (to_bytes(api.diff(recording, new), indent=2) for _ in range(2))
    assert first == second


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "difference.schema.json").read_text()
    assert committed == json.dumps(difference.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        ("", "is neither a report"),
        ("[1]", "is neither a report"),
        ('{"coverage": 1', "is neither a report"),
        ('{"$schema": "x", "runs": []}', "is a SARIF log"),
        ('{"schema_version": 1, "findings": []}', "is a baseline"),
        ('{"answer": "cause", "logs": []}', "is a diagnosis"),
        ('{"coverage": {}, "outcomes": [], "schema_version": 9}', "schema version 9; this preflight reads version 2"),
        (
            '{"coverage": {}, "outcomes": [], "schema_version": 2}',
            "is not a report that this version of preflight can read",
        ),
    ],
    ids=["absent", "empty", "list", "torn", "sarif", "baseline", "diagnosis", "later", "hollow"],
)
def test_a_file_that_is_neither_is_named(
    content: str | None, expected: str, recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "other.json").write_text(content)
    assert run_command(recording, tmp_path / "other.json") == 2
    said = capfd.readouterr().err
    assert expected in said and "Traceback" not in said


def test_mistakes_get_a_suggestion(recording: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        ([str(recording), str(recording), "--fail-no", "error"], "--fail-on"),
        ([str(recording), str(recording), "-o", "jsn"], "did you mean 'json'? choose from text, json"),
        ([str(recording)], "Missing argument 'NEW'"),
    ):
        assert run_command(*arguments) == 2
        assert expected in capfd.readouterr().err
    assert main.run(["dif"]) == 2
    assert "Did you mean 'diff'?" in capfd.readouterr().err


def test_control_characters_of_a_report_never_reach_the_terminal(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json", wrong_clock)
    document = to_json(api.judge(new)).decode().replace("node2", "node2\\u001b]0;x\\u0007\\u202e")
    (tmp_path / "hostile.json").write_text(document)
    assert run_command(recording, tmp_path / "hostile.json", "-v", "--color") in (1, 3)
    said = capfd.readouterr().out
    assert "\x1b]" not in said and not set("\x07\x9b\u202e") & set(said)


def test_an_unwritable_folder_is_reported_first(recording: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(recording, recording, "-o", f"json:no{os.sep}such.json") == 2
    assert "the folder no does not exist" in capfd.readouterr().err

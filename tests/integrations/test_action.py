"""The GitHub action is valid, safe against its inputs, and its steps work, run one by one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.integrations.runner import Runner
from tools.transcripts import steps

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
BROKEN = ROOT / "examples" / "torchrun-two-nodes" / "broken"
GOOD = ROOT / "examples" / "torchrun-two-nodes" / "good"

Start = Callable[..., Runner]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A runner whose install step is already done: preflight as it is here."""

    def started(job: Path = BROKEN) -> Runner:
        shutil.copytree(job, tmp_path / "workspace" / "jobs")
        private = tmp_path / "temporary" / "preflight.installed"
        installed = private / "venv" / "bin"
        installed.mkdir(parents=True)
        (installed / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (installed / "python").chmod(0o755)
        outputs = {"install": {"private": str(private)}}
        return Runner(ACTION, tmp_path / "workspace", tmp_path / "temporary", outputs=outputs)

    return started


def test_action_follows_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_inputs_are_not_interpolated_into_scripts() -> None:
    for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["id"]


def test_a_fault_fails_the_step_after_the_report_was_uploaded(start: Start) -> None:
    runner = start()
    assert runner.run(skip=("install",), paths="jobs") == 1
    assert (runner.output("verdict"), runner.output("sarif")) == ("no-go", "preflight.sarif")
    upload = runner.step("upload")
    assert upload is not None and upload.given == {"sarif_file": "preflight.sarif", "category": "preflight"}
    log = json.loads((runner.workspace / "preflight.sarif").read_text())
    assert {"RDV001"} <= {result["ruleId"] for result in log["runs"][0]["results"]}
    assert "RDV001" in runner.summary and "no-go" in runner.summary.replace("\\", "")


def test_a_good_job_passes(start: Start) -> None:
    runner = start(GOOD)
    assert runner.run(skip=("install",)) == 0
    assert runner.output("verdict") == "go"


def test_inputs_are_used(start: Start) -> None:
    runner = start(GOOD)
    (runner.workspace / "own.toml").write_text('[severity]\nRDV = "info"\n')
    shutil.copytree(BROKEN, runner.workspace / "other jobs")
    code = runner.run(
        skip=("install",), paths="jobs\nother jobs\n", config="own.toml", sarif="out put.sarif", upload="false"
    )
    assert (code, runner.output("verdict")) == (0, "go")
    assert runner.step("upload") is None
    assert "other jobs/run.sh" in (runner.workspace / "out put.sarif").read_text().replace("%20", " ")


def test_a_stricter_gate(start: Start) -> None:
    runner = start()
    (runner.workspace / "own.toml").write_text('ignore = ["RDV001"]\n')
    assert runner.run(skip=("install",), config="own.toml") == 0
    assert runner.run(skip=("install",), config="own.toml", fail_on="warning") == 1


@pytest.mark.parametrize("hostile", ['"; touch owned; "', "$(touch owned)", "`touch owned`", "x\nverdict=go", "-o"])
def test_inputs_are_passed_as_single_arguments(start: Start, hostile: str) -> None:
    runner = start()
    code = runner.run(skip=("install",), paths=hostile, sarif=hostile)
    assert code != 0 and runner.output("verdict") in ("failed", "nothing")
    assert runner.summary
    assert not list(runner.workspace.rglob("owned"))


def test_folder_without_a_job_does_not_pass(start: Start) -> None:
    runner = start()
    (runner.workspace / "empty").mkdir()
    assert runner.run(skip=("install",), paths="empty") == 4
    assert runner.output("verdict") == "not-judged"


def test_report_contains_no_runner_commands(start: Start) -> None:
    runner = start()
    runner.run(skip=("install",))
    lint = runner.step("lint")
    assert lint is not None
    lines = lint.output.splitlines()
    assert "::error" not in lint.output
    (token,) = re.findall(r"^::stop-commands::([0-9a-f]{32})$", lint.output, re.MULTILINE)
    assert (lines[0], lines[-1]) == (f"::stop-commands::{token}", f"::{token}::")


def test_without_code_scanning_findings_are_annotations(start: Start) -> None:
    runner = start()
    assert runner.run(skip=("install",), upload="false") == 1
    lint = runner.step("lint")
    assert lint is not None and runner.step("upload") is None
    (token,) = re.findall(r"^::stop-commands::([0-9a-f]{32})$", lint.output, re.MULTILINE)
    report, _, behind = lint.output.partition(f"::{token}::\n")
    assert "::error" not in report
    assert re.search(r"^::error file=jobs/run\.sh,line=7,.*RDV001", behind, re.MULTILINE)


def test_a_report_in_a_folder_of_the_workspace(start: Start) -> None:
    runner = start()
    (runner.workspace / "out").mkdir()
    assert runner.run(skip=("install",), sarif="out/report.sarif") == 1
    assert runner.output("sarif") == "out/report.sarif" and (runner.workspace / "out" / "report.sarif").stat().st_size


def test_symbolic_links_of_the_checkout_are_not_followed(start: Start, tmp_path: Path) -> None:
    runner = start()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (runner.workspace / "preflight.sarif").symlink_to(precious)
    assert runner.run(skip=("install",)) == 1
    assert precious.read_text() == "mine" and not (runner.workspace / "preflight.sarif").is_symlink()
    assert "RDV001" in (runner.workspace / "preflight.sarif").read_text()


@pytest.mark.parametrize("name", ["out/report.sarif", "../report.sarif", "ABSOLUTE/report.sarif", "jobs", "no/such/a"])
def test_no_report_is_written_outside_the_workspace(start: Start, tmp_path: Path, name: str) -> None:
    runner = start()
    outside = tmp_path / "outside"
    outside.mkdir()
    (runner.workspace / "out").symlink_to(outside)
    code = runner.run(skip=("install",), sarif=name.replace("ABSOLUTE", str(outside)))
    assert (code, runner.output("verdict"), runner.output("sarif")) == (2, "failed", "")
    assert not list(outside.iterdir()) and not (tmp_path / "report.sarif").exists()
    lint = runner.step("lint")
    assert lint is not None and "sarif is not a file in a folder of the workspace" in lint.output


def test_report_file_of_the_checkout_is_not_uploaded(start: Start) -> None:
    runner = start()
    (runner.workspace / "preflight.sarif").write_text("forged")
    assert runner.run(skip=("install",), config="no-such.toml") == 2
    assert runner.output("sarif") == "" and runner.step("upload") is None


@pytest.mark.parametrize("version", ["1; touch owned", "../x", "1 --pre", "git+https://x"])
def test_invalid_versions_are_rejected(start: Start, version: str) -> None:
    runner = start()
    assert runner.run(version=version) == 2
    install = runner.step("install")
    assert install is not None and "expected digits and points" in install.output
    assert runner.step("lint") is None


def test_the_workflow_of_the_documentation_is_valid_and_uses_inputs_that_exist(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start" / "ci.md").read_text()
    (text,) = [step.text for step in steps(page) if step.file == ".github/workflows/preflight.yml"]
    path = tmp_path / "preflight.yml"
    path.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    given = yaml.safe_load(text)["jobs"]["lint"]["steps"][-1]["with"]
    action = yaml.safe_load(ACTION.read_text())
    assert set(given) <= set(action["inputs"])
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "integrations.md").read_text(), re.MULTILINE))
    assert set(action["inputs"]) <= listed

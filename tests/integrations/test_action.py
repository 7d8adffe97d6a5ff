"""The action for GitHub: valid, safe from what it is told, and its steps do what they say, run one by one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.integrations.runner import Runner
from tools.transcripts import steps

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
        installed = tmp_path / "temporary" / "preflight" / "bin"
        installed.mkdir(parents=True)
        (installed / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
        (installed / "preflight").chmod(0o755)
        paths = f"{ROOT}:{ROOT / 'checks'}:{ROOT / 'rules'}"
        return Runner(ACTION, tmp_path / "workspace", tmp_path / "temporary", {"PYTHONPATH": paths})

    return started


def test_it_follows_the_schema_of_actions() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_script_is_put_together_from_what_it_is_told() -> None:
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


def test_what_it_is_told_is_used(start: Start) -> None:
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
def test_words_stay_words(start: Start, hostile: str) -> None:
    runner = start()
    code = runner.run(skip=("install",), paths=hostile, sarif=hostile)
    assert code != 0 and runner.output("verdict") in ("failed", "nothing")
    assert runner.summary
    assert not list(runner.workspace.rglob("owned"))


def test_a_folder_without_a_job_is_no_pass(start: Start) -> None:
    runner = start()
    (runner.workspace / "empty").mkdir()
    assert runner.run(skip=("install",), paths="empty") == 4
    assert runner.output("verdict") == "nothing"


def test_nothing_in_a_report_is_a_command_to_the_runner(start: Start) -> None:
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


@pytest.mark.parametrize("version", ["1; touch owned", "../x", "1 --index-url=http://x", "git+https://x"])
def test_only_a_version_is_a_version(start: Start, version: str) -> None:
    runner = start()
    assert runner.run(version=version) == 2
    install = runner.step("install")
    assert install is not None and "expected digits and points" in install.output
    assert runner.step("lint") is None


@pytest.mark.slow
def test_it_installs_itself_and_runs(tmp_path: Path) -> None:
    # What preflight needs is found where these tests find it, so that no index is asked.
    here = {
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    shutil.copytree(BROKEN, tmp_path / "workspace" / "jobs")
    (tmp_path / "temporary").mkdir()
    runner = Runner(ACTION, tmp_path / "workspace", tmp_path / "temporary", here)
    assert runner.run() == 1, runner.ran[0].output
    assert runner.output("verdict") == "no-go"
    lint = runner.step("lint")
    assert lint is not None and "RDV001" in lint.output


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

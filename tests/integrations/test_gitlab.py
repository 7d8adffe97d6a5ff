"""The template for GitLab CI: valid, and its commands do what they say, run one by one as a runner does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "integrations" / "gitlab" / "preflight.gitlab-ci.yml"
BROKEN = ROOT / "examples" / "torchrun-two-nodes" / "broken"
GOOD = ROOT / "examples" / "torchrun-two-nodes" / "good"


def job() -> dict[str, Any]:
    """The job of the template."""
    document = yaml.safe_load(TEMPLATE.read_text())
    assert list(document) == ["preflight"]
    found: dict[str, Any] = document["preflight"]
    return found


def run(folder: Path, example: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script in a clone of a project; what is installed is preflight as it is here."""
    shutil.copytree(example, folder / "clone" / "jobs")
    installed = folder / "venv" / "bin"
    installed.mkdir(parents=True)
    (installed / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (installed / "preflight").chmod(0o755)
    # A runner hands all commands to one shell, which stops at the first that fails.
    script = "set -eo pipefail\n" + "\n".join(job()["script"])
    script = script.replace("/tmp/preflight/bin", shlex.quote(str(installed)))
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    environment = {**os.environ, "PYTHONPATH": paths, **job()["variables"], **variables}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "clone",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_follows_the_schema_of_pipelines(tmp_path: Path) -> None:
    def checked(path: Path) -> int:
        words = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", str(path)]
        command = [sys.executable, "-m", "check_jsonschema", *words]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert checked(TEMPLATE) == 0
    wrong = tmp_path / ".gitlab-ci.yml"
    wrong.write_text(TEMPLATE.read_text().replace("when: always", "when: sometimes"))
    assert checked(wrong) == 1


def test_a_fault_fails_the_job_and_stands_in_every_report(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN)
    assert done.returncode == 1, done.stderr
    assert "RDV001" in done.stdout
    artifacts = job()["artifacts"]
    quality = json.loads((tmp_path / "clone" / artifacts["reports"]["codequality"]).read_text())
    (fault,) = [one for one in quality if "RDV001" in one["check_name"]]
    assert (fault["location"]["path"], fault["severity"]) == ("jobs/run.sh", "critical")
    suites = ElementTree.parse(tmp_path / "clone" / artifacts["reports"]["junit"])
    assert [case for case in suites.iter("testcase") if case.find("failure") is not None]
    for path in artifacts["paths"]:
        assert (tmp_path / "clone" / path).stat().st_size
    assert artifacts["when"] == "always"


def test_a_good_job_passes(tmp_path: Path) -> None:
    assert run(tmp_path, GOOD).returncode == 0


def test_variables_say_what_is_read_and_how(tmp_path: Path) -> None:
    done = run(
        tmp_path, BROKEN, PREFLIGHT_PATHS="jobs/run.sh jobs/train.py", PREFLIGHT_OPTIONS="--ignore RDV001 --quiet"
    )
    assert done.returncode == 0 and "RDV001" not in done.stdout


@pytest.mark.parametrize("hostile", ["$(touch owned)", "; touch owned", "`touch owned`"])
def test_words_stay_words(tmp_path: Path, hostile: str) -> None:
    assert run(tmp_path, BROKEN, PREFLIGHT_PATHS=hostile).returncode != 0
    assert not list(tmp_path.rglob("owned"))

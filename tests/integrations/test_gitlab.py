"""The GitLab CI template is valid, and its commands work, run one by one as by a runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.thorough

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
    """Run the script in a clone of a project, with this checkout of preflight installed."""
    shutil.copytree(example, folder / "clone" / "jobs")
    installed = folder / "venv" / "bin"
    installed.mkdir(parents=True)
    (installed / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (installed / "python").chmod(0o755)
    # A runner passes all commands to one shell, which stops at the first failure.
    script = "set -eo pipefail\n" + "\n".join(job()["script"])
    environment = {**os.environ, "preflight_home": str(folder), **job()["variables"], **variables}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "clone",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_template_follows_its_schema(tmp_path: Path) -> None:
    def checked(path: Path) -> int:
        words = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", str(path)]
        command = [sys.executable, "-m", "check_jsonschema", *words]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert checked(TEMPLATE) == 0
    wrong = tmp_path / ".gitlab-ci.yml"
    wrong.write_text(TEMPLATE.read_text().replace("when: always", "when: sometimes"))
    assert checked(wrong) == 1


def test_fault_fails_the_job_and_is_in_every_report(tmp_path: Path) -> None:
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


def test_variables_select_paths_and_options(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN, PREFLIGHT_PATHS="jobs/run.sh jobs/*.py", PREFLIGHT_OPTIONS="--ignore RDV001 --quiet")
    assert done.returncode == 0 and "RDV001" not in done.stdout


def test_a_file_of_the_checkout_becomes_no_option(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "--ignore=RDV001").write_text("")
    done = run(tmp_path, BROKEN, PREFLIGHT_OPTIONS="--*=RDV001")
    assert done.returncode == 2 and "--*" in done.stderr


@pytest.mark.parametrize("hostile", ["$(touch owned)", "; touch owned", "`touch owned`"])
def test_inputs_are_passed_as_single_arguments(tmp_path: Path, hostile: str) -> None:
    assert run(tmp_path, BROKEN, PREFLIGHT_PATHS=hostile).returncode != 0
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize(
    ("variables", "installed"),
    [
        ({}, "preflight-train==0.1.0"),
        ({"PREFLIGHT_PACKAGE": "preflight-train==0.2.0"}, "preflight-train==0.2.0"),
        ({"PREFLIGHT_REQUIREMENTS": "/etc/a file"}, "--require-hashes --requirement /etc/a file"),
    ],
)
def test_installed_package(tmp_path: Path, variables: dict[str, str], installed: str) -> None:
    """A stub for Python records its arguments; old reports and links of the clone are removed."""
    (tmp_path / "python").write_text(
        '#!/bin/sh\nif [ "$3" = venv ]; then mkdir -p "$4/bin" && cp "$0" "$4/bin/python"; else echo "$@"; fi\n'
    )
    (tmp_path / "python").chmod(0o755)
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "precious").write_text("mine")
    (clone / "preflight.sarif").symlink_to(tmp_path / "precious")
    (clone / "gl-code-quality-report.json").write_text("forged")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "CI_PROJECT_DIR": str(clone),
        **job()["variables"],
        **variables,
    }
    script = "set -e\n" + "\n".join([*job()["before_script"], "pwd"])
    # The image's shell may be any.
    done = subprocess.run(
        ["sh", "-c", script], cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    pip, here = done.stdout.splitlines()
    assert pip == f"-I -m pip install --quiet --disable-pip-version-check --only-binary :all: {installed}"
    assert here == str(clone)
    assert not list(clone.iterdir()) and (tmp_path / "precious").read_text() == "mine"

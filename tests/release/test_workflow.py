"""The workflow that publishes: valid, with no more rights than it needs, and its commands work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]


def command(job: str, step: str) -> str:
    """What a step of a job runs."""
    (found,) = [each for each in JOBS[job]["steps"] if each.get("id") == step]
    return str(found["run"])


def test_the_workflow_is_valid() -> None:
    words = ["-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_only_the_job_that_publishes_has_an_identity_and_it_runs_no_code_of_the_tree() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {}
    for name, job in JOBS.items():
        assert ("id-token" in job["permissions"]) == (name == "publish")
    steps = JOBS["publish"]["steps"]
    assert [step["id"] for step in steps if "run" in step] == ["sums"], "it only compares sums"
    assert not [step for step in steps if "checkout" in step.get("uses", "")]
    names = [step.get("id") or step["uses"].partition("@")[0] for step in steps]
    assert (
        names.index("actions/download-artifact") < names.index("sums") < names.index("actions/attest-build-provenance")
    )
    assert "secrets." not in WORKFLOW.read_text()


def test_only_what_was_built_is_published(tmp_path: Path) -> None:
    """The steps themselves: no other content, no further file, no missing one."""
    dist, output = tmp_path / "dist", tmp_path / "output"

    def run(job: str, **variables: str) -> int:
        words = ["bash", "-c", command(job, "sums")]
        environment = {"PATH": os.environ["PATH"], **variables}
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False
        ).returncode

    dist.mkdir()
    for name in ("preflight_train-1.tar.gz", "preflight_train-1-py3-none-any.whl"):
        (dist / name).write_text(name)
    assert run("build", GITHUB_OUTPUT=str(output)) == 0
    assert JOBS["build"]["outputs"] == {"sums": "${{ steps.sums.outputs.sums }}"}
    assert {"build", "try"} == set(JOBS["publish"]["needs"])
    (step,) = [each for each in JOBS["publish"]["steps"] if each.get("id") == "sums"]
    assert step["env"] == {"SUMS": "${{ needs.build.outputs.sums }}"}
    (line,) = output.read_text().splitlines()
    sums = line.removeprefix("sums=")
    assert run("publish", SUMS=sums) == 0
    assert run("publish", SUMS="") != 0
    (dist / "other.whl").write_text("")
    assert run("publish", SUMS=sums) != 0
    (dist / "other.whl").unlink()
    (dist / "preflight_train-1.tar.gz").write_text("changed")
    assert run("publish", SUMS=sums) != 0
    (dist / "preflight_train-1.tar.gz").unlink()
    assert run("publish", SUMS=sums) != 0


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("v9{}", 1)])
def test_a_tag_that_is_not_the_version_stops_the_release(tmp_path: Path, tag: str, code: int) -> None:
    """The step itself, in a tree whose changelog has a date."""
    version = (ROOT / "preflight" / "__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]
    (tmp_path / "preflight").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "preflight/__init__.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-12-01)\n")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TAG": tag.format(version)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        ["bash", "-c", command("build", "version")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr

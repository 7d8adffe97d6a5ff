"""`make release`: one command sets the version everywhere, dates the changelog and tags."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import release
from tools.release import Refused

ROOT = Path(__file__).resolve().parents[2]


DATE = datetime.date(2026, 12, 1)


CHANGELOG = "# Changelog\n\nIntroduction.\n\n## {0} (unreleased)\n\n- A rule.\n\n## 0.0.9 (2026-01-01)\n\n- Old.\n"


def git(root: Path, *words: str) -> str:
    """The output of a git command."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *identity, *words], cwd=root, capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the files that a release changes."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "A")
        monkeypatch.setenv(f"{name}_EMAIL", "a@example.org")
    for name in (release.SOURCE, *release.PINS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    version = release.current_version(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format(version))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_a_release_sets_version_pins_date_and_tag(tree: Path) -> None:
    old = release.current_version(tree)
    assert release.release(tree, "7.2.0", DATE) == "v7.2.0"
    assert release.current_version(tree) == "7.2.0"
    assert "## 7.2.0 (2026-12-01)\n\n- A rule.\n" in (tree / "CHANGELOG.md").read_text()
    for name in release.PINS:
        assert f"preflight-train=={old}" not in (tree / name).read_text()
        assert f"/preflight@v{old}" not in (tree / name).read_text()
    assert "preflight-train==7.2.0" in (tree / "integrations/gitlab/preflight.gitlab-ci.yml").read_text()
    assert git(tree, "status", "--porcelain") == ""
    notes = git(tree, "tag", "--list", "-n99", "v7.2.0")
    assert "- A rule." in notes and "Old" not in notes


def test_the_first_release_keeps_the_version_of_the_tree(tree: Path) -> None:
    version = release.current_version(tree)
    assert release.release(tree, version, DATE) == f"v{version}"
    with pytest.raises(Refused, match="is not later than"):
        release.release(tree, version, DATE)


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.0.1", "is not later than"), ("next", "is not a version"), ("7.02", "is written '7.2'"), ("", "not a version")],
)
def test_a_wrong_version_is_refused_and_changes_nothing(tree: Path, version: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        release.release(tree, version, DATE)
    assert git(tree, "status", "--porcelain") == git(tree, "tag") == ""


def test_a_changed_tree_is_refused(tree: Path) -> None:
    (tree / "README.md").write_text("half done\n")
    with pytest.raises(Refused, match="the tree has changes"):
        release.release(tree, "7.2.0", DATE)


def test_nothing_to_release_is_refused(tree: Path) -> None:
    text = (tree / "CHANGELOG.md").read_text()
    (tree / "CHANGELOG.md").write_text(text.replace("- A rule.\n", ""))
    with pytest.raises(Refused, match="is empty"):
        release.release(tree, "7.2.0", DATE)
    (tree / "CHANGELOG.md").write_text(text.replace("(unreleased)", "(2026-11-30)"))
    with pytest.raises(Refused, match="has no section"):
        release.release(tree, "7.2.0", DATE)


def test_every_place_that_names_the_version_is_one_that_a_release_changes() -> None:
    version = re.escape(release.current_version(ROOT))
    named = subprocess.run(
        ["git", "grep", "-lE", rf"preflight-train=={version}|/preflight@v{version}", "--", ":!tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if named.returncode > 1:
        pytest.skip("not in a git checkout")
    assert set(named.stdout.split()) <= set(release.PINS)


def test_the_changelog_begins_with_the_version_of_the_tree() -> None:
    first = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None and first[1] == release.current_version(ROOT)


# The workflow that publishes: valid, with no more rights than it needs, and its commands work.


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

"""The container file passes its linter, and its steps run in a folder.

No image is built here. Not tested: the base image, layers, the numeric user inside a container, and the disabled
network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from pathspec import PathSpec

from tests.integrations.hostile import python_that_lends, trap

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "integrations" / "container" / "Containerfile"
IGNORED = FILE.with_name("Containerfile.dockerignore")


def steps() -> list[tuple[str, str]]:
    """The instructions of the file, each with its arguments on one line."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def context() -> set[str]:
    """The files of the build context."""
    left_out = PathSpec.from_lines("gitignore", IGNORED.read_text().splitlines())
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip("not in a git checkout")
    return {name for name in done.stdout.splitlines() if not left_out.match_file(name)}


def test_linter_reports_nothing() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run([str(hadolint), str(FILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_preflight_as_a_numeric_user() -> None:
    said = dict(steps())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"])
    assert said["ENTRYPOINT"] == '["/opt/preflight/bin/python", "-I", "-m", "preflight"]'
    bases = [arguments for instruction, arguments in steps() if instruction == "FROM"]
    assert all(re.match(r"docker\.io/library/python:3\.12-slim@sha256:[0-9a-f]{64}\b", base) for base in bases)


def test_build_context_holds_only_what_the_build_needs() -> None:
    seen = context()
    assert {"pyproject.toml", "README.md", "LICENSE", "preflight/cli/main.py"} <= seen
    assert {"checks/preflight_checks/__init__.py", "rules/preflight_rules/__init__.py"} <= seen
    assert not [name for name in seen if name.startswith((".", "tests/", "docs/", "examples/"))]


def test_build_steps_produce_a_working_preflight(tmp_path: Path) -> None:
    for name in context():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    (line,) = [arguments for instruction, arguments in steps() if instruction == "RUN"]
    opened = tmp_path / "opt"
    line = line.replace("/opt/preflight", str(opened)).replace("/source", str(tmp_path / "source"))
    # The working directory of the line, /opt in the image, is a hostile one here.
    planted = trap(tmp_path / "work")
    environment = {"PATH": f"{python_that_lends(tmp_path / 'tools')}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=planted.checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entry = json.loads(dict(steps())["ENTRYPOINT"].replace("/opt/preflight", str(opened)))
    for more in ({}, planted.environment):
        done = subprocess.run(
            [*entry, "lint", "jobs"],
            cwd=planted.checkout,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1 and "RDV001" in done.stdout, done.stderr
    assert planted.executed == []

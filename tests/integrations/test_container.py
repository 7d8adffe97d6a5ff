"""The container file: held against its linter, and its steps carried out in a folder. No image is built here.

What is not tried: the base image, layers, the user's number inside of a container, and the network being off.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pathspec import PathSpec

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "integrations" / "container" / "Containerfile"
IGNORED = FILE.with_name("Containerfile.dockerignore")


def steps() -> list[tuple[str, str]]:
    """The instructions of the file, each with its arguments on one line."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def context() -> set[str]:
    """The files of the repository that a build sees."""
    left_out = PathSpec.from_lines("gitignore", IGNORED.read_text().splitlines())
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip("not in a git checkout")
    return {name for name in done.stdout.splitlines() if not left_out.match_file(name)}


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run([str(hadolint), str(FILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_as_a_number_that_is_not_root_and_starts_preflight() -> None:
    said = dict(steps())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"])
    assert said["ENTRYPOINT"] == '["preflight"]'
    assert said["FROM"] == "docker.io/library/python:3.12-slim"


def test_the_build_sees_what_it_needs_and_nothing_else() -> None:
    seen = context()
    assert {"pyproject.toml", "README.md", "LICENSE", "preflight/cli.py"} <= seen
    assert {"checks/preflight_checks/__init__.py", "rules/preflight_rules/__init__.py"} <= seen
    assert not [name for name in seen if name.startswith((".", "tests/", "docs/", "examples/"))]


@pytest.mark.slow
def test_its_steps_make_a_preflight_that_runs(tmp_path: Path) -> None:
    for name in context():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    (line,) = [arguments for instruction, arguments in steps() if instruction == "RUN"]
    line = line.replace("/opt/preflight", str(tmp_path / "opt")).replace(" /source", f" {tmp_path / 'source'}")
    # What preflight needs is found where these tests find it, so that no index is asked.
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("run.sh", "train.py"):
        (tmp_path / "work").mkdir(exist_ok=True)
        shutil.copy(ROOT / "examples" / "torchrun-two-nodes" / "broken" / name, tmp_path / "work")
    words = [str(tmp_path / "opt" / "bin" / "preflight"), "lint", "."]
    done = subprocess.run(
        words, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "RDV001" in done.stdout, done.stderr
    assert os.access(words[0], os.X_OK)

"""The example of a third-party pack, built, installed into a separate folder, and used through its entry points."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

PACK = Path(__file__).parents[2] / "examples" / "plugin-pack"
JOB = "#!/bin/bash\nexport HF_HOME=/home/anna/.cache TORCH_HOME=/scratch/t\ntorchrun --standalone train.py\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed pack; it is built without the network, with what is installed here."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder), str(PACK)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(*arguments: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with the folder on its import path."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, "-m", "preflight", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A job with one cache in a home folder."""
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("print('training')\n")
    return tmp_path


def test_the_packs_rule_runs(installed: Path, tree: Path) -> None:
    done = run("lint", "-o", "json", "--select", "ACM,FIL", site=installed, cwd=tree)
    report = json.loads(done.stdout)
    (finding,) = report["findings"]
    assert (finding["id"], finding["name"]) == ("ACM101", "cache-on-home-folder")
    assert (finding["locations"][0]["path"], finding["locations"][0]["line"]) == ("run.sh", 2)
    assert "acme-preflight 1.0" in report["tool"]["plugins"]
    assert report["coverage"]["broken"] == []
    done = run("lint", "--select", "ACM101", "--fail-on", "warning", site=installed, cwd=tree)
    assert done.returncode == 1
    assert "passed in the files: 1 rule on Acme's cluster" in done.stdout


def test_its_rule_can_be_configured_explained_and_suppressed(installed: Path, tree: Path) -> None:
    assert "Use /scratch." in run("explain", "ACM101", site=installed, cwd=tree).stdout
    (tree / "preflight.toml").write_text('[severity]\nACM101 = "error"\n')
    assert "error[ACM101]" in run("lint", site=installed, cwd=tree).stdout
    (tree / "run.sh").write_text(JOB.replace("TORCH", "# preflight: ignore[ACM101] small job\nexport TORCH"))
    assert "suppressed ACM101" in run("lint", site=installed, cwd=tree).stdout


def test_its_reporter_is_a_format(installed: Path, tree: Path) -> None:
    done = run("lint", "-o", "csv", site=installed, cwd=tree)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["severity"], row["id"], row["path"], row["line"]) for row in rows] == [
        ("warning", "ACM101", "run.sh", "2")
    ]


def test_the_packs_chart_is_shown(installed: Path, tmp_path: Path) -> None:
    from preflight.model.recording_io import save
    from tests.builders import job, make_recording, reached

    nodes = reached("r1n1", "r1n2", "r2n1", "login")
    (tmp_path / "saved.json").write_bytes(save(make_recording(job(), verb="check", nodes=nodes, stages=("node",))))
    report = json.loads(run("judge", "saved.json", "-o", "json", site=installed, cwd=tmp_path).stdout)
    assert report["coverage"]["broken"] == []
    (racks,) = [one for one in report["charts"] if one["id"] == "acme.racks"]
    assert racks["note"] == "Which of 2 racks 3 of 4 nodes stand in."
    assert [(row["subject"], row["cells"][0]["value"], row["cells"][0]["odd"]) for row in racks["rows"]] == [
        *(("r1n1", "r1", False), ("r1n2", "r1", False), ("r2n1", "r2", True), ("login", None, False)),
    ]
    # A broken pack does not affect others.
    racks_of = installed / "acme_preflight" / "racks.py"
    text = racks_of.read_text()
    racks_of.write_text(text.replace("    if not found:", '    raise LookupError("no racks today")\n    if not found:'))
    try:
        done = run("judge", "saved.json", "-o", "json", site=installed, cwd=tmp_path)
    finally:
        racks_of.write_text(text)
    again = json.loads(done.stdout)
    (broken,) = again["coverage"]["broken"]
    assert (broken["plugin"], broken["where"]) == ("acme-preflight 1.0", "acme_preflight.racks:racks")
    assert "LookupError: no racks today" in broken["why"]
    assert again["verdict"] == report["verdict"] and again["findings"] == report["findings"]


def test_the_rule_is_unknown_without_the_pack(tmp_path: Path, tree: Path) -> None:
    done = run("lint", "--select", "ACM101", site=tmp_path, cwd=tree)
    assert done.returncode == 2
    assert "unknown rule or check 'ACM101'" in done.stderr

"""`lint --since`: the jobs that a change touches, and what is new in them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight import Configuration, UsageError, VerdictKind, judge, lint
from preflight.cli.main import run
from preflight.model.recording import Recording
from preflight.model.recording_io import load, save

Git = Callable[..., None]
LOOPBACK = "torchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
REACHABLE = LOOPBACK.replace("localhost", "node1")
TRAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git in a repository with two jobs: `old` has a fault, `good` has none."""
    monkeypatch.chdir(tmp_path)

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *who, *words], cwd=tmp_path, env=environment, check=True, timeout=30)

    for name, line in (("old", LOOPBACK), ("good", REACHABLE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(f"#!/bin/bash\n{line}")
        (tmp_path / name / "train.py").write_text(TRAIN)
    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one")
    return git


def ids(paths: str = ".", **more: str) -> list[str]:
    """The rules with new findings since the commit, and where."""
    return [f"{finding.id} {finding.locations[0].path}" for finding in lint([paths], since="HEAD").findings]


def test_without_a_change_nothing_is_judged_and_nothing_fails(git: Git) -> None:
    report = lint(["."], since="HEAD")
    assert (report.verdict, report.exit_code, report.jobs) == (VerdictKind.NOT_JUDGED, 0, ())
    assert report.configuration.since is not None and report.configuration.since.unchanged_jobs == 2


def test_only_what_is_new_counts(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n\n{LOOPBACK}")
    report = lint(["."], since="HEAD")
    assert report.verdict is VerdictKind.GO and [job.name for job in report.jobs] == ["old/run.sh"]
    assert {(finding.id, finding.suppressed_by) for finding in report.suppressed} >= {("RDV001", "since")}
    (tmp_path / "good" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert ids() == ["RDV001 good/run.sh"]
    assert lint(["."], since="HEAD").exit_code == 1
    assert ids("old") == []


def test_a_changed_file_touches_every_job_that_includes_it(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "train.py").write_text(TRAIN + "dist.barrier()\n")
    assert [job.name for job in lint(["."], since="HEAD").jobs] == ["good/run.sh"]


def test_a_new_job_is_judged_and_a_removed_one_is_not(git: Git, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    (tmp_path / "old" / "run.sh").unlink()
    assert ids() == ["RDV001 new/run.sh"]


def test_a_removed_file_touches_the_job_that_had_it(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "train.py").unlink()
    report = lint(["."], since="HEAD")
    assert [job.name for job in report.jobs] == ["good/run.sh"]
    assert report.configuration.since is not None and "good/train.py" in report.configuration.since.changed


def test_a_fault_whose_suppression_is_removed_is_new(git: Git, tmp_path: Path) -> None:
    line = LOOPBACK.replace("\n", "  # preflight: ignore[RDV001] a test\n")
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n{line}")
    git("commit", "--quiet", "--all", "--message", "two")
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert "RDV001 old/run.sh" in ids()


def test_mandatory_rules_count_as_with_a_baseline(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n{LOOPBACK}")
    report = lint(["."], since="HEAD", configuration=Configuration(mandatory=("RDV001",)))
    assert "RDV001" in {finding.id for finding in report.findings}


def test_a_changed_file_that_cannot_be_read_is_not_passed_over(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "run.sh").write_bytes(b"#!/bin/bash\n# \0\n")
    report = lint(["good/run.sh"], since="HEAD")
    assert report.verdict is VerdictKind.INCOMPLETE


def test_the_recording_of_it_is_judged_the_same(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n{LOOPBACK}")
    report = lint(["."], since="HEAD")
    recording = Recording(
        jobs=report.jobs, created=report.run.created, tool_version="0", configuration=report.configuration
    )
    again = judge(load(save(recording)))
    assert again.suppressed == report.suppressed and again.findings == report.findings


def test_the_command(git: Git, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--since", "HEAD"]) == 0
    assert "the change since HEAD touches none of 2 jobs" in capfd.readouterr().out
    (tmp_path / "good" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert run(["lint", "--since", "HEAD"]) == 1
    assert "only what is new since HEAD" in capfd.readouterr().out
    assert run(["lint", "--since", "HEAD", "-o", "json"]) == 1
    since = json.loads(capfd.readouterr().out)["configuration"]["since"]
    assert since["changed"] == ["good/run.sh"]
    assert run(["lint", "--since", "nowhere"]) == 2
    assert "this clone has no commit 'nowhere'" in capfd.readouterr().err


def test_standard_input_has_no_earlier_version(git: Git) -> None:
    with pytest.raises(UsageError, match="standard input"):
        lint(["x.sh"], since="HEAD", given={Path("x.sh"): b""})

"""A baseline accepts the findings of the time it was written, and no later ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.config import baseline
from preflight.model.configuration import Accepted

FAULTY = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
NAME = baseline.DEFAULT_NAME


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that has one error."""
    (tmp_path / "run.sh").write_text(FAULTY)
    (tmp_path / "train.py").write_text("print('training')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_new_findings_count(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint"]) == 1
    assert main.run(["baseline", "write"]) == 0
    assert f"{NAME}: 1 finding accepted" in capfd.readouterr().out
    assert main.run(["lint", "--baseline", NAME]) == 0
    assert f"1 finding accepted in {NAME}" in capfd.readouterr().out
    # Moved down by two lines, it is the same finding; another one of the same kind is not.
    (tree / "run.sh").write_text(FAULTY.replace("\n", "\n# more\n# lines\n", 1))
    assert main.run(["lint", "--baseline", NAME]) == 0
    (tree / "run.sh").write_text(FAULTY + FAULTY.splitlines()[1].replace("localhost", "127.0.0.1") + "\n")
    assert main.run(["lint", "--baseline", NAME]) == 1


def test_two_equal_lines_are_two_findings(tree: Path) -> None:
    assert main.run(["baseline", "write"]) == 0
    (tree / "run.sh").write_text(FAULTY + FAULTY.splitlines()[1] + "\n")
    assert main.run(["lint", "--baseline", NAME]) == 1


def test_fixed_findings_are_named_and_pruned(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["baseline", "write"]) == 0
    (tree / "run.sh").write_text(FAULTY.replace("localhost", "node1"))
    capfd.readouterr()
    assert main.run(["lint", "--baseline", NAME]) == 0
    assert "1 entry suppresses nothing any more" in capfd.readouterr().out
    # A run over other files or with other rules does not report it.
    (tree / "other.sh").write_text("#!/bin/bash\ntorchrun --standalone train.py\n")
    for arguments in (["other.sh"], [".", "--select", "ENV"]):
        assert main.run(["lint", *arguments, "--baseline", NAME]) == 0
        assert "suppresses nothing" not in capfd.readouterr().out
    assert main.run(["baseline", "prune"]) == 0
    out = capfd.readouterr().out
    assert "run.sh: RDV001" in out
    assert "1 finding removed, 0 left" in out
    assert json.loads((tree / NAME).read_text())["findings"] == []


def test_findings_of_files_that_are_gone_are_pruned(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["baseline", "write"]) == 0
    (tree / "run.sh").unlink()
    assert main.run(["baseline", "prune"]) == 0
    assert "1 finding removed, 0 left" in capfd.readouterr().out


def test_prune_from_another_folder_changes_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["baseline", "write"]) == 0
    kept = (tree / NAME).read_bytes()
    (tree / "jobs").mkdir()
    (tree / "jobs" / "other.sh").write_text("#!/bin/bash\ntorchrun --standalone train.py\n")
    monkeypatch.chdir(tree / "jobs")
    assert main.run(["baseline", "prune", "--baseline", f"../{NAME}"]) == 2
    assert "run prune where it was written" in capfd.readouterr().err
    assert (tree / NAME).read_bytes() == kept


def test_the_configuration_may_name_it(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "preflight.toml").write_text('baseline = "accepted.json"\n')
    assert main.run(["lint"]) == 2
    assert "`preflight baseline write` makes one" in capfd.readouterr().err
    assert main.run(["baseline", "write"]) == 0
    assert main.run(["lint"]) == 0
    assert main.run(["baseline", "show", "accepted.json"]) == 0
    assert "RDV001  1\n    run.sh\n1 finding accepted" in capfd.readouterr().out


def test_suppressed_findings_are_kept_in_json_and_sarif(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main.run(["baseline", "write"]) == 0
    capfdbinary.readouterr()
    assert main.run(["lint", "--baseline", NAME, "-o", "json"]) == 0
    (finding,) = json.loads(capfdbinary.readouterr().out)["suppressed"]
    assert (finding["id"], finding["suppressed_by"]) == ("RDV001", "baseline")
    assert main.run(["lint", "--baseline", NAME, "-o", "sarif"]) == 0
    (result,) = json.loads(capfdbinary.readouterr().out)["runs"][0]["results"]
    assert result["suppressions"][0]["kind"] == "external"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "is not a baseline"),
        ('{"schema_version": 2, "findings": []}', "has the schema version 2"),
        ('{"schema_version": 1, "findings": [{"id": "RDV001"}]}', "findings[0] must have"),
        ('{"schema_version": 1, "findings": [3]}', "findings[0] must have"),
    ],
)
def test_a_file_that_is_not_a_baseline(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError, match=expected.replace("[", r"\[")):
        baseline.load(tmp_path / "b.json")


def test_the_file_has_one_finding_per_line(tmp_path: Path) -> None:
    entries = tuple(Accepted(f"{n:024x}", "RDV001", f"jobs/{n}.sh", 'says "no"\n') for n in range(3))
    (tmp_path / "b.json").write_bytes(baseline.dump(baseline.Baseline(entries)))
    assert baseline.load(tmp_path / "b.json").entries == entries
    assert (tmp_path / "b.json").read_text().count("\n") == 3 + 5


def test_another_job_that_reaches_the_same_file_changes_nothing(tree: Path) -> None:
    launch = "#!/bin/bash\nsource ./env.sh\ntorchrun --nnodes=2 --node_rank=$R --master_addr=node0 train.py\n"
    (tree / "env.sh").write_text("export NCCL_IB_TIMEOUTT=22\n")
    (tree / "run.sh").write_text(launch)
    assert main.run(["lint", "--fail-on", "warning"]) == 1
    assert main.run(["baseline", "write"]) == 0
    (tree / "another.sh").write_text(launch)
    assert main.run(["lint", "--fail-on", "warning", "--baseline", NAME]) == 0

"""The verbs as functions: what docs/python.md shows works and is typed, nothing prints, and importing costs nothing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import preflight
from preflight import CheckOptions, Recording, Report, UsageError, VerdictKind, check, judge, lint
from preflight.outcome import Status

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
JOB = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
EXAMPLE = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose nodes meet at the loopback address of each."""
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.sh"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """All that the page shows, as one module."""
    module = ModuleType("example")
    exec(compile(EXAMPLE, "docs/python.md", "exec"), module.__dict__)
    return module


def test_the_example_finds_the_fault_of_a_job(
    example: ModuleType, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.refuse_to_submit("run.sh") is True
    assert "run.sh:2: RDV001" in capsys.readouterr().err
    job.write_text(JOB.replace("localhost", "node1"))
    assert example.refuse_to_submit("run.sh") is False
    assert example.refuse_to_submit("nowhere.sh") is True
    assert "nowhere.sh does not exist" in capsys.readouterr().err


def test_the_example_looks_at_nodes_and_compares(example: ModuleType, job: Path) -> None:
    job.write_text(JOB.replace("localhost", "node1"))
    assert not [line for line in example.look("run.sh", "node1,node2") if "RDV001" in line]
    (job.parent / "today.json").rename(job.parent / "yesterday.json")
    job.write_text(JOB)
    assert "new: RDV001" in example.look("run.sh", "node1,node2", Path("yesterday.json"))


def test_the_example_reads_logs_and_writes_sarif(example: ModuleType, job: Path) -> None:
    Path("run.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert example.why("run.log").endswith("run.log:1")
    assert b'"version": "2.1.0"' in example.as_sarif(lint([job]))


def test_nothing_prints_and_a_loop_that_runs_already_is_no_hindrance(
    job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def in_a_notebook() -> tuple[Recording, Report]:
        return check([job], CheckOptions(executor="local", hosts="a,b", until="node"))

    report = lint([job])
    recording, live = asyncio.run(in_a_notebook())
    again = judge(recording)
    assert len(live.nodes) == 2 and not any(record.problem for record in live.nodes)
    assert isinstance(report, Report) and report.verdict is VerdictKind.NO_GO
    assert {outcome.status for outcome in live.outcomes} <= {*Status}
    assert again.findings == live.findings
    assert capfd.readouterr() == ("", "")


def test_a_mistake_is_a_usage_error(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="did you mean 'ssh'"):
        check([job], CheckOptions(executor="shh", hosts="a"))
    with pytest.raises(UsageError, match="nowhere"):
        lint(["nowhere"])
    assert capfd.readouterr() == ("", "")


def test_every_name_is_there_and_an_unknown_one_is_not() -> None:
    assert dir(preflight) == sorted(preflight.__all__)
    for name in preflight.__all__:
        assert getattr(preflight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lnt'"):
        preflight.lnt  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing() -> None:
    script = "import sys; before = {*sys.modules}; import preflight; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["preflight"]


def test_the_example_has_the_types_that_it_says(tmp_path: Path) -> None:
    """Checked as a user's own program would be, against the installed package; a misspelt name or type is noticed."""
    wrong = EXAMPLE + "\n\nfrom preflight import lnt\n\nnumber: int = lint(['run.sh']).verdict\n"
    (tmp_path / "right.py").write_text(EXAMPLE)
    (tmp_path / "wrong.py").write_text(wrong)
    done = subprocess.run(
        # From here, so that what mypy keeps of the package since the last run serves this one, too.
        [sys.executable, "-m", "mypy", str(tmp_path / "right.py"), str(tmp_path / "wrong.py")],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    problems = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(problems) == 2 and all("wrong.py:" in line for line in problems), done.stdout + done.stderr
    assert 'has no attribute "lnt"' in problems[0] and 'expression has type "VerdictKind"' in problems[1]

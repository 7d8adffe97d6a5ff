"""The commands as functions: the examples of docs/python.md work and are typed, nothing is printed, and importing is
cheap.
"""

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
from preflight import Recording, Report, RunOptions, UsageError, VerdictKind, check, judge, lint
from preflight.model.findings import Severity, Status

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
JOB = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
PLUGIN = '''"""Own rules."""

from preflight.plugin import Severity, failed, rule


@rule("ACM110", "own", severity=Severity.WARNING, evidence=("https://wiki.example.org/own",))
def own(job):
    """Tells the number of nodes.

    What it checks:
        Nothing.

    Why it matters:
        It does not.

    Example:
        None.

    Fix:
        None.

    Known limits:
        None.
    """
    for claim in job.about("nodes"):
        yield failed("x", f"{claim.alternatives[0]} nodes", at=claim, remedy="-")
'''
SITE_RULES = """
[[rule]]
id = "ACM501"
name = "own-name"
severity = "warning"
message = "a launch is torchrun"
remedy = "-"
evidence = "https://wiki.example.org/own"
quantity = "nodes"
at-most = 1
"""
EXAMPLE = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose rendezvous address is loopback."""
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.sh"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """All code of the page, as one module."""
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


def test_the_example_checks_nodes_and_compares(example: ModuleType, job: Path) -> None:
    job.write_text(JOB.replace("localhost", "node1"))
    assert not [line for line in example.look("run.sh", "node1,node2") if "RDV001" in line]
    (job.parent / "today.json").rename(job.parent / "yesterday.json")
    job.write_text(JOB)
    assert "new: RDV001" in example.look("run.sh", "node1,node2", Path("yesterday.json"))


def test_the_example_reads_logs_and_writes_sarif(example: ModuleType, job: Path) -> None:
    Path("run.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert example.why("run.log").endswith("run.log:1")
    assert b'"version": "2.1.0"' in example.as_sarif(lint([job]))


def test_nothing_is_printed_and_a_running_loop_is_supported(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def in_a_notebook() -> tuple[Recording, Report]:
        return check([job], RunOptions(executor="local", hosts="a,b", until="node"))

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
        check([job], RunOptions(executor="shh", hosts="a"))
    with pytest.raises(UsageError, match="nowhere"):
        lint(["nowhere"])
    assert capfd.readouterr() == ("", "")


def test_every_public_name_exists() -> None:
    assert dir(preflight) == sorted(preflight.__all__)
    for name in preflight.__all__:
        assert getattr(preflight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lnt'"):
        preflight.lnt  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing() -> None:
    script = "import sys; before = {*sys.modules}; import preflight; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["preflight"]


@pytest.mark.thorough
def test_the_example_passes_mypy(tmp_path: Path) -> None:
    """Checked as a user's own program would be, against the installed package; a misspelt name or type is noticed."""
    wrong = EXAMPLE + "\n\nfrom preflight import lnt\n\nnumber: int = lint(['run.sh']).verdict\n"
    (tmp_path / "right.py").write_text(EXAMPLE)
    (tmp_path / "wrong.py").write_text(wrong)
    done = subprocess.run(
        # Run from here, so that mypy can reuse its cache of the package.
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


def test_one_path_or_several(job: Path) -> None:
    found = [lint(given) for given in ("run.sh", job, ["run.sh"], [job, "train.py"])]
    assert len({tuple(finding.fingerprint for finding in report.findings) for report in found}) == 1


def test_plugins_site_rules_and_variables_are_of_one_call(job: Path) -> None:
    job.write_text("#!/bin/bash\ntorchrun --nnodes=$NODES --nproc_per_node=1 --master_addr=node1 train.py\n")
    Path("own.py").write_text(PLUGIN)
    Path("site.toml").write_text(SITE_RULES)
    report = lint("run.sh", plugins=["own.py"], site_rules="site.toml", set={"NODES": "3"})
    said = {finding.id: finding.message for finding in report.findings}
    assert said["ACM110"] == "3 nodes" and "ACM501" in said
    assert not {"ACM110", "ACM501"} & {outcome.id for outcome in lint("run.sh").outcomes}
    with pytest.raises(UsageError, match="nowhere"):
        lint("run.sh", plugins=["nowhere.py"])


def test_a_misspelt_quantity_in_a_plugin_is_named(job: Path) -> None:
    Path("own.py").write_text(PLUGIN.replace('"nodes"', '"ndoes"'))
    report = lint("run.sh", plugins=["own.py"])
    (outcome,) = [outcome for outcome in report.outcomes if outcome.id == "ACM110"]
    assert outcome.required and "unknown quantity 'ndoes'; did you mean 'nodes'?" in outcome.reason
    assert report.exit_code != 0


def test_a_report_is_easy_to_look_at(job: Path) -> None:
    report = lint(job)
    assert repr(report).startswith("<Report of lint: no-go, 1 error") and "\n" not in repr(report)
    assert report.to_dict()["summary"]["errors"] == report.summary.errors == 1
    assert report.summary.rules[0].id == "RDV001" and report.summary.rules[0].findings == 1
    (fault,) = report.select(severity="error")
    assert report.select(rule="RDV", file="*.sh") == report.select(rule="rendezvous-on-loopback") == (fault,)
    assert report.select(rule="RDV001", severity=Severity.INFO) == report.select(file="nowhere") == ()
    with pytest.raises(UsageError, match="use one of"):
        report.select(severity="eror")


def test_a_notebook_shows_text_of_a_stranger_as_text(job: Path) -> None:
    job.write_text(JOB.replace("train.py", "'<script>alert(1)</script>.py'"))
    shown = lint(job)._repr_html_()
    assert "<strong>no-go</strong>" in shown and "RDV001" in shown
    assert "<script" not in shown


def test_help_shows_signatures() -> None:
    script = "import preflight; help(preflight.lint); help(preflight.Report.select)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    for word in ("paths: 'str | Path | Sequence[str | Path]' = '.'", "site_rules", "Raises:", "severity: "):
        assert word in done.stdout

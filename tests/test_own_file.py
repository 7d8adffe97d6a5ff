"""A check in one Python file, as a site would write it: taken by --plugin, its probe shipped to nodes, judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight import catalog, cli
from preflight.errors import UsageError

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own-check" / "scratch_speed.py"
JOB = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --master_addr=local0 train.py\n"
WARNING = EXAMPLE.read_text().replace("rate >= 1.0", "rate >= 1e9")
SHOWING = """
from preflight.exhibit import Bar, Bars

def rates(job, fleet, facts):
    seen = sorted(facts.observed(scratch_speed).items())
    bars = tuple(Bar("scratch", node, speed.wrote_bytes / MIB / speed.took_s) for node, speed in seen)
    if bars:
        yield Bars("acme.scratch", "Scratch folders", "What each of them took.", "MiB/s", bars)

EXHIBITS = (rates,)
"""


@pytest.fixture(autouse=True)
def _nothing_taken() -> object:
    """No file of one test takes part in another."""
    yield
    catalog.take(())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two nodes, and a scratch folder."""
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("ACME_SCRATCH", str(tmp_path / "scratch"))
    return tmp_path / "run.sh"


def run(job: Path, plugin: Path, capfd: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, object]]:
    """Exit code and report of a check with the plugin, on two agents of this machine."""
    saved = str(job.parent / "recording.json")
    words = ["check", str(job), "--on", "local", "--until", "node", "--plugin", str(plugin)]
    code = cli.run([*words, "--select", "ACM,NOD", "--save", saved, "-o", "json", *options])
    return code, json.loads(capfd.readouterr().out)


def test_the_example_runs_on_nodes_and_passes(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, report = run(job, EXAMPLE, capfd)
    assert code == 0, report
    outcomes = [(o["subject"], o["status"]) for o in report["outcomes"] if o["id"] == "ACM301"]  # type: ignore[attr-defined]
    assert outcomes == [("scratch on local0", "pass"), ("scratch on local1", "pass")]
    assert not list((job.parent / "scratch").iterdir())


def test_it_finds_and_the_recording_is_judged_the_same(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(WARNING + SHOWING)
    _, report = run(job, mine, capfd)
    found = [f for f in report["findings"] if f["id"] == "ACM301"]  # type: ignore[attr-defined]
    assert {node for f in found for node in f["nodes"]} == {"local0", "local1"}
    assert any(plugin.startswith("mine.py sha256:") for plugin in report["tool"]["plugins"])  # type: ignore[index]
    assert cli.run(["judge", str(job.parent / "recording.json"), "--plugin", str(mine), "-o", "json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert [f["message"] for f in again["findings"]] == [f["message"] for f in report["findings"]]  # type: ignore[attr-defined]
    (shown,) = [one for one in again["exhibits"] if one["id"] == "acme.scratch"]
    assert shown in report["exhibits"] and [bar["group"] for bar in shown["bars"]] == ["local0", "local1"]  # type: ignore[operator]
    assert cli.run(["judge", str(job.parent / "recording.json"), "-o", "json"]) == 0
    without = json.loads(capfd.readouterr().out)
    assert not without["findings"], "a file that is not named takes no part"
    assert "acme.scratch" not in {one["id"] for one in without["exhibits"]}


def test_a_folder_that_is_not_there_leaves_the_verdict_incomplete(
    job: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_SCRATCH", "/nowhere/at/all")
    code, report = run(job, EXAMPLE, capfd)
    assert code == 3 and report["verdict"] == "incomplete"
    assert "/nowhere/at/all is not there" in json.dumps(report["coverage"])


def test_a_probe_that_needs_what_nodes_lack_is_said_and_the_rest_runs(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text().replace("file = Path(", "probe_name(plan)\n    file = Path("))
    code, report = run(job, mine, capfd)
    assert code == 3
    told = json.dumps(report["coverage"])
    assert "a probe uses preflight.request, which nodes do not have" in told and "mine.py:" in told


def test_it_is_listed_and_explained(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", "ACM301", "--plugin", str(EXAMPLE)]) == 0
    assert "writes 4 MiB to the scratch folder" in capfd.readouterr().out
    assert cli.run(["rules", "--plugin", str(EXAMPLE)]) == 0
    assert "ACM301  scratch-slow" in capfd.readouterr().out
    assert cli.run(["explain", "ACM301"]) == 2


def test_lint_takes_rules_of_a_file_and_keeps_nothing_of_another(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    text = (ROOT / "examples" / "plugin-pack" / "acme_preflight" / "caches.py").read_text()
    job.write_text("export HF_HOME=/home/anna/cache\n" + JOB)
    mine.write_text(text)
    for wanted, source in ((1, text), (0, text.replace('startswith("/home/")', 'startswith("/nfs/")'))):
        mine.write_text(source)
        cli.run(["lint", str(job), "--plugin", str(mine), "-o", "json", "--select", "ACM"])
        assert len(json.loads(capfd.readouterr().out)["findings"]) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file"),
        ("x = 1\n", "defines no rule and no check"),
        ("\nx = (\n", ":2: SyntaxError"),
        ("x = 1\nimport no_such_module_anywhere\n", ":2: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", ":1: SystemExit"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_mistake_with_its_place(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "broken.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as raised:
        catalog.take([file])
    assert says in str(raised.value)


def test_a_file_may_hold_nothing_but_exhibits_and_what_is_none_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shown.py"
    file.write_text("def nothing(job, fleet, facts):\n    return ()\n\nEXHIBITS = (nothing, 7)\n")
    catalog.take([file])
    found, broken = catalog.exhibitors()
    assert "nothing" in {one.where for one in found if one.plugin.startswith("shown.py sha256:")}
    assert [(one.where, one.why) for one in broken] == [("7", "TypeError: it is no function but int")]


def test_what_is_taken_twice_or_collides_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = tmp_path / "one.py"
    one.write_text(EXAMPLE.read_text())
    assert cli.run(["rules", "--plugin", str(EXAMPLE), "--plugin", str(one)]) == 0
    assert capfd.readouterr().out.count("ACM301") == 1
    assert any("collides" in item.why for item in catalog.load(catalog.CHECKS).broken)

"""A check in one Python file, as a site would write it: loaded by --plugin, with its probe sent to nodes, and judged
again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.plugins import registry

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-check" / "scratch_speed.py"
JOB = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --master_addr=local0 train.py\n"
WARNING = EXAMPLE.read_text().replace("rate >= 1.0", "rate >= 1e9")
SHOWING = """
from preflight.model.charts import Bar, Bars

def rates(job, fleet, facts):
    seen = sorted(facts.observed(scratch_speed).items())
    bars = tuple(Bar("scratch", node, speed.wrote_bytes / MIB / speed.took_s) for node, speed in seen)
    if bars:
        yield Bars("acme.scratch", "Scratch folders", "What each of them took.", "MiB/s", bars)

PACK = Pack(areas=PACK.areas, charts=(rates,))
"""


@pytest.fixture(autouse=True)
def _nothing_taken() -> object:
    """Unload the plugin files of each test."""
    yield
    registry.use_plugin_files(())


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
    code = main.run([*words, "--select", "ACM,NOD", "--save", saved, "-o", "json", *options])
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
    assert main.run(["judge", str(job.parent / "recording.json"), "--plugin", str(mine), "-o", "json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert [f["message"] for f in again["findings"]] == [f["message"] for f in report["findings"]]  # type: ignore[attr-defined]
    (shown,) = [one for one in again["charts"] if one["id"] == "acme.scratch"]
    assert shown in report["charts"] and [bar["group"] for bar in shown["bars"]] == ["local0", "local1"]  # type: ignore[operator]
    assert main.run(["judge", str(job.parent / "recording.json"), "-o", "json"]) == 0
    without = json.loads(capfd.readouterr().out)
    assert not without["findings"], "a file that is not named takes no part"
    assert "acme.scratch" not in {one["id"] for one in without["charts"]}


def test_a_missing_folder_leaves_the_verdict_incomplete(
    job: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_SCRATCH", "/nowhere/at/all")
    code, report = run(job, EXAMPLE, capfd)
    assert code == 3 and report["verdict"] == "incomplete"
    assert "/nowhere/at/all does not exist" in json.dumps(report["coverage"])


def test_a_probe_with_unavailable_imports_is_reported_and_others_run(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text().replace("file = Path(", "probe_name(plan)\n    file = Path("))
    code, report = run(job, mine, capfd)
    assert code == 3
    told = json.dumps(report["coverage"])
    assert "a probe uses preflight.model.requests, which nodes do not have" in told and "mine.py:" in told


def test_it_is_listed_and_explained(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", "ACM301", "--plugin", str(EXAMPLE)]) == 0
    assert "writes 4 MiB to the scratch folder" in capfd.readouterr().out
    assert main.run(["rules", "--plugin", str(EXAMPLE)]) == 0
    assert "ACM301  scratch-slow" in capfd.readouterr().out
    assert main.run(["explain", "ACM301"]) == 2


def test_lint_uses_only_the_rules_of_the_given_file(
    job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    text = (ROOT / "examples" / "plugin-pack" / "acme_preflight" / "caches.py").read_text()
    job.write_text("export HF_HOME=/home/anna/cache\n" + JOB)
    mine.write_text(text)
    for wanted, source in ((1, text), (0, text.replace('startswith("/home/")', 'startswith("/nfs/")'))):
        mine.write_text(source)
        main.run(["lint", str(job), "--plugin", str(mine), "-o", "json", "--select", "ACM"])
        assert len(json.loads(capfd.readouterr().out)["findings"]) == wanted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read: No such file"),
        ("x = 1\n", "defines no rule and no check"),
        ("\nx = (\n", ":2: SyntaxError"),
        ("x = 1\nimport no_such_module_anywhere\n", ":2: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", ":1: SystemExit"),
    ],
)
def test_an_unusable_file_is_reported_with_the_location(tmp_path: Path, text: str | None, expected: str) -> None:
    file = tmp_path / "broken.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as raised:
        registry.use_plugin_files([file])
    assert expected in str(raised.value)


def test_a_file_may_contain_only_charts_and_invalid_ones_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shown.py"
    pack = "from preflight.plugin import Pack\n\nPACK = Pack(charts=(nothing, 7))\n"
    file.write_text(f"def nothing(job, fleet, facts):\n    return ()\n\n{pack}")
    registry.use_plugin_files([file])
    found, broken = registry.chart_makers()
    assert "nothing" in {one.where for one in found if one.plugin.startswith("shown.py sha256:")}
    assert [(one.where, one.why) for one in broken] == [("7", "TypeError: expected a function, not int")]


def test_duplicate_files_and_ids_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = tmp_path / "one.py"
    one.write_text(EXAMPLE.read_text())
    assert main.run(["rules", "--plugin", str(EXAMPLE), "--plugin", str(one)]) == 0
    assert capfd.readouterr().out.count("ACM301") == 1
    assert any("collides" in item.why for item in registry.load(registry.CHECKS).broken)

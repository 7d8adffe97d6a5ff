"""Plugins: a good one is used, a broken one is named and does not affect others."""

from __future__ import annotations

import csv
import gc
import json
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import preflight_checks
from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.engine.evaluate import outcomes_of
from preflight.engine.judge import judge
from preflight.model.job import Job
from preflight.model.recording import Facts, UnplannedCheck
from preflight.plugins import registry
from preflight.plugins.authoring import clear_memo, memoize
from preflight.plugins.pack import modules
from tests.builders import assert_follows_schema, job, make_recording, reached

GOOD = '''
from preflight.plugins.authoring import failed, rule
from preflight.model.findings import Severity

@rule("ZZZ001", "site-fault", severity=Severity.WARNING, evidence=("https://example.org/",))
def site_fault(job):
    """A site rule."""
    for launch in job.launches:
        yield failed(launch.id, "not at this site", at=launch, remedy="Ask first.")

PACK = ("site_rules:site_fault",)
'''


def lint(tmp_path: Path, module: str, *, group: str = "preflight.rules") -> tuple[int, dict[str, Any]]:
    """Lint a job while a distribution with this module is installed; exit code and report."""
    site = tmp_path / "site"
    info = site / "site_rules-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-rules\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nsite = site_rules:PACK\n")
    (site / "site_rules.py").write_text(module)
    job = tmp_path / "run.sh"
    job.write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 train.py\n")
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "lint", str(job), "-o", "json"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    return done.returncode, assert_follows_schema(done.stdout)


@pytest.mark.parametrize("stages", [("node",), ("node", "link"), ("node", "smoke"), ("node", "link", "smoke")])
def test_the_checks_of_the_stages_are_loaded(stages: tuple[str, ...]) -> None:
    loaded = registry.checks(frozenset(stages))
    assert [one for one in loaded if one.when in stages] == [one for one in registry.checks() if one.when in stages]
    assert "smoke" in stages or "smoke" not in {one.when for one in loaded}


def test_modules_listed_for_one_stage_serve_only_that_stage() -> None:
    for place, stage in preflight_checks.PACK.stages.items():
        found = [one for one in registry.checks() if f"{one.judge.__module__}.".startswith(f"{place}.")]
        assert {one.when for one in found} <= {stage}
        assert found or place.startswith("preflight_checks.charts.")
        pack = preflight_checks.PACK
        assert any(entry.startswith(place) for entry in (*pack.items, *pack.charts, *pack.measurements))


def test_a_run_that_ended_early_is_judged_as_if_all_checks_were_loaded() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a", "b"), stages=("node",))
    everything = outcomes_of(recording, registry.rules(), registry.checks())
    assert judge(recording).outcomes == everything


def test_an_unplanned_check_is_reported_even_if_its_stage_was_not_reached() -> None:
    (check,) = [one for one in registry.checks() if one.meta.name == "straggler"]
    gone = UnplannedCheck(check.meta.id, job().name, "it broke")
    recording = replace(make_recording(job(), verb="check", nodes=reached("a"), stages=("node",)), unplanned=(gone,))
    assert any(one.id == check.meta.id and "it broke" in one.reason for one in judge(recording).outcomes)


def test_a_plugin_is_used(tmp_path: Path) -> None:
    code, report = lint(tmp_path, GOOD)
    assert code == 0
    assert [finding["id"] for finding in report["findings"]] == ["ZZZ001"]
    assert report["coverage"]["broken"] == []
    assert "site-rules 2.0" in report["tool"]["plugins"]


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "AttributeError"),
        ("PACK = 3", "TypeError"),
        ("from preflight.plugin import Pack\nPACK = Pack(itmes=())", "unexpected keyword argument 'itmes'"),
        ("PACK = 'site_rules:site_fault'", "not one string"),
        ("PACK = ('site_rules:missing',)", "AttributeError"),
        ("PACK = ('no_such_module',)", "ModuleNotFoundError"),
        ("PACK = ('site_rules:helper',)\ndef helper(job): ...", "expected a rule, not function"),
        (GOOD.replace("ZZZ001", "RDV001"), "collides with RDV001"),
        (GOOD.replace("site-fault", "rendezvous-on-loopback"), "collides with RDV001"),
        (GOOD.replace("ZZZ001", "zzz1"), "not a rule id"),
    ],
    ids=lambda value: value if len(value) < 40 else "pack",
)
def test_a_broken_plugin_is_named_and_others_run(tmp_path: Path, module: str, why: str) -> None:
    code, report = lint(tmp_path, module)
    (broken,) = report["coverage"]["broken"]
    assert why in broken["why"]
    assert broken["plugin"] == "site-rules 2.0"
    assert (code, report["verdict"]) == (3, "incomplete")
    assert report["coverage"]["passed"] > 0


def test_a_broken_source_is_named_too(tmp_path: Path) -> None:
    code, report = lint(tmp_path, "PACK = (object(),)", group="preflight.sources")
    assert code == 3
    assert "it has no name" in report["coverage"]["broken"][0]["why"]


def test_without_entry_points_the_command_fails(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(folder) for folder in (root, root / "checks", root / "rules", *sys.path[1:]))
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 train.py\n")
    script = (
        "import importlib.metadata as metadata\n"
        "metadata.entry_points = lambda: metadata.EntryPoints()\n"
        "from preflight.cli import main as cli\n"
        "raise SystemExit(cli.run(['lint', 'run.sh', '-o', 'text']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "unknown reporter 'text'" in done.stderr


def test_unknown_names_get_the_nearest_ones() -> None:
    assert registry.unknown_names(["RDV001", "rdv", "rendezvous-on-loopback"], registry.rules()) == {}
    found = registry.unknown_names(["RDV01", "qqqq"], registry.rules())
    assert "RDV001" in found["RDV01"]
    assert found["qqqq"] == ()
    with pytest.raises(KeyError, match="did you mean 'sarif'"):
        registry.load_named(registry.REPORTERS, "sarf")


def test_a_listing_is_json(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "rules", "-o", "json"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    listed = json.loads(done.stdout)
    assert {"id", "name", "when", "severity", "evidence", "doc"} <= set(listed[0])


def test_an_unloadable_built_in_executor_is_reported_with_the_valid_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert registry.load_named(registry.EXECUTORS, "mpi").name == "mpi"
    monkeypatch.setitem(sys.modules, "preflight.executors.mpi", None)
    registry.load.cache_clear()
    try:
        with pytest.raises(KeyError, match=r"unknown executor 'mpi'; .*known names: .*ssh"):
            registry.load_named(registry.EXECUTORS, "mpi")
    finally:
        registry.load.cache_clear()


# The example of a third-party pack, built, installed into a separate folder, and used through its entry points.


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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_its_rule_can_be_configured_explained_and_suppressed(installed: Path, tree: Path) -> None:
    assert "Use /scratch." in run("explain", "ACM101", site=installed, cwd=tree).stdout
    (tree / "preflight.toml").write_text('[severity]\nACM101 = "error"\n')
    assert "error[ACM101]" in run("lint", site=installed, cwd=tree).stdout
    (tree / "run.sh").write_text(JOB.replace("TORCH", "# preflight: ignore[ACM101] small job\nexport TORCH"))
    assert "suppressed ACM101" in run("lint", site=installed, cwd=tree).stdout


@pytest.mark.thorough
def test_its_reporter_is_a_format(installed: Path, tree: Path) -> None:
    done = run("lint", "-o", "csv", site=installed, cwd=tree)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["severity"], row["id"], row["path"], row["line"]) for row in rows] == [
        ("warning", "ACM101", "run.sh", "2")
    ]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_rule_is_unknown_without_the_pack(tmp_path: Path, tree: Path) -> None:
    done = run("lint", "--select", "ACM101", site=tmp_path, cwd=tree)
    assert done.returncode == 2
    assert "unknown rule or check 'ACM101'" in done.stderr


# A check in one Python file, as a site would write it: loaded by --plugin, its probe sent to nodes, judged again.


ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-check" / "scratch_speed.py"
PLUGIN_FILE_JOB = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --master_addr=local0 train.py\n"
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
def plugin_file_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two nodes, and a scratch folder."""
    (tmp_path / "run.sh").write_text(PLUGIN_FILE_JOB)
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("ACME_SCRATCH", str(tmp_path / "scratch"))
    return tmp_path / "run.sh"


def plugin_file_run(
    job: Path, plugin: Path, capfd: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, object]]:
    """Exit code and report of a check with the plugin, on two agents of this machine."""
    saved = str(job.parent / "recording.json")
    words = ["check", str(job), "--on", "local", "--until", "node", "--plugin", str(plugin)]
    code = main.run([*words, "--select", "ACM,NOD", "--save", saved, "-o", "json", *options])
    return code, json.loads(capfd.readouterr().out)


def test_the_example_runs_on_nodes_and_passes(plugin_file_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, report = plugin_file_run(plugin_file_job, EXAMPLE, capfd)
    assert code == 0, report
    outcomes = [(o["subject"], o["status"]) for o in report["outcomes"] if o["id"] == "ACM301"]  # type: ignore[attr-defined]
    assert outcomes == [("scratch on local0", "pass"), ("scratch on local1", "pass")]
    assert not list((plugin_file_job.parent / "scratch").iterdir())


def test_it_finds_and_the_recording_is_judged_the_same(
    plugin_file_job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(WARNING + SHOWING)
    _, report = plugin_file_run(plugin_file_job, mine, capfd)
    found = [f for f in report["findings"] if f["id"] == "ACM301"]  # type: ignore[attr-defined]
    assert {node for f in found for node in f["nodes"]} == {"local0", "local1"}
    assert any(plugin.startswith("mine.py sha256:") for plugin in report["tool"]["plugins"])  # type: ignore[index]
    assert main.run(["judge", str(plugin_file_job.parent / "recording.json"), "--plugin", str(mine), "-o", "json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert [f["message"] for f in again["findings"]] == [f["message"] for f in report["findings"]]  # type: ignore[attr-defined]
    (shown,) = [one for one in again["charts"] if one["id"] == "acme.scratch"]
    assert shown in report["charts"] and [bar["group"] for bar in shown["bars"]] == ["local0", "local1"]  # type: ignore[operator]
    assert main.run(["judge", str(plugin_file_job.parent / "recording.json"), "-o", "json"]) == 0
    without = json.loads(capfd.readouterr().out)
    assert not without["findings"], "a file that is not named takes no part"
    assert "acme.scratch" not in {one["id"] for one in without["charts"]}


def test_a_missing_folder_leaves_the_verdict_incomplete(
    plugin_file_job: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_SCRATCH", "/nowhere/at/all")
    code, report = plugin_file_run(plugin_file_job, EXAMPLE, capfd)
    assert code == 3 and report["verdict"] == "incomplete"
    assert "/nowhere/at/all does not exist" in json.dumps(report["coverage"])


def test_a_probe_with_unavailable_imports_is_reported_and_others_run(
    plugin_file_job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text().replace("file = Path(", "probe_name(plan)\n    file = Path("))
    code, report = plugin_file_run(plugin_file_job, mine, capfd)
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
    plugin_file_job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    text = (ROOT / "examples" / "plugin-pack" / "acme_preflight" / "caches.py").read_text()
    plugin_file_job.write_text("export HF_HOME=/home/anna/cache\n" + PLUGIN_FILE_JOB)
    mine.write_text(text)
    for wanted, source in ((1, text), (0, text.replace('startswith("/home/")', 'startswith("/nfs/")'))):
        mine.write_text(source)
        main.run(["lint", str(plugin_file_job), "--plugin", str(mine), "-o", "json", "--select", "ACM"])
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


# Modules of a pack are found by their names.


def test_finds_modules_of_a_package_and_its_subpackages_without_importing_them(tmp_path: Path) -> None:
    for name in (
        "sub/__init__.py",
        "sub/b.py",
        "probes/__init__.py",
        "probes/c.py",
        "data/d.py",
        "a.py",
        "_private.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit\n")
    assert modules("pack", str(tmp_path), without="probes") == ("pack.a", "pack.sub.b")


# Results that many checks need are computed once per job and facts, and released with them.


CALLS: list[object] = []


@memoize
def of_job(job: Job, word: str, shape: tuple[int, ...] = ()) -> list[object]:
    CALLS.append((word, shape))
    return [word, shape]


@memoize
def of_facts(job: Job, facts: Facts) -> int:
    CALLS.append(facts)
    return len(CALLS)


def test_results_are_cached_by_equal_texts_and_identical_objects() -> None:
    CALLS.clear()
    one, other, shape = job(), job(), (1, 2)
    assert of_job(one, "a") is of_job(one, "".join(["a"]))
    assert of_job(one, "b") is not of_job(one, "a")
    assert of_job(other, "a") is not of_job(one, "a")
    assert of_job(one, "a", shape) is of_job(one, "a", shape)
    assert of_job(one, "a", (1, len("ab"))) is not of_job(one, "a", shape)
    assert len(CALLS) == 5


def test_a_result_is_released_with_its_facts() -> None:
    CALLS.clear()
    subject, facts = job(), Facts()
    assert of_facts(subject, facts) == of_facts(subject, facts)
    assert of_facts(subject, Facts()) != of_facts(subject, facts)
    CALLS.clear()
    gone = weakref.ref(facts)
    del facts
    gc.collect()
    assert gone() is None


def test_the_memo_of_a_job_can_be_cleared() -> None:
    CALLS.clear()
    subject = job()
    of_job(subject, "a")
    clear_memo(subject)
    of_job(subject, "a")
    assert len(CALLS) == 2

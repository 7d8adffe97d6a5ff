"""Plugins: a good one is used, a broken one is named and does not affect others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import preflight_checks
from preflight.engine.evaluate import outcomes_of
from preflight.engine.judge import judge
from preflight.model.recording import UnplannedCheck
from preflight.plugins import registry
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
        registry.named(registry.REPORTERS, "sarf")


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
    assert registry.named(registry.EXECUTORS, "mpi").name == "mpi"
    monkeypatch.setitem(sys.modules, "preflight.executors.mpi", None)
    registry.load.cache_clear()
    try:
        with pytest.raises(KeyError, match=r"unknown executor 'mpi'; .*known names: .*ssh"):
            registry.named(registry.EXECUTORS, "mpi")
    finally:
        registry.load.cache_clear()

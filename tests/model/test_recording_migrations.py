"""Recordings of earlier versions: moved probes are found under their current names."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.engine.report import Report, to_json
from preflight.model.recording import InjectedFault, Recording, SmokeOptions
from preflight.model.recording_io import load, save
from preflight.model.recording_migrations import with_current_probes
from preflight.plugins import registry
from tests.builders import judged

#: Saved by a version whose probes of launchers and ranks were in other modules.
OLD = Path(__file__).parents[1] / "fuzz" / "seeds" / "recording.json"
MOVED = ("preflight_checks.probes.launching:", "reference_trainer.collective:")


def probes(recording: Recording) -> set[str]:
    return {record.request.probe for record in recording.facts}


def exist(names: Iterable[str]) -> bool:
    return all(callable(getattr(importlib.import_module(name.split(":")[0]), name.split(":")[1])) for name in names)


@pytest.mark.parametrize("to_judge", [True, False])
def test_every_probe_of_an_old_recording_exists_today(to_judge: bool) -> None:
    old = {fact["probe"] for fact in json.loads(OLD.read_bytes())["facts"]}
    assert any(name.startswith(MOVED) for name in old), "the file is not of the earlier version"
    found = probes(load(OLD.read_bytes(), to_judge=to_judge))
    assert len(found) == len(old) and exist(found)


def report(data: bytes) -> Report:
    recording = load(data, to_judge=True)
    return judged(recording, (), registry.load(registry.CHECKS).items)


def test_an_old_recording_judges_to_the_same_as_one_with_the_names_of_today() -> None:
    data = OLD.read_bytes()
    again = save(load(data))
    assert b'"preflight_checks.probes.launching:' in data and b"probes.launching:" not in again
    old, new = report(data), report(again)
    assert to_json(old) == to_json(new)
    # The recording has the reason why ranks could not run under the old name of their probe.
    assert any("--trust-job" in outcome.reason for outcome in old.outcomes if outcome.id == "SMK001")


def test_a_finding_from_a_moved_probe_is_made_from_an_old_recording() -> None:
    document = json.loads(OLD.read_bytes())
    (asked,) = [found for found in document["facts"] if found["probe"].endswith("launching:tools")]
    rows = range(len(asked["nodes"]))
    names = [document["params"][asked["params"][row]]["names"] for row in rows]
    asked["values"] = [len(document["values"]) + row for row in rows]
    document["values"] += [
        {"tools": [{"name": name, "path": "/bin/x" if row else ""} for name in names[row]], "search_path": "/bin"}
        for row in rows
    ]
    asked["unavailable"] = {}
    found = report(json.dumps(document).encode())
    assert any(asked["nodes"][0] in finding.nodes for finding in found.findings if finding.id == "RMT002")


def test_only_names_of_probes_are_changed() -> None:
    text = (
        b'{"note": "see preflight_checks.probes.launching: it was slow", "probe": "reference_trainer.collective:rank"}'
    )
    assert with_current_probes(text) == text.replace(b"collective:rank", b"collective.rank:rank")
    assert with_current_probes(with_current_probes(text)) == with_current_probes(text)


def test_keys_of_the_third_form_are_read_under_their_current_names() -> None:
    fault = InjectedFault("kill", "rank", 1)
    now = replace(load(OLD.read_bytes()), smoke_options=SmokeOptions(backup=True, injected_fault=fault))
    document = json.loads(save(now))
    options = document.pop("smoke_options")
    options["drill"] = options.pop("injected_fault")
    old = json.dumps({**document, "wish": options, "schema_version": 3}).encode()
    assert load(old).smoke_options == now.smoke_options

"""The pack as a whole: everything loads, is documented, and plans without facts."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import preflight_checks
from preflight.model.findings import Confidence, Severity
from preflight.plugins.authoring import HEADINGS, Check
from tests.checks.check_builders import fleet, job

ENTRIES = [entry for entry in preflight_checks.PACK.items if not entry.startswith("preflight_checks.smoke.completion")]


def load(entry: str) -> Check:
    module, name = entry.split(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Check)
    return found


def test_the_pack_holds_every_check_once() -> None:
    found = set()
    for module in pkgutil.walk_packages(preflight_checks.__path__, "preflight_checks."):
        if not module.name.startswith("preflight_checks.probes"):
            loaded = vars(importlib.import_module(module.name))
            # A check that a module imports from another belongs to the other.
            found |= {id(item) for item in loaded.values() if isinstance(item, Check)}
    listed = [id(load(entry)) for entry in preflight_checks.PACK.items]
    assert sorted(listed) == sorted(found)


def test_ids_and_names_are_unique() -> None:
    metas = [load(entry).meta for entry in preflight_checks.PACK.items]
    assert len({meta.id for meta in metas}) == len({meta.name for meta in metas}) == len(metas)


def test_every_area_of_a_check_has_a_title_and_every_title_a_check() -> None:
    assert {load(entry).meta.area for entry in preflight_checks.PACK.items} == set(preflight_checks.PACK.areas)


@pytest.mark.parametrize("entry", ENTRIES)
def test_docstrings_have_every_heading_in_order(entry: str) -> None:
    doc = load(entry).meta.doc
    places = [doc.find(f"{heading}:") for heading in HEADINGS]
    assert -1 not in places and places == sorted(places), entry


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_empty_job_has_no_finding(entry: str) -> None:
    check = load(entry)
    verdicts = list(check.judge(job(), fleet(1), empty_facts()))
    assert all(verdict.status.value != "fail" for verdict in verdicts), entry
    assert all(not verdict.required for verdict in verdicts), entry


@pytest.mark.parametrize("entry", ENTRIES)
def test_errors_are_certain(entry: str) -> None:
    meta = load(entry).meta
    assert meta.severity is not Severity.ERROR or meta.confidence is Confidence.HIGH


def empty_facts():  # type: ignore[no-untyped-def]
    from preflight.model.recording import Facts

    return Facts()

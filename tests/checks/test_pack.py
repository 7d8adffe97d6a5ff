"""The pack as a whole: everything loads, is documented, and plans without facts."""

from __future__ import annotations

import importlib

import pytest

import preflight_checks
from preflight.judgement import HEADINGS, Check
from preflight.outcome import Confidence, Severity

from .build import fleet, job

ENTRIES = [entry for entry in preflight_checks.PACK if not entry.startswith("preflight_checks.smoke.smoke")]


def load(entry: str) -> Check:
    module, name = entry.split(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Check)
    return found


def test_ids_and_names_are_unique() -> None:
    metas = [load(entry).meta for entry in ENTRIES]
    assert len({meta.id for meta in metas}) == len({meta.name for meta in metas}) == len(metas)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_docstring_has_every_heading_in_order(entry: str) -> None:
    doc = load(entry).meta.doc
    places = [doc.find(f"{heading}:") for heading in HEADINGS]
    assert -1 not in places and places == sorted(places), entry


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_job_that_says_nothing_is_no_fault(entry: str) -> None:
    check = load(entry)
    verdicts = list(check.judge(job(), fleet(1), facts_of_nothing()))
    assert all(verdict.status.value != "fail" for verdict in verdicts), entry
    assert all(not verdict.required for verdict in verdicts), entry


@pytest.mark.parametrize("entry", ENTRIES)
def test_errors_are_certain(entry: str) -> None:
    meta = load(entry).meta
    assert meta.severity is not Severity.ERROR or meta.confidence is Confidence.HIGH


def facts_of_nothing():  # type: ignore[no-untyped-def]
    from preflight.recording import Facts

    return Facts()

"""The pack as a whole: every check is listed, and an empty job is no fault."""

from __future__ import annotations

import importlib
import pkgutil

import preflight_checks
from preflight.model.recording import Facts
from preflight.plugins import registry
from preflight.plugins.authoring import Check
from preflight_checks.comparison import table
from tests.checks.check_builders import fleet, job


def test_the_pack_holds_every_check_once() -> None:
    found = set()
    for module in pkgutil.walk_packages(preflight_checks.__path__, "preflight_checks."):
        if not module.name.startswith("preflight_checks.probes"):
            # A check that a module imports from another is the same object.
            found |= {
                item.meta.id for item in vars(importlib.import_module(module.name)).values() if isinstance(item, Check)
            }
    assert sorted(check.meta.id for check in registry.checks()) == sorted(found)


def test_every_title_of_an_area_has_a_check() -> None:
    assert {check.meta.area for check in registry.checks()} == set(preflight_checks.PACK.areas)


def test_evidence_is_listed_for_the_checks_of_the_pack_alone() -> None:
    assert set(table("evidence")) == {check.meta.id for check in registry.checks()}


def test_an_empty_job_has_no_finding() -> None:
    for check in registry.checks():
        for verdict in check.judge(job(), fleet(1), Facts()):
            assert verdict.status.value != "fail", check.meta.id
            # A smoke run that did not happen is the one thing that is always missed.
            assert not verdict.required or check.meta.id == "SMK001", check.meta.id

"""Properties of every rule of the pack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import preflight_rules
from preflight.model.findings import Confidence, Severity
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Rule
from preflight_rules import PACK

RULES = registry.rules()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_docstring_has_the_headings_in_order_and_text_under_each(rule: Rule) -> None:
    found = re.findall(r"^ {4}([A-Z][A-Za-z ]+):$", rule.meta.doc, flags=re.MULTILINE)
    assert tuple(found) == HEADINGS
    for part in re.split(r"^ {4}[A-Z][A-Za-z ]+:$", rule.meta.doc, flags=re.MULTILINE):
        assert part.split(), rule.meta.id


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_evidence_is_an_issue_or_a_document(rule: Rule) -> None:
    for item in rule.meta.evidence:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", item), item


def test_every_rule_is_loaded_and_ids_and_names_are_unique() -> None:
    # The registry reports a second rule of the same id or name, and a module that cannot be imported.
    assert not registry.load(registry.RULES).broken
    written = [
        found
        for path in Path(preflight_rules.__file__).parent.rglob("*.py")
        for found in re.findall(r'^@rule\(\s*"([A-Z]{3}\d{3})"', path.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(written) == [rule.meta.id for rule in RULES]


def test_every_area_has_a_title() -> None:
    assert {rule.meta.area for rule in RULES} <= set(PACK.areas)


def test_only_high_confidence_stops_a_job() -> None:
    for rule in RULES:
        if rule.meta.severity is Severity.ERROR:
            assert rule.meta.confidence is Confidence.HIGH
        if rule.meta.profile == "gate":
            assert rule.meta.confidence is Confidence.HIGH


def test_the_pack_names_modules_and_imports_none() -> None:
    code = (
        "import sys, preflight_rules;"
        "own = {m for m in sys.modules if m.startswith('preflight.')};"
        "rules = [m for m in sys.modules if m.startswith('preflight_rules.')];"
        "print(rules, own - {'preflight.plugins', 'preflight.plugins.pack'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["[]", "set()"]
    assert "preflight_rules.launch.world" in PACK.items

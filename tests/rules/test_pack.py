"""What holds for every rule of the pack."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from preflight.judgement import HEADINGS, Rule
from preflight.outcome import Confidence, Severity
from preflight_rules import PACK


def _load(entry: str) -> Rule:
    module, _, attribute = entry.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, Rule), entry
    return found


RULES = [_load(entry) for entry in PACK]


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


def test_ids_and_names_are_unique() -> None:
    assert len({rule.meta.id for rule in RULES}) == len(RULES)
    assert len({rule.meta.name for rule in RULES}) == len(RULES)


def test_only_high_confidence_stops_a_job() -> None:
    for rule in RULES:
        if rule.meta.severity is Severity.ERROR:
            assert rule.meta.confidence is Confidence.HIGH
        if rule.meta.profile == "gate":
            assert rule.meta.confidence is Confidence.HIGH


def test_naming_the_pack_imports_no_rule() -> None:
    code = (
        "import sys, preflight_rules;"
        "print([m for m in sys.modules if m.startswith('preflight_rules.')], 'preflight' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["[]", "False"]

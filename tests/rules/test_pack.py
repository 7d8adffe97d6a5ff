"""Properties of every rule of the pack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import preflight_rules
from preflight.plugins import registry
from preflight_rules import PACK
from tests.rules.rule_builders import RUN_TIME, claim, job, judged

RULES = registry.rules()


def test_every_rule_is_loaded_and_ids_and_names_are_unique() -> None:
    # The registry reports a second rule of the same id or name, and a module that cannot be imported.
    assert not registry.load(registry.RULES).broken
    written = [
        found
        for path in Path(preflight_rules.__file__).parent.rglob("*.py")
        for found in re.findall(r'^@rule\(\s*"([A-Z]{3}\d{3})"', path.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(written) == [rule.meta.id for rule in RULES]


def test_the_pack_names_modules_and_imports_none() -> None:
    code = (
        "import sys, preflight_rules;"
        "own = {m for m in sys.modules if m.startswith('preflight.')};"
        "rules = [m for m in sys.modules if m.startswith('preflight_rules.')];"
        "print(rules, own - {'preflight.plugins', 'preflight.plugins.pack', 'preflight._util', 'preflight._util.toml'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["[]", "set()"]
    assert "preflight_rules.launch.world" in PACK.items


def test_unknown_slots_are_reported_with_the_reason() -> None:
    (rule,) = (rule for rule in RULES if rule.meta.id == "HST002")
    (outcome,) = judged(rule, [job(claim("host_slots", RUN_TIME, "hostfile:2", "slots=$N"))])
    assert outcome.reason.endswith("is unknown: something only run time knows")

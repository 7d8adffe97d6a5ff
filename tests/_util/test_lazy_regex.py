"""Lazy patterns behave like those of `re.compile`, and all patterns of the project compile."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import preflight
import preflight_checks
import preflight_rules
import reference_trainer
from preflight._util import lazy_regex as module
from preflight._util.lazy_regex import lazy_pattern


def test_it_is_compiled_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = re.compile
    monkeypatch.setattr(module.re, "compile", lambda text, flags=0: (compiled.append(text), real(text, flags))[1])
    pattern = lazy_pattern(r"a(?P<rest>b*)", re.IGNORECASE)
    assert compiled == [] and repr(pattern) == "lazy_pattern('a(?P<rest>b*)')"
    assert pattern.pattern == r"a(?P<rest>b*)" and pattern.flags & re.IGNORECASE
    found = pattern.search("xABB")
    assert found is not None and found["rest"] == "BB" and pattern.match("xABB") is None
    assert pattern.sub("-", "abAB") == "--" and pattern.groupindex == {"rest": 1}
    with pytest.raises(AttributeError):
        getattr(pattern, "no such")


def test_all_patterns_of_the_project_compile() -> None:
    found = 0
    for package in (preflight, preflight_checks, preflight_rules, reference_trainer):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if info.name.endswith("__main__") or ".paddle" in info.name or ".migrations." in info.name:
                continue
            for name, value in vars(importlib.import_module(info.name)).items():
                if isinstance(value, module.LazyPattern):
                    assert value.pattern or value.pattern == "", name
                    found += 1
    assert found > 300

"""The description of the architecture names what there is, and imports run the way it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.modules import folders, page

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("preflight", "checks/preflight_checks", "rules/preflight_rules", "reference_trainer")
#: What a part must not import, wherever in its modules: what stands above it.
ABOVE = {
    "preflight/job": r"preflight\.(?!job\b|lazy\b)",
    "preflight/sources": r"preflight\.(?!job\b|lazy\b|sources\b|tables\b|redact\b)",
    "preflight/lazy": r"preflight\.|preflight_checks|preflight_rules|reference_trainer",
    "preflight/tables": r"preflight\.(?!job\b|lazy\b|tables\b)",
    "preflight/node": r"preflight\.(?!node\b)",
    # How code is packed for another process is the same for agents and bridges.
    "preflight/executors": r"preflight\.(?!executors\b|bundle\b|errors\b|job\b|lazy\b|node\b|recording\b|saved\b|"
    r"sources\b)",
    # How parameters are cut and dealt is arithmetic that rules, checks and trainer must agree on.
    "rules/preflight_rules": r"preflight\.(?!job\b|judgement\b|lazy\b|outcome\b|tables\b)|preflight_checks|"
    r"reference_trainer\.(?!ps\.sharding\b)",
    "checks/preflight_checks/probes": r"preflight\.(?!lazy\.patterns\b|node\b|redact\b)|preflight_checks\.(?!probes\b)",
    "reference_trainer": r"preflight\.(?!node\b)|preflight_checks|preflight_rules",
}


def modules(folder: str) -> list[Path]:
    """The modules below a folder, without those that only make it a package."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")


def is_generated(path: Path) -> bool:
    """Whether it is a table that `make tables` writes; the description speaks of all of them at once."""
    return path.parent.name == "tables" and path.stem != "row"


def test_every_module_says_in_the_description_what_it_is_about() -> None:
    assert (ROOT / "docs" / "modules.md").read_text() == page(), "write it anew: make docs"
    silent = [line for line in page().splitlines() if line.endswith("` |  |")]
    assert not silent, "a module without a docstring"


def test_every_package_is_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    missing = [folder for folder in folders() if f"{folder.name}/`" not in text and f"`{folder.name}`" not in text]
    assert not missing


@pytest.mark.parametrize("folder", sorted(ABOVE))
def test_nothing_imports_what_stands_above_it(folder: str) -> None:
    upward = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules(folder)
        for name, line in imported(path)
        if re.match(ABOVE[folder], name)
    ]
    assert not upward


def imported(path: Path) -> list[tuple[str, int]]:
    """The modules that a file imports anywhere in it, each with its line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from preflight import catalog` imports a module too.
            found.extend((f"{node.module}.{name.name}", node.lineno) for name in node.names)
        elif isinstance(node, ast.Import):
            found.extend((name.name, node.lineno) for name in node.names)
    return found

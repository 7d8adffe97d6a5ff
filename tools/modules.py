"""Write `docs/modules.md`: every module with the first sentence of its docstring, package by package."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "preflight",
    "checks/preflight_checks",
    "rules/preflight_rules",
    "reference_trainer",
    "tools",
)
_HEAD = """# Modules

Every module and its subject, from its own first line; written by `make docs`. How they belong together stands in
[architecture.md](architecture.md).
"""


def subject(path: Path) -> str:
    """The first sentence of a module's docstring, on one line, as a cell of a table."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = " ".join(said.split("\n\n")[0].split())
    return first.rstrip(".").replace("|", "\\|")


def folders() -> list[Path]:
    """Every package, those below another behind it."""
    found = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    return sorted(found, key=lambda path: (PACKAGES.index(_top(path)), path.parts))


def _top(folder: Path) -> str:
    name = folder.relative_to(ROOT).as_posix()
    return next(package for package in PACKAGES if name == package or name.startswith(package + "/"))


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for folder in folders():
        name = folder.relative_to(ROOT).as_posix()
        parts.append(f"\n## `{name}/`\n\n{subject(folder / '__init__.py')}.\n\n| module | subject |\n|---|---|\n")
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        parts.extend(f"| `{path.name}` | {subject(path)} |\n" for path in modules)
    return "".join(parts)


def main() -> int:
    """Write the page."""
    (ROOT / "docs" / "modules.md").write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

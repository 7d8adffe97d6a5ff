"""Rules that every rule, check and probe must follow."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.config.names import all_items
from preflight.model.findings import Confidence, Severity
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Check, Rule

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "preflight": ROOT / "preflight",
    "preflight_checks": ROOT / "checks" / "preflight_checks",
    "preflight_rules": ROOT / "rules" / "preflight_rules",
    "reference_trainer": ROOT / "reference_trainer",
}
#: Packages that are sent to nodes.
SHIPPED = (
    ROOT / "preflight" / "agent",
    ROOT / "checks" / "preflight_checks" / "probes",
    ROOT / "reference_trainer",
)
#: Never imported at the top of a module.
HEAVY = {
    *("torch", "paddle", "ray", "kubernetes", "pynvml", "psutil", "pydantic", "jinja2", "numpy"),
    *("tree_sitter", "tree_sitter_bash", "tree_sitter_json", "ClusterShell", "pathspec"),
}
#: Modules that need a terminal at once; test_imports covers the event loop. The YAML reader is imported only by a
#: source that reads YAML.
ALLOWED = {
    "rich": {
        "preflight.commands.diagnose.diagnosis_text",
        "preflight.commands.diff.difference_text",
        "preflight.commands.history.text",
        "preflight.commands.plan.plan_text",
        "preflight.commands.doctor.examination_text",
        "preflight.reporters.text.summary",
        "preflight.reporters.concise",
        "preflight.reporters.text.coverage",
        "preflight.reporters.live.table",
        "preflight.reporters.text.full_report",
        "preflight.reporters.text.sheet",
    },
    "yaml": {"preflight.sources.formats.lenient_yaml", "preflight.services.admission.submission"},
}
LAZY = {"preflight.sources.formats.lenient_yaml"}
ITEMS = all_items()


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of ours with its file."""
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())
ON_NODES = [
    *sorted(path for folder in SHIPPED for path in folder.rglob("*.py")),
    ROOT / "preflight" / "_util" / "redaction.py",
    *sorted((ROOT / "preflight" / "_util").glob("secret_*.py")),
]


def short(path: Path) -> str:
    """The path as shown in a test's name."""
    return str(path.relative_to(ROOT))


def identity(item: Rule | Check) -> str:
    """The id as shown in a test's name."""
    return item.meta.id


# --- packs ---


@pytest.mark.parametrize(
    "group", [registry.RULES, registry.CHECKS, registry.SOURCES, registry.EXECUTORS, registry.REPORTERS]
)
def test_everything_that_a_pack_names_can_be_loaded(group: str) -> None:
    loaded = registry.load(group)
    assert loaded.broken == ()
    assert loaded.items


def test_ids_and_names_are_unique() -> None:
    assert len({item.meta.id for item in ITEMS}) == len(ITEMS)
    assert len({item.meta.name for item in ITEMS}) == len(ITEMS)


def test_every_area_has_a_title() -> None:
    titles = registry.areas()
    missing = {item.meta.area for item in ITEMS} - set(titles)
    assert not missing, (
        "add them to `_AREAS` in rules/preflight_rules/__init__.py or checks/preflight_checks/__init__.py"
    )


@pytest.mark.parametrize("item", ITEMS, ids=identity)
def test_docstrings_have_a_summary_and_six_headings(item: Rule | Check) -> None:
    doc = inspect.cleandoc(item.meta.doc)
    first, _, rest = doc.partition("\n\n")
    assert re.fullmatch(r"\S.*[.]", first, re.DOTALL), "it begins with a sentence"
    found = re.findall(r"^([A-Z][A-Za-z ]+):(?=\s|$)", rest, re.MULTILINE)
    assert tuple(found) == HEADINGS
    pieces = re.split(rf"^(?:{'|'.join(HEADINGS)}):(?=\s|$)", rest, flags=re.MULTILINE)[1:]
    assert all(piece.strip() for piece in pieces), "each heading has something to say"


@pytest.mark.parametrize("item", ITEMS, ids=identity)
def test_metadata_is_consistent(item: Rule | Check) -> None:
    meta = item.meta
    assert meta.evidence
    for source in meta.evidence:
        assert re.fullmatch(r"https://\S+|[\w.-]+/[\w.-]+(#\d+)?", source), f"{source} is no issue and no document"
    if meta.severity is Severity.ERROR:
        assert meta.confidence is Confidence.HIGH
    assert re.fullmatch(r"\d+\.\d+", meta.since)


CHECKS = [item for item in ITEMS if isinstance(item, Check)]


@pytest.mark.parametrize("item", CHECKS, ids=identity)
def test_a_check_declares_its_probes_and_their_cost(item: Check) -> None:
    assert item.cost and not item.cost.endswith(".")
    for probe in item.probes:
        assert inspect.getdoc(probe), f"{probe} does not say what it observes"
        assert any(Path(inspect.getfile(probe)).is_relative_to(folder) for folder in SHIPPED), f"{probe} is not shipped"


# --- imports ---


@pytest.mark.parametrize("name", MODULES)
def test_nothing_heavy_is_imported_at_the_top_of_a_module(name: str) -> None:
    for imported in _imported_at_top(MODULES[name]):
        assert imported not in HEAVY, f"{name} imports {imported}; import it in the function that needs it"
        if imported in ALLOWED:
            assert name in ALLOWED[imported], f"{name} imports {imported}"
    assert not _modules_at_top(MODULES[name]) & LAZY, f"{name} imports a module that is to be imported when needed"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(("preflight_rules", "preflight_checks"))])
def test_rules_and_checks_use_no_outside_state(name: str) -> None:
    if ".probes" in name:
        return
    forbidden = {"time", "socket", "subprocess", "random", "logging", "requests", "urllib", "threading"}
    assert not _imported_at_top(MODULES[name]) & forbidden


def test_the_core_imports_no_rule_or_check() -> None:
    for name, path in MODULES.items():
        if name.partition(".")[0] == "preflight":
            assert not _imported_anywhere(path) & {"preflight_rules", "preflight_checks"}, name


def _modules_at_top(path: Path) -> set[str]:
    """Full names of the modules from which a module imports when it is imported itself."""
    return {node.module or "" for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)}


def _imported_at_top(path: Path) -> set[str]:
    """Top-level names of the modules that a module imports at import time."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        found |= _names(node)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _imported_anywhere(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node)}


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()


# --- what runs on nodes ---


@pytest.mark.parametrize("path", ON_NODES, ids=short)
def test_code_for_nodes_is_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    if not _postpones_annotations(tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                assert not re.search(r"\||\b(list|dict|tuple|set|type)\[", ast.unparse(node.annotation))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
                assert not re.search(r"\||\b(list|dict|tuple|set|type)\[", ast.unparse(node.returns))
    for node in ast.walk(tree):
        # These are valid in the grammar of 3.8, but fail at run time.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in ("removeprefix", "removesuffix", "is_relative_to", "bit_count")
        if isinstance(node, ast.keyword) and node.arg in ("slots", "kw_only", "strict"):
            raise AssertionError(f"{node.arg}= came after 3.8 (line {node.value.lineno})")


def _postpones_annotations(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in tree.body
    )


@pytest.mark.parametrize("path", ON_NODES, ids=short)
def test_code_for_nodes_imports_only_the_standard_library(path: Path) -> None:
    ours = {"preflight", "preflight_checks", "reference_trainer"}
    assert _imported_at_top(path) <= set(sys.stdlib_module_names) | ours


def test_code_for_nodes_imports_without_installed_packages() -> None:
    names = [name for name, path in MODULES.items() if path in ON_NODES and not name.endswith("__main__")]
    folders = [str(ROOT), str(ROOT / "checks")]
    script = f"import sys; sys.path[:0] = {folders}\nfor name in {names}: __import__(name)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

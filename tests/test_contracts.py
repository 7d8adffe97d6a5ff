"""Rules that every rule, check and probe must follow."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from preflight.config.resolve import all_items
from preflight.model.findings import Confidence, Severity
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Check

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
        "preflight.commands.plan.plan_pages",
        "preflight.commands.doctor.examination",
        "preflight.reporters.text.summary",
        "preflight.reporters.text.full_report",
        "preflight.reporters.live.table",
    },
    "yaml": {"preflight.sources.formats.lenient_yaml", "preflight.services.admission.judgement"},
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


# --- packs ---


def test_everything_that_a_pack_names_can_be_loaded() -> None:
    for group in (registry.RULES, registry.CHECKS, registry.SOURCES, registry.EXECUTORS, registry.REPORTERS):
        loaded = registry.load(group)
        assert loaded.broken == () and loaded.items, group


def test_ids_and_names_are_unique() -> None:
    assert len({item.meta.id for item in ITEMS}) == len(ITEMS)
    assert len({item.meta.name for item in ITEMS}) == len(ITEMS)


def test_every_area_has_a_title() -> None:
    titles = registry.areas()
    missing = {item.meta.area for item in ITEMS} - set(titles)
    assert not missing, "add them to `data/areas.toml` of preflight_rules or preflight_checks"


def test_docstrings_have_a_summary_and_five_headings() -> None:
    for item in ITEMS:
        first, _, rest = inspect.cleandoc(item.meta.doc).partition("\n\n")
        assert re.fullmatch(r"\S.*[.]", first, re.DOTALL), f"{item.meta.id}: it begins with a sentence"
        found = re.findall(r"(?:^|\n\n)([A-Z][A-Za-z ]+):(?=\s|$)", rest)
        assert tuple(found) == (*HEADINGS, "Evidence"), item.meta.id
        pieces = re.split(rf"^(?:{'|'.join(found)}):(?=\s|$)", rest, flags=re.MULTILINE)[1:]
        assert all(piece.strip() for piece in pieces), f"{item.meta.id}: each heading has something to say"


def test_metadata_is_consistent() -> None:
    for meta in (item.meta for item in ITEMS):
        assert meta.evidence, meta.id
        for source in meta.evidence:
            where = source if isinstance(source, str) else source[1]
            is_text = isinstance(source, str) and " " in source
            assert is_text or re.fullmatch(r"https://\S+|[\w.-]+/[\w.-]+(#\d+)?", where), f"{meta.id}: {source}"
        assert not all(isinstance(source, str) and " " in source for source in meta.evidence), f"{meta.id}: no link"
        if meta.severity is Severity.ERROR or meta.profile == "gate":
            assert meta.confidence is Confidence.HIGH, meta.id
        assert re.fullmatch(r"\d+\.\d+", meta.since), meta.id


def test_a_check_declares_its_probes_and_their_cost() -> None:
    for item in ITEMS:
        if not isinstance(item, Check):
            continue
        assert item.cost and not item.cost.endswith("."), item.meta.id
        for probe in item.probes:
            assert inspect.getdoc(probe), f"{probe} does not say what it observes"
            assert any(Path(inspect.getfile(probe)).is_relative_to(folder) for folder in SHIPPED), f"{probe}"


# --- imports ---


def test_nothing_heavy_is_imported_at_the_top_of_a_module() -> None:
    for name, path in MODULES.items():
        for imported in _imported_at_top(path):
            assert imported not in HEAVY, f"{name} imports {imported}; import it in the function that needs it"
            assert name in ALLOWED.get(imported, {name}), f"{name} imports {imported}"
        assert not _modules_at_top(path) & LAZY, f"{name} imports a module that is to be imported when needed"


def test_rules_and_checks_use_no_outside_state() -> None:
    forbidden = {"time", "socket", "subprocess", "random", "logging", "requests", "urllib", "threading"}
    for name, path in MODULES.items():
        if name.startswith(("preflight_rules", "preflight_checks")) and ".probes" not in name:
            assert not _imported_at_top(path) & forbidden, name


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


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()


# --- what runs on nodes ---


def test_code_for_nodes_is_python_3_8() -> None:
    for path in ON_NODES:
        newer = list(_newer_than_3_8(ast.parse(path.read_text(), feature_version=(3, 8))))
        assert not newer, f"{path.relative_to(ROOT)}: {newer}"


def _newer_than_3_8(tree: ast.Module) -> Iterator[str]:
    """What the grammar of 3.8 allows, but fails at run time."""
    newer = {"removeprefix", "removesuffix", "is_relative_to", "bit_count"}
    new_generic = re.compile(r"\||\b(list|dict|tuple|set|type)\[")
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotation = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotation = node.returns
        else:
            annotation = None
        if annotation is not None and not _postpones_annotations(tree) and new_generic.search(ast.unparse(annotation)):
            yield f"line {annotation.lineno}: {ast.unparse(annotation)}"
        if isinstance(node, ast.Attribute) and node.attr in newer:
            yield f"line {node.lineno}: {node.attr}"
        if isinstance(node, ast.keyword) and node.arg in ("slots", "kw_only", "strict"):
            yield f"line {node.value.lineno}: {node.arg}="


def _postpones_annotations(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in tree.body
    )


def test_code_for_nodes_imports_only_the_standard_library() -> None:
    allowed = set(sys.stdlib_module_names) | {"preflight", "preflight_checks", "reference_trainer"}
    for path in ON_NODES:
        assert _imported_at_top(path) <= allowed, path.relative_to(ROOT)


def test_code_for_nodes_imports_without_installed_packages() -> None:
    names = [name for name, path in MODULES.items() if path in ON_NODES and not name.endswith("__main__")]
    folders = [str(ROOT), str(ROOT / "checks")]
    script = f"import sys; sys.path[:0] = {folders}\nfor name in {names}: __import__(name)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

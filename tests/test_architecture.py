"""Imports run downward through the layers, and the description of the architecture names every package."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight._util.redaction import HIDDEN, redact_tree
from preflight._util.secret_names import is_secret
from preflight.model.findings import Confidence, Severity
from preflight.plugins import registry
from preflight.plugins.authoring import HEADINGS, Check
from preflight.plugins.installed import all_items

ROOT = Path(__file__).resolve().parent.parent


def test_imports_keep_the_contracts_of_pyproject() -> None:
    paths = [str(ROOT), str(ROOT / "checks"), str(ROOT / "rules")]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_has_few_top_level_modules() -> None:
    entries = {path.name for path in (ROOT / "preflight").iterdir() if not path.name.startswith("__")} - {"py.typed"}
    assert len(entries) <= 16, sorted(entries)


def test_every_package_is_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tops = {path.parent for path in (ROOT / "preflight").glob("*/__init__.py")}
    packs = {ROOT / "checks" / "preflight_checks", ROOT / "rules" / "preflight_rules", ROOT / "reference_trainer"}
    missing = [str(folder.relative_to(ROOT)) for folder in tops | packs if f"{folder.relative_to(ROOT)}/`" not in text]
    assert not missing


# Rules that every rule, check and probe must follow.


CONTRACTS_ROOT = Path(__file__).parent.parent
PACKAGES = {
    "preflight": CONTRACTS_ROOT / "preflight",
    "preflight_checks": CONTRACTS_ROOT / "checks" / "preflight_checks",
    "preflight_rules": CONTRACTS_ROOT / "rules" / "preflight_rules",
    "reference_trainer": CONTRACTS_ROOT / "reference_trainer",
}
#: Packages that are sent to nodes.
SHIPPED = (
    CONTRACTS_ROOT / "preflight" / "agent",
    CONTRACTS_ROOT / "checks" / "preflight_checks" / "probes",
    CONTRACTS_ROOT / "reference_trainer",
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
        "preflight.commands.doctor",
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
    CONTRACTS_ROOT / "preflight" / "_util" / "redaction.py",
    *sorted((CONTRACTS_ROOT / "preflight" / "_util").glob("secret_*.py")),
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
        assert not newer, f"{path.relative_to(CONTRACTS_ROOT)}: {newer}"


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
        assert _imported_at_top(path) <= allowed, path.relative_to(CONTRACTS_ROOT)


def test_code_for_nodes_imports_without_installed_packages() -> None:
    names = [name for name, path in MODULES.items() if path in ON_NODES and not name.endswith("__main__")]
    folders = [str(CONTRACTS_ROOT), str(CONTRACTS_ROOT / "checks")]
    script = f"import sys; sys.path[:0] = {folders}\nfor name in {names}: __import__(name)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# Imports of each command: nothing heavy before it is needed, and some modules never.


#: Prints the imported modules of a fresh interpreter after one call of the command.
_SCRIPT = """
import json, sys
from preflight.cli import main as cli
code = cli.run(json.loads(sys.argv[1]))
sys.stderr.write(json.dumps([code, sorted({".".join(name.split(".")[:n]) for name in sys.modules for n in (1, 2, 3)})]))
"""
NEVER = {"torch", "pynvml", "ray", "kubernetes", "paddle", "deepspeed", "numpy", "sqlalchemy", "pygls"}
START_HEAVY = {
    "pydantic",
    "rich",
    "anyio",
    "tree_sitter",
    "jinja2",
    "yaml",
    "ClusterShell",
    "psutil",
    "pathspec",
    "alembic",
}


def imported(*arguments: str, cwd: Path) -> tuple[int, set[str]]:
    """The exit code and the imported modules of a call: top-level modules, and those one level below."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a job that reaches a script, a configuration and a hostfile."""
    (tmp_path / "run.sh").write_text("#!/bin/bash\ndeepspeed --hostfile=hosts train.py --deepspeed_config ds.json\n")
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\n")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}\n')
    (tmp_path / "train.py").write_text("import torch, ray, pynvml\nimport torch.distributed as dist\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["lint", "--help"],
        ["check", "--help"],
        ["diagnose", "--help"],
        ["diff", "--help"],
        ["init", "--help"],
        ["doctor", "--help"],
        ["nodes", "--help"],
        ["history", "--help"],
        ["lsp", "--help"],
        ["serve", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_version_import_almost_nothing(arguments: list[str], tmp_path: Path) -> None:
    code, modules = imported(*arguments, cwd=tmp_path)
    assert code == 0
    assert not modules & (NEVER | START_HEAVY | {"asyncio", "multiprocessing", "preflight_rules", "preflight_checks"})


def test_lint_imports_no_framework_and_no_executor(tree: Path) -> None:
    code, modules = imported("lint", ".", cwd=tree)
    assert code in (0, 1)
    assert {"tree_sitter", "preflight_rules"} <= modules
    assert not modules & (NEVER | {"anyio", "asyncio", "psutil", "jinja2", "preflight_checks"})

    # Lint needs only one module of the trainer, the arithmetic that assigns parameters to servers (see
    # test_architecture).


def test_lint_imports_nothing_for_node_reports(tree: Path) -> None:
    for form in ("text", "json"):
        _, modules = imported("lint", ".", "-o", form, cwd=tree)
        assert "preflight.engine.report" in modules
        assert not modules & {"preflight.model.charts", "preflight.engine.pack_output"}


def test_lint_as_text_does_not_import_pydantic(tree: Path) -> None:
    _, modules = imported("lint", ".", cwd=tree)
    assert "pydantic" not in modules


def test_lint_as_json_does_not_import_a_terminal_library(tree: Path) -> None:
    _, modules = imported("lint", ".", "-o", "json", cwd=tree)
    assert "rich" not in modules
    assert not modules & NEVER


def test_reading_logs_imports_no_framework_and_little_else(tree: Path) -> None:
    (tree / "run.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    code, modules = imported("diagnose", "run.log", "-o", "json", cwd=tree)
    assert code == 1
    # Some checks that a diagnosis refers to import anyio.
    assert not modules & (NEVER | START_HEAVY - {"anyio"})


def test_judging_a_recording_imports_no_framework(tree: Path) -> None:
    from preflight.model.recording_io import save
    from tests.builders import job, make_recording, reached

    (tree / "saved.json").write_bytes(save(make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))))
    _, modules = imported("judge", "saved.json", cwd=tree)
    assert "preflight_checks" in modules
    assert not modules & NEVER
    # Neither are modules of a stage that was not reached.
    assert "preflight_checks.smoke" not in modules


def test_rules_and_checks_can_be_listed_without_any_framework(tmp_path: Path) -> None:
    _, modules = imported("rules", cwd=tmp_path)
    assert not modules & (NEVER | {"rich"})


# Names of preflight itself are not redacted: fields of facts, events and reports, kernel settings, packages.


NAMES_ROOT = Path(__file__).parents[1]
#: Fields that contain a secret, or never contain text.
SECRETS = {
    "X-aws-ec2-metadata-token": "a header of a request to a cloud",
    "Authorization": "a header of a request to GitHub",
    "PRIVATE-TOKEN": "a header of a request to GitLab",
    "path_token": "of the admission webhook; in no report",
    "secret": "of one smoke run; in no request that is recorded",
    "token": "by which the two ends of a link know each other",
    "secrets": "the words that `sources.secrets` hides",
    "automountServiceAccountToken": "a boolean of Kubernetes",
    "pass": "a counter of Paddle's servers",
    "hasKey": "the name of a function of Go templates",
    "imagePullSecrets": "names of Kubernetes objects",
}


def names_in(path: Path) -> Iterator[str]:
    """Fields of classes, keys of objects, and keys that are looked up."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id
        elif isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield from (key for key in (node.slice.value,) if isinstance(key, str))


@pytest.mark.parametrize("folder", ["checks", "reference_trainer", "rules", "preflight"])
def test_our_own_fields_are_not_secrets(folder: str) -> None:
    found = {
        name: path.relative_to(NAMES_ROOT).as_posix()
        for path in sorted((NAMES_ROOT / folder).rglob("*.py"))
        # Its tables contain names of other projects.
        if path.name != "secret_names.py"
        for name in names_in(path)
        if is_secret(name) and name not in SECRETS
    }
    assert found == {}


#: Settings of Linux 6.x under /proc/sys and of common modules whose names contain a word that suggests a secret.
SETTINGS = (
    *("kernel.keys.gc_delay", "kernel.keys.maxbytes", "kernel.keys.maxkeys", "kernel.keys.root_maxkeys"),
    *("kernel.keys.persistent_keyring_expiry", "net.core.netdev_rss_key", "net.ipv4.tcp_syncookies"),
    *("net.netfilter.nf_conntrack_sctp_timeout_cookie_echoed", "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait"),
    *("net.sctp.auth_enable", "net.sctp.cookie_hmac_alg", "net.sctp.cookie_preserve_enable"),
    *("net.sctp.valid_cookie_life", "sunrpc.auth_hashtable_size", "sunrpc.auth_max_cred_cachesize"),
    *("usbcore.authorized_default", "module.sig_enforce", "vm.compact_unevictable_allowed", "kernel.sysrq"),
    *("fs.protected_hardlinks", "net.ipv4.conf.all.accept_redirects", "dm_crypt.max_read_size", "nvme_core.io_timeout"),
)
NAMES_PACKAGES = {
    "tiktoken": "0.7.0",
    "google-auth": "2.29.0",
    "keyring": "24.3.1",
    "pyjwt": "2.8.0",
    "oauthlib": "3.2.2",
    "secretstorage": "3.3.3",
    "google-auth-oauthlib": "1.2.0",
    "passlib": "1.7.4",
    "tokenizers": "0.19.1",
    "azure-keyvault-secrets": "4.8.0",
    "detect-secrets": "1.5.0",
    "http-cookiejar": "0.1",
    "token": "1.0rc1",
    "flash-attn-token": "2.5.8+cu121torch2.3",
    "bitsandbytes-key": "0.43.1.post1",
    "django-auth": "5.0.dev20240101",
}
WORDS = {
    "max_tokens": "4k",
    "sort_keys": "true",
    "request_key": "a|b",
    "run_key": "smoke a",
    "num_tokens": "1e9",
    "pad_token": "<pad>",
    "keys": "a b",
    "tokenizer": "gpt2",
    "auth_method": "munge",
    "password_required": "no",
}


def test_kernel_settings_are_shown() -> None:
    values = dict.fromkeys(SETTINGS, "10")
    assert redact_tree({"values": values}) == {"values": values}


def test_differences_of_ordinary_kernel_settings_are_visible() -> None:
    name = "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait"
    assert redact_tree({name: "3"}) != redact_tree({name: "30"})


def test_versions_of_packages_are_shown() -> None:
    assert redact_tree({"distributions": NAMES_PACKAGES}) == {"distributions": NAMES_PACKAGES}


def test_words_of_training_are_shown() -> None:
    assert redact_tree(WORDS) == WORDS


@pytest.mark.parametrize(
    "name", ["net.ipv4.tcp_fastopen_key", "wandb.api_key", "password", "HF_TOKEN", "user.password"]
)
def test_secrets_are_still_hidden(name: str) -> None:
    assert redact_tree({name: "hunter2-3-4"}) == {name: HIDDEN}
    assert redact_tree({name: "12345678"}) == {name: HIDDEN}

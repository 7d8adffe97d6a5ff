"""Finds the folder and name of the configuration that a Python program requests from Hydra or OmegaConf."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight._util.budget import spend
from preflight.model.job import Note
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python.outline import dotted

#: A script without any of these words uses neither.
_HYDRA_WORDS = re.compile(r"\bhydra\b|\bOmegaConf\b")
#: Words of programs that register configurations in their code, which no file shows.
_REGISTRATION_WORDS = re.compile(r"ConfigStore|hydra_zen|hydra-zen|\bstore\(|SearchPathPlugin")
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+\(?([\w, ]*)|import\s+([\w.]+))", 8)
_MAX_IMPORTS = 60


@dataclass(frozen=True, slots=True)
class HydraProgram:
    """The arguments of `@hydra.main(config_path=..., config_name=...)` in one script.

    Args:
        script: the script, relative to the root.
        path: `config_path` as written; None if there is none.
        name: `config_name`; None if there is none.
        registers: whether the program, or a module that it imports, adds configurations in code.
        known: whether both arguments are literals.
    """

    script: str
    path: str | None
    name: str | None
    registers: bool
    known: bool = True


def hydra_program(script: str, tree: Tree) -> HydraProgram | None:
    """The configuration that a script requests from Hydra; None if it requests none or cannot be read."""
    file = tree.read(script)
    if not isinstance(file, SourceFile) or "hydra" not in file.text or not _HYDRA_WORDS.search(file.text):
        return None
    from preflight.sources.python.python_source import parse

    module = parse(file)
    if isinstance(module, Note):
        return None
    found = next(_calls(module), None)
    if found is None:
        return None
    named = {keyword.arg: keyword.value for keyword in found.keywords if keyword.arg}
    for name, value in zip(("config_path", "config_name"), found.args, strict=False):
        named.setdefault(name, value)
    path, path_known = _literal(named.get("config_path"))
    config_name, name_known = _literal(named.get("config_name"))
    return HydraProgram(script, path, config_name, _registers(file, tree), path_known and name_known)


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    """The decorators `hydra.main(...)` of a script, in order."""
    for node in ast.walk(module):
        spend()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and (dotted(decorator.func) or "") in ("hydra.main", "main"):
                    yield decorator


def _literal(node: ast.expr | None) -> tuple[str | None, bool]:
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None, True
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, True
    return None, False


def _registers(file: SourceFile, tree: Tree) -> bool:
    """Whether a script or a module that it imports registers configurations."""
    if _REGISTRATION_WORDS.search(file.text):
        return True
    for index, match in enumerate(_IMPORT.finditer(file.text)):
        if index >= _MAX_IMPORTS:
            return True
        name = match[1] or match[3] or ""
        names = [name, *(f"{name}.{item.strip()}" for item in (match[2] or "").split(",") if item.strip())]
        for module in names:
            for path in _module_files(module, file.path):
                other = tree.read(path)
                if isinstance(other, SourceFile) and _REGISTRATION_WORDS.search(other.text):
                    return True
    return False


def _module_files(name: str, script: str) -> Iterator[str]:
    folder = posixpath.dirname(script)
    if name.startswith("."):
        dots = len(name) - len(name.lstrip("."))
        base = posixpath.normpath(posixpath.join(folder, *[".."] * (dots - 1)))
        flat, starts = name.lstrip(".").replace(".", "/"), [base]
    else:
        flat, starts = name.replace(".", "/"), [folder, "", "src"]
    for start in dict.fromkeys(starts):
        if not flat:
            continue
        joined = posixpath.normpath(posixpath.join(start, flat))
        if not joined.startswith(("..", "/")):
            yield f"{joined}.py"
            yield f"{joined}/__init__.py"

"""How many items a list of a script has, and what the settings files beside it hold.

A list may be written out, be the entries of a folder of the tree, or stand in the one JSON or YAML file near the script
that has its key: a guess, as only the launch line says which file the script is given.
"""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight._util.budget import spend
from preflight._util.redaction import scrub
from preflight._util.spans import span_of
from preflight.model.job import Known, Span
from preflight.sources.base import SourceFile
from preflight.sources.formats import lenient_json, lenient_yaml
from preflight.sources.formats.structured import Kind, Member, Node
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

_SUFFIXES = (".json", ".yaml", ".yml")
#: Files of settings that are searched, their size, and the entries of a folder that are looked at.
_MAX_FILES, _MAX_SIZE, _MAX_NAMES = 40, 200_000, 400
_MAX_DEPTH = 6
#: Methods after which a list has another length.
_CHANGES = ("append", "extend", "insert", "pop", "remove", "clear")


class Items(NamedTuple):
    """The number of items of a list, where that is written, and whether the script itself says it."""

    number: int
    span: Span
    certain: bool


class Setting(NamedTuple):
    """A value of a settings file, with the place of its key."""

    node: Node
    span: Span


def items_of(module: Module, expression: ast.expr, depth: int = 0) -> Items | None:
    """The number of items of a list; None if it is not known."""
    name = dotted(expression)
    if depth > _MAX_DEPTH or any(dotted(call.func).startswith(f"{name}.") for call in module.named(*_CHANGES)):
        return None
    known = module.fold(expression)
    if isinstance(known, Known) and isinstance(known.value, tuple):
        return Items(len(known.value), module.span(expression), True)
    if isinstance(expression, (ast.List, ast.Tuple)):
        plain = not any(isinstance(each, ast.Starred) for each in expression.elts)
        return Items(len(expression.elts), module.span(expression), True) if plain else None
    if isinstance(expression, ast.ListComp):
        source = expression.generators[0]
        whole = len(expression.generators) == 1 and not source.ifs
        return items_of(module, source.iter, depth + 1) if whole else None
    if isinstance(expression, ast.Call):
        return _of_call(module, expression, depth)
    if isinstance(expression, ast.Subscript):
        setting = setting_of(module, expression)
        if setting is None or setting.node.kind is not Kind.ARRAY:
            return None
        return Items(len(setting.node.items), setting.span, False)
    if isinstance(expression, (ast.Name, ast.Attribute)):
        found = meant(module, expression)
        return items_of(module, found, depth + 1) if found is not None else None
    return None


def meant(module: Module, name: ast.expr) -> ast.expr | None:
    """What a name is bound to: in one place, or as the argument of a function that is called once."""
    made = module.definition(name)
    made = module.outline.assigned_once(made) or made
    if made is not name:
        return made
    function = module.outline.function_of(name)
    names = [each.arg for each in function.args.args] if function is not None else []
    calls = module.outline.calls_named(function.name) if function is not None else ()
    if dotted(name) not in names or len(calls) != 1:
        return None
    given = argument(calls[0], dotted(name), names.index(dotted(name)))
    return value_of(given) if given is not None else None


def _of_call(module: Module, call: ast.Call, depth: int) -> Items | None:
    name = module.called(call)
    if name in ("sorted", "list", "tuple") and call.args:
        return items_of(module, call.args[0], depth + 1)
    if name == "range" and len(call.args) == 1:
        known = module.fold(call.args[0])
        whole = isinstance(known, Known) and isinstance(known.value, int) and not isinstance(known.value, bool)
        return Items(int(str(getattr(known, "value", 0))), module.span(call), True) if whole else None
    if last(name) not in ("listdir", "glob") or len(call.args) != 1:
        return None
    known = module.fold(call.args[0])
    path = known.value if isinstance(known, Known) and isinstance(known.value, str) else ""
    folder, pattern = posixpath.split(path) if last(name) == "glob" else (path, "*")
    target = module.files.resolve(folder, relative_to=module.file.path) if folder else None
    names = module.files.names(target) if target and not re.search(r"[*?[]", folder) else ()
    found = [each for each in names[:_MAX_NAMES] if fnmatch.fnmatch(each.rstrip("/"), pattern)]
    return Items(len(found), module.span(call), False) if found and len(names) < _MAX_NAMES else None


def setting_of(module: Module, expression: ast.expr) -> Setting | None:
    """The value of `settings["runner"]["files"]` in the one file of settings near the script that has the keys."""
    keys: list[str] = []
    at = expression
    while isinstance(at, ast.Subscript):
        known = module.fold(at.slice)
        if not isinstance(known, Known) or not isinstance(known.value, str):
            return None
        keys.insert(0, known.value)
        at = at.value
        if isinstance(at, ast.Name) and isinstance(meant := module.definition(at), ast.Subscript):
            at = meant
    if not keys or not isinstance(at, (ast.Name, ast.Attribute)):
        return None
    found = [setting for file in _settings_files(module) for setting in _values(file, keys)]
    return found[0] if len(found) == 1 else None


def _settings_files(module: Module) -> Iterator[SourceFile]:
    own = posixpath.dirname(module.file.path)
    folders = list(dict.fromkeys((own, posixpath.dirname(own), "")))
    inner = [posixpath.join(folder, name.rstrip("/")) for folder in folders for name in _folders_in(module, folder)]
    paths = [
        posixpath.join(folder, name)
        for folder in dict.fromkeys((*folders, *inner))
        for name in module.files.names(folder)[:_MAX_NAMES]
        if name.endswith(_SUFFIXES)
    ]
    for path in dict.fromkeys(paths[:_MAX_FILES]):
        file = module.files.read(path)
        if isinstance(file, SourceFile) and len(file.text) <= _MAX_SIZE:
            yield file


def _folders_in(module: Module, folder: str) -> list[str]:
    return [name for name in module.files.names(folder)[:_MAX_NAMES] if name.endswith("/")]


def _values(file: SourceFile, keys: list[str]) -> Iterator[Setting]:
    """The values below these keys, at any depth of a file."""
    if any(key not in file.text for key in keys):
        return
    spend(len(file.text) // 100)
    reader = lenient_json if file.path.endswith(".json") else lenient_yaml
    root = reader.parse(file.text).root
    pending = [root] if root is not None else []
    while pending:
        node = pending.pop()
        member: Member | None = node.member(*keys)
        if member is not None:
            span = span_of(file.path, file.text, member.key_start, member.node.end)
            yield Setting(member.node, replace(span, snippet=scrub(span.snippet)))
        else:
            pending += [each.node for each in node.members]

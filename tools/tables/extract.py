"""Extracts options from the syntax tree of source code: nothing is imported and nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.sources.tables import Row
from tools.tables.targets import Declaration, Part

_FLAG_ACTIONS = frozenset(
    ["store_true", "store_false", "store_const", "append_const", "count", "help", "version", "BooleanOptionalAction"]
)
_KEY = re.compile(r"[A-Za-z_][\w-]*")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def rows_of(text: str, part: Part) -> tuple[Row, ...]:
    """Return the rows that a file declares, in file order."""
    module = ast.parse(text)
    constants = _constants(module)
    found: Iterator[Row]
    if part.declaration is Declaration.ARGPARSE:
        found = _argparse(module, part, constants)
    elif part.declaration is Declaration.CLICK:
        found = _click(module, part, constants)
    elif part.declaration is Declaration.FIELDS:
        found = _fields(module, part, constants)
    elif part.declaration is Declaration.ARGUMENTS:
        found = _arguments(module, part, constants)
    elif part.declaration is Declaration.LISTS:
        found = _lists(module, part, constants)
    else:
        found = _named_nodes(module, part)
    return tuple(dict.fromkeys(found))


def _argparse(module: ast.Module, part: Part, constants: dict[str, object]) -> Iterator[Row]:
    for call in _calls_in(_below(module, part.names), "add_argument"):
        words = [_literal(item, constants) for item in call.args]
        named = {item.arg: item.value for item in call.keywords if item.arg}
        if not words or not all(isinstance(word, str) for word in words):
            continue
        spellings = tuple(str(word) for word in words if str(word).startswith("-"))
        dest = _literal(named["dest"], constants) if "dest" in named else None
        action = _name(named.get("action"))
        choices = _literal(named.get("choices"), constants)
        flag = action in _FLAG_ACTIONS or action in part.flags
        takes = "0" if flag else _takes(_literal(named.get("nargs"), constants), named.get("nargs"))
        default = False if action == "store_true" else True if action == "store_false" else None
        if action == "BooleanOptionalAction":
            spellings = tuple(s for each in spellings for s in (each, f"--no-{each[2:]}" if each[:2] == "--" else each))
        yield Row(
            dest=str(dest) if isinstance(dest, str) else _dest(words),
            spellings=_with_both_dashes(spellings) if part.both_dashes else spellings,
            takes=takes,
            kind="bool" if flag and action != "count" else _kind(named.get("type")),
            default=_plain(_literal(named.get("default"), constants)) if "default" in named else default,
            choices=_texts(choices),
        )


def _dest(words: list[object]) -> str:
    """Return the `dest` that argparse derives: from the first long spelling, else from the first one."""
    texts = [str(word) for word in words]
    chosen = next((text for text in texts if text.startswith("--")), texts[0])
    return chosen.lstrip("-").replace("-", "_")


def _takes(nargs: object, node: ast.expr | None) -> str:
    if node is None:
        return "1"
    if _name(node) == "REMAINDER":
        return "..."
    return str(nargs) if isinstance(nargs, int | str) else "1"


def _click(module: ast.Module, part: Part, constants: dict[str, object]) -> Iterator[Row]:
    for function in ast.walk(module):
        if not isinstance(function, _FUNCTIONS) or (part.names and function.name not in part.names):
            continue
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or _name(call.func) not in ("option", "argument"):
                continue
            words = [str(word) for item in call.args if isinstance(word := _literal(item, constants), str)]
            named = {item.arg: item.value for item in call.keywords if item.arg}
            declared = [word for word in words if word.startswith("-")]
            plain = [word for word in words if not word.startswith("-")]
            spellings = tuple(half for word in declared for half in word.split("/"))
            flag = _literal(named.get("is_flag"), constants) is True or any("/" in word for word in declared)
            count = _literal(named.get("nargs"), constants)
            kind = named.get("type")
            choices = (
                _literal(kind.args[0], constants)
                if isinstance(kind, ast.Call) and _name(kind.func) == "Choice" and kind.args
                else None
            )
            if not spellings and not plain:
                continue
            yield Row(
                dest=plain[0] if plain else _dest(list(spellings)),
                spellings=spellings,
                takes="0" if flag else "*" if count == -1 else str(count) if isinstance(count, int) else "1",
                kind="bool" if flag else "" if choices else _kind(kind),
                default=_plain(_literal(named.get("default"), constants)),
                choices=_texts(choices),
            )


def _fields(module: ast.Module, part: Part, constants: dict[str, object]) -> Iterator[Row]:
    classes = {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    for name in part.names or tuple(classes):
        for owner in _bases(name, classes):
            for item in owner.body:
                if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                    continue
                kind = ast.unparse(item.annotation).strip("'\"")
                if item.target.id.startswith("_") or kind.startswith(("ClassVar", "typing.ClassVar")):
                    continue
                yield _field(item.target.id, kind, item.value, part, constants)


def _arguments(module: ast.Module, part: Part, constants: dict[str, object]) -> Iterator[Row]:
    for owner in ast.walk(module):
        if not isinstance(owner, ast.ClassDef) or owner.name not in part.names:
            continue
        for item in owner.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                given = item.args
                positional = [*given.posonlyargs, *given.args]
                missing: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
                defaults = (*missing, *given.defaults, *given.kw_defaults)
                for each, default in zip((*positional, *given.kwonlyargs), defaults, strict=True):
                    if each.arg != "self":
                        kind = ast.unparse(each.annotation) if each.annotation is not None else ""
                        yield _field(each.arg, kind, default, part, constants)


def _bases(name: str, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class and its bases in the same file, nearest first."""
    owner = classes.get(name)
    if owner is None:
        return []
    rest = {other: node for other, node in classes.items() if other != name}
    return [owner, *(found for base in owner.bases for found in _bases(_name(base), rest))]


def _field(name: str, kind: str, value: ast.expr | None, part: Part, constants: dict[str, object]) -> Row:
    default, names = value, [name]
    if isinstance(value, ast.Call) and _name(value.func) in ("field", "Field"):
        named = {item.arg: item.value for item in value.keywords if item.arg}
        default = named.get("default", value.args[0] if value.args else None)
        for alias in ("alias", "validation_alias"):
            other = _literal(named.get(alias), constants)
            if isinstance(other, str):
                names.append(other)
    is_flag = kind.replace("typing.", "") in ("bool", "Optional[bool]", "bool | None")
    spellings = tuple(part.option.format(each) for each in names) if part.option else tuple(names[1:])
    if part.option and part.both_dashes:
        spellings = _with_both_dashes(spellings)
    found = _literal(default, constants)
    if part.option and is_flag and found is True:
        # Hugging Face's parser adds the negation of options that are on by default.
        spellings = (*spellings, *(_with_both_dashes((part.option.format(f"no_{name}"),)) if part.both_dashes else ()))
    listed = kind.replace("typing.", "").replace("Optional[", "").lower().startswith(("list", "tuple", "sequence"))
    return Row(
        dest=name,
        spellings=spellings,
        takes="?" if is_flag else "+" if listed else "1",
        kind=kind,
        default=_plain(found),
    )


def _lists(module: ast.Module, part: Part, constants: dict[str, object]) -> Iterator[Row]:
    for owner in module.body:
        for item in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(item, ast.Assign | ast.AnnAssign):
                target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                if _name(target) in part.names:
                    yield from (Row(dest=name, kind=part.kind) for name in _texts(_literal(item.value, constants)))


def _named_nodes(module: ast.Module, part: Part) -> Iterator[Row]:
    for item in module.body:
        if not isinstance(item, ast.Assign) or not isinstance(item.value, ast.Constant):
            continue
        target, value = item.targets[0], item.value.value
        if not isinstance(target, ast.Name) or not target.id.startswith(part.names or ("",)):
            continue
        # Sample configurations and messages are constants as well, but not keys.
        if isinstance(value, str) and _KEY.fullmatch(value):
            yield Row(dest=value, kind=target.id)


def _below(module: ast.Module, names: tuple[str, ...]) -> list[ast.AST]:
    if not names:
        return [module]
    return [node for node in ast.walk(module) if isinstance(node, _FUNCTIONS) and node.name in names]


def _calls_in(nodes: list[ast.AST], method: str) -> list[ast.Call]:
    found = [
        call
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == method
    ]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _constants(module: ast.Module) -> dict[str, object]:
    """Return the plain values of the module's own names."""
    found: dict[str, object] = {}
    for item in module.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            value = _literal(item.value, found)
            if value is not None:
                found[item.targets[0].id] = value
    return found


def _literal(node: ast.expr | None, constants: dict[str, object]) -> object:
    """Return the plain value of an expression; None if it is computed."""
    if node is None:
        return None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [_literal(item, constants) for item in node.elts]
        return None if any(item is None for item in items) else tuple(items)
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value


def _plain(value: object) -> str | int | float | bool | None:
    return value if isinstance(value, str | int | float | bool) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, tuple) else ()


def _name(node: ast.expr | None) -> str:
    """Return a string, or the last part of a name or of the name of a called function."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _kind(node: ast.expr | None) -> str:
    return "" if node is None or isinstance(node, ast.Lambda) else ast.unparse(node)


def _with_both_dashes(spellings: tuple[str, ...]) -> tuple[str, ...]:
    found = dict.fromkeys(spellings)
    for spelling in spellings:
        if spelling.startswith("--"):
            found.setdefault("--" + spelling[2:].replace("_", "-"))
            found.setdefault("--" + spelling[2:].replace("-", "_"))
    return tuple(found)

"""The named numbers in a file: enough to show which setting of two copies differs, and nothing else of it."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any, Dict, Iterator, List, Tuple

from preflight._util.secret_names import is_secret

#: The number of values that are kept of one file.
MAX_VALUES = 400
_MAX_NAME_LENGTH = 100
_YAML = re.compile(r"^(?P<indent> *)(?:- +)?(?P<name>[\w./-]{1,100}) *:(?: +(?P<value>[^#\n]*?))?\s*(?:#.*)?$")
_OPTION = re.compile(r"(?<![\w-])(?P<name>--[A-Za-z][\w-]{0,80})(?:=|[ \t]+)(?P<value>-?[\d.]+(?:[eE]-?\d+)?)(?![\w.])")
_ASSIGNED = re.compile(
    r"(?:^|[\s;(])(?P<name>[A-Za-z_]\w{0,80})=[\"']?(?P<value>-?[\d.]+(?:[eE]-?\d+)?)[\"']?(?=[\s;)]|$)", re.M
)
_HOST = re.compile(r"^\s*(?P<name>[\w.-]{1,253})[ \t]+.*?slots?\s*=\s*(?P<value>\d+)", re.M)
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def named_values(path: str, text: str) -> Dict[str, str]:
    """Numbers, true and false, and `auto`, by their names; repeated values are joined.

    JSON and YAML by their keys, dotted; Python by assignments, keyword arguments and defaults of options; all other
    text by options and shell assignments, and by slots of hosts.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind in (".json", ".jsonc"):
        found = _of_json(text)
    elif kind in (".yaml", ".yml"):
        found = _of_yaml(text)
    elif kind == ".py":
        found = _of_python(text)
    else:
        found = _of_shell(text)
    kept: Dict[str, List[str]] = {}
    for name, value in found:
        if is_secret(name.rpartition(".")[2]):
            continue
        if len(name) <= _MAX_NAME_LENGTH and (name in kept or len(kept) < MAX_VALUES):
            kept.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in sorted(kept.items())}


def _value_text(value: Any) -> str:
    """The value as text, or nothing if it is neither a number nor a switch."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return "auto" if value == "auto" else ""


def _of_json(text: str) -> Iterator[Tuple[str, str]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    waiting: List[Tuple[str, Any]] = [("", document)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            inner = [("%s.%s" % (name, key) if name else str(key), item) for key, item in value.items()]
            waiting.extend(reversed(inner))
        elif isinstance(value, list):
            waiting.extend((name, item) for item in reversed(value))
        elif name and _value_text(value):
            yield name, _value_text(value)


def _of_yaml(text: str) -> Iterator[Tuple[str, str]]:
    """Blocks of `name: value` by their indentation; flow collections and anchors are left out."""
    above: List[Tuple[int, str]] = []
    for line in text.splitlines():
        match = _YAML.match(line)
        if match is None:
            continue
        indent = len(match.group("indent"))
        while above and above[-1][0] >= indent:
            above.pop()
        name = ".".join([*(part for _, part in above), match.group("name")])
        value = (match.group("value") or "").strip()
        if not value:
            above.append((indent, match.group("name")))
        elif _NUMBER.fullmatch(value) or value.lower() in ("true", "false", "auto"):
            yield name, value.lower()


def _of_python(text: str) -> Iterator[Tuple[str, str]]:
    import ast  # Few jobs' files are Python.

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
                value = _constant(node.value)
                if name and value:
                    yield str(name), value
        elif isinstance(node, ast.Call):
            option = _option(node)
            for keyword in node.keywords:
                value = _constant(keyword.value)
                if value and keyword.arg:
                    yield (option if option and keyword.arg == "default" else keyword.arg), value


def _option(call: ast.Call) -> str:
    """`--batch-size` for `parser.add_argument("-b", "--batch-size", ...)`."""
    import ast

    names = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return next((name for name in names if name.startswith("--")), "")


def _constant(node: ast.expr) -> str:
    import ast

    sign = ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = "-", node.operand
    value = _value_text(node.value) if isinstance(node, ast.Constant) else ""
    return sign + value if value else ""


def _of_shell(text: str) -> Iterator[Tuple[str, str]]:
    for pattern in (_OPTION, _ASSIGNED, _HOST):
        for match in pattern.finditer(text):
            yield match.group("name"), match.group("value")

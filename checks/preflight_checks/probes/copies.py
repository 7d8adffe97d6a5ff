"""This node's copies of the job's files: their hashes, their named numbers, and the code next to them."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from preflight._util.secret_names import is_secret
from preflight_checks.probes.packages import commit_of

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


def named_values(path: str, text: str) -> dict[str, str]:
    """Return numbers, booleans and `auto` by their names; repeated values are joined.

    The names are dotted keys in JSON and YAML; assignments, keyword arguments and option defaults in Python; options,
    shell assignments and hosts with slots in all other text.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind in (".json", ".jsonc"):
        found = _json_values(text)
    elif kind in (".yaml", ".yml"):
        found = _yaml_values(text)
    elif kind == ".py":
        found = _python_values(text)
    else:
        found = _shell_values(text)
    kept: dict[str, list[str]] = {}
    for name, value in found:
        if is_secret(name.rpartition(".")[2]):
            continue
        if len(name) <= _MAX_NAME_LENGTH and (name in kept or len(kept) < MAX_VALUES):
            kept.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in sorted(kept.items())}


def _value_text(value: Any) -> str:
    """Return the value as a string if it is a number or a boolean; otherwise an empty string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return "auto" if value == "auto" else ""


def _json_values(text: str) -> Iterator[tuple[str, str]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            inner = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
            waiting.extend(reversed(inner))
        elif isinstance(value, list):
            waiting.extend((name, item) for item in reversed(value))
        elif name and _value_text(value):
            yield name, _value_text(value)


def _yaml_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield blocks of `name: value` by their indentation; flow collections and anchors are skipped."""
    above: list[tuple[int, str]] = []
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


def _python_values(text: str) -> Iterator[tuple[str, str]]:
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
    """Return `--batch-size` for `parser.add_argument("-b", "--batch-size", ...)`."""
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


def _shell_values(text: str) -> Iterator[tuple[str, str]]:
    for pattern in (_OPTION, _ASSIGNED, _HOST):
        for match in pattern.finditer(text):
            yield match.group("name"), match.group("value")


#: Hand-written files of a job are smaller.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: The code beside the training script: limits on the number of files, bytes and time.
MAX_CODE, MAX_CODE_BYTES, CODE_WITHIN_S = 1500, 64 * 1024 * 1024, 2.0
#: The number of files that are listed one by one; a larger tree has one hash.
MAX_NAMED = 400
_CODE = (".py", ".pyx", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
#: Folders with output of programs, or with installed packages.
_NOT_CODE = frozenset(
    ("__pycache__", "node_modules", "site-packages", "wandb", "outputs", "checkpoints", "logs", "build")
)


@dataclass(frozen=True)
class Copy:
    """One file. `problem` is `missing`, or the system's message; `path` is its location."""

    name: str
    path: str = ""
    problem: str = ""
    sha256: str = ""
    size_bytes: int = 0
    numbers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Copies:
    """The requested files, and the code in the working directory.

    `code` holds short hashes by relative name, and is empty if there are more than MAX_NAMED files. `code_hash` covers
    all of the code; it is empty if the walk was cut off (`cut` is the reason) or found nothing.
    """

    directory: str
    copies: list[Copy] = field(default_factory=list)
    commit: str = ""
    code: dict[str, str] = field(default_factory=dict)
    code_hash: str = ""
    code_files: int = 0
    cut: str = ""


def copies(params: dict[str, Any]) -> Copies:
    """Examine `params["files"]`, pairs of a name and its possible locations, relative to the working directory.

    The first existing location counts. If there is one, the code in the working directory is also hashed, and listed
    file by file unless `params["whole"]` is true.
    """
    directory = os.getcwd()
    file_copies = [_copy(str(name), [str(place) for place in places]) for name, places in params["files"]]
    if not any(copy.path and not copy.problem for copy in file_copies) or _is_home(directory):
        return Copies(directory, file_copies)
    listed, cut = _code(directory)
    whole = hashlib.sha256(
        "".join("{} {}\n".format(*item) for item in sorted(listed.items())).encode("utf-8", "replace")
    )
    return Copies(
        directory,
        file_copies,
        commit_of(directory),
        listed if len(listed) <= MAX_NAMED and not params.get("whole") else {},
        "" if cut else whole.hexdigest()[:16],
        len(listed),
        cut,
    )


def _is_home(directory: str) -> bool:
    """Return whether this is a home directory, which holds more than a job, and intentionally differs between nodes."""
    return os.path.realpath(directory) in (os.path.realpath(os.path.expanduser("~")), "/")


def _copy(name: str, places: Sequence[str]) -> Copy:
    for place in places:
        try:
            if not os.path.exists(place):
                continue
            path = os.path.abspath(place)
            if not os.path.isfile(place):
                return Copy(name, path, "it is not a regular file")
            with open(place, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return Copy(name, os.path.abspath(place), error.strerror or str(error))
        if len(data) > MAX_FILE_BYTES:
            return Copy(name, path, f"it is larger than {MAX_FILE_BYTES >> 20} MiB", size_bytes=os.path.getsize(place))
        numbers = named_values(name, data.decode("utf-8", "replace"))
        return Copy(name, path, "", hashlib.sha256(data).hexdigest(), len(data), numbers)
    return Copy(name, "", "missing")


def _code(directory: str) -> tuple[dict[str, str], str]:
    """Return short hashes by relative name, and the reason if the walk was cut off; the reason is empty otherwise."""
    until = time.monotonic() + CODE_WITHIN_S
    listed: dict[str, str] = {}
    read = 0
    for path in _sources(directory):
        if time.monotonic() > until:
            return listed, f"reading the code took longer than {CODE_WITHIN_S:g} s"
        if len(listed) >= MAX_CODE or read >= MAX_CODE_BYTES:
            return listed, f"there are more than {MAX_CODE} files or {MAX_CODE_BYTES >> 20} MiB of code"
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError:
            data = b""
        read += len(data)
        listed[os.path.relpath(path, directory)] = hashlib.sha256(data).hexdigest()[:12]
    return listed, ""


def _sources(directory: str) -> Iterator[str]:
    for where, folders, files in os.walk(directory):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_CODE
            and not os.path.exists(os.path.join(where, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            path = os.path.join(where, name)
            if name.endswith(_CODE) and os.path.isfile(path):
                yield path

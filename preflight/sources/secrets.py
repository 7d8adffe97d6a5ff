"""Finds the secrets of a file by its structure, so that they can be hidden wherever else they appear.

A snippet shows one line, where a secret need not be beside its name: a folded YAML block, the second item of
`[--password, X]`, `value:` below `- name: DB_PASSWORD`, the body of a key. So the whole file is searched once, and its
secrets are hidden in everything that a job quotes.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from preflight._util import toml
from preflight._util.redaction import HIDDEN, MIN_LENGTH, hide_secrets, redact, remember, secret_pieces, secrets_in
from preflight._util.secret_names import is_plain, is_secret, looks_random
from preflight.model.job import (
    Claim,
    Job,
    Launch,
    Note,
    OneOf,
    Reference,
    Span,
    Suppression,
    Unresolved,
    Value,
    alternatives,
)
from preflight.sources.base import Command, Reading, SourceFile
from preflight.sources.formats.structured import Kind, Node

#: Characters. A larger file is data: not searched, so `is_searched` is false and none of it is quoted.
_MAX_BYTES = 2 * 1024 * 1024
#: Structure is parsed up to this size; parsing costs some ten times the size in time and memory.
_MAX_PARSED_BYTES = 512 * 1024
#: Secrets of one file; each one is searched for in every text of its job.
MAX_SECRETS = 400
_JSON = (".json", ".jsonc", ".hjson")
_YAML = (".yaml", ".yml", ".tpl", ".tmpl", ".j2")
#: Files whose secrets need not be beside their names.
_STRUCTURED = (".py", ".toml", *_JSON, *_YAML)
_MAX_DEPTH = 60
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]{0,100}")
#: A key of several words: `"api key" = "..."`, `secret key: ...`.
_SPACED_KEY = re.compile(r"(?m)([A-Za-z]\w{0,40}(?: \w{1,40}){1,3})[\"']?[ \t]{0,8}[:=]")
_NAMES_OF_PAIRS = (("name", "value"), ("key", "value"), ("Name", "Value"), ("Key", "Value"), ("name", "default"))
#: Keys below that of a secret whose value is the secret; others give its location.
_VALUES = frozenset(("value", "content", "contents", "data", "text", "default", "raw", "plain", "plaintext", "secret"))
#: Keys of objects and lists that name secrets stored elsewhere.
_REFERENCES = frozenset(("secrets", "imagepullsecrets", "secretref", "secretkeyref", "envfrom", "tokens"))
#: A literal of Python on one line.
_QUOTED = re.compile(r"[\"']([^\"'\n]{6,4000})[\"']")
_LOOKUPS = frozenset(("get", "getenv", "pop", "environ", "getpass", "input", "load", "decode", "encode", "read_text"))


def is_searched(file: SourceFile) -> bool:
    """Return whether all secrets of a file are known. Lines of a file that is too large to search must not be
    quoted.
    """
    return _search(file)[1]


def shown_lines(file: SourceFile) -> Callable[[str], str]:
    """Return a function that shows parts of a file without its secrets, or nothing if not all of them are known."""
    secrets, complete = _search(file)
    ordered = sorted(secrets, key=len, reverse=True)
    return lambda text: hide_secrets(text, ordered) if complete or not text.strip() else HIDDEN


@functools.lru_cache(maxsize=1024)
def _search(file: SourceFile) -> tuple[frozenset[str], bool]:
    text = file.text
    if len(text) > _MAX_BYTES:
        return frozenset(), False
    found = set(secrets_in(text))
    complete = True
    if _names_a_secret(text):
        try:
            if len(text) <= _MAX_PARSED_BYTES:
                found.update(piece for value in _structural_spans(file) for piece in secret_pieces(value))
            else:
                complete = not file.path.lower().endswith(_STRUCTURED)
        except (RecursionError, MemoryError):
            complete = False
        except (ValueError, SyntaxError):
            # The source of this file reports its errors; secrets found by text count.
            pass
    remember(found)
    kept = sorted(found, key=lambda secret: (-len(secret), secret))[:MAX_SECRETS]
    return frozenset(kept), complete and len(found) == len(kept)


def secrets_of_files(files: Iterable[SourceFile]) -> frozenset[str]:
    """Return the secrets of several files that belong together."""
    return frozenset().union(*(_search(file)[0] for file in files))


def _names_a_secret(text: str) -> bool:
    return "kind: Secret" in text or any(
        is_secret(name) or name.casefold() in _REFERENCES
        for name in {*_IDENTIFIER.findall(text), *_SPACED_KEY.findall(text)}
    )


def _structural_spans(file: SourceFile) -> Iterator[str]:
    path = file.path.lower()
    if path.endswith(".py"):
        yield from _secrets_of_python(file.text)
    elif path.endswith(".toml"):
        yield from _secrets_of_toml(file.text)
    elif path.endswith(_JSON):
        from preflight.sources.formats import lenient_json

        yield from _secrets_of_roots([lenient_json.parse(file.text).root], file.text)
    elif path.endswith(_YAML):
        from preflight.sources.formats import lenient_yaml

        yield from _secrets_of_roots([document.root for document in lenient_yaml.parse_all(file.text)], file.text)


# Configuration ------------------------------------------------------------------------------------------------------


def _secrets_of_roots(roots: Iterable[Node | None], text: str) -> Iterator[str]:
    for root in roots:
        if root is not None:
            yield from _secrets_of_node(root, text, 0)


def _secrets_of_node(node: Node, text: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if node.kind is Kind.OBJECT:
        yield from _secret_of_pair(node, text)
        for key in ("data", "stringData") if node.text("kind") == "Secret" else ("stringData",):
            yield from _leaves(node.at(key), text, depth)
        for member in node.members:
            if member.key.casefold() in _REFERENCES:
                yield from _secrets_of_references(member.node)
            elif is_secret(member.key):
                yield from _values_of_secret(member.key, member.node, text, depth + 1)
            yield from _secrets_of_node(member.node, text, depth + 1)
    elif node.kind is Kind.ARRAY:
        option = ""
        for item in node.items:
            written = str(item.value) if item.kind is not Kind.OBJECT and item.value is not None else ""
            if option and not written.startswith("-"):
                yield from _value(option, item, text)
            option = written if written.startswith("-") and "=" not in written and is_secret(written) else ""
            yield from _secrets_of_node(item, text, depth + 1)
    elif isinstance(node.value, str) and len(node.value) > 8:
        # JSON or a command line within a value, without the quotes and folds of the outer syntax.
        yield from secrets_in(node.value)


def _secrets_of_references(node: Node) -> Iterator[str]:
    """Yield values below `secrets:` or `tokens:` that are not names: `wandb: 3f9a...`."""
    for member in node.members if node.kind is Kind.OBJECT else ():
        if isinstance(member.node.value, str) and looks_random(member.node.value):
            yield member.node.value


def _secret_of_pair(node: Node, text: str) -> Iterator[str]:
    """Yield `name: DB_PASSWORD` with `value: X` beside it, as lists of variables are written."""
    for name, value in _NAMES_OF_PAIRS:
        named, given = node.text(name), node.at(value)
        if named and given is not None and is_secret(named):
            yield from _value(named, given, text)


def _values_of_secret(name: str, node: Node, text: str, depth: int) -> Iterator[str]:
    """Yield values below the key of a secret."""
    if node.kind is Kind.OBJECT:
        for member in node.members:
            if member.key.casefold() in _VALUES and depth < _MAX_DEPTH:
                yield from _values_of_secret(name, member.node, text, depth + 1)
    elif node.kind is Kind.ARRAY:
        for item in node.items:
            if item.kind is not Kind.OBJECT:
                yield from _value(name, item, text)
    else:
        yield from _value(name, node, text)


def _value(name: str, node: Node, text: str) -> Iterator[str]:
    if node.kind in (Kind.OBJECT, Kind.ARRAY) or not isinstance(node.value, (str, int)):
        return
    value = str(node.value)
    if _may_be(name, value):
        yield value
        # The lines of a folded block differ from its value.
        yield text[node.start : node.end].lstrip("|>+-0123456789 \t") if "\n" in text[node.start : node.end] else ""


def _leaves(node: Node | None, text: str, depth: int) -> Iterator[str]:
    if node is None or depth > _MAX_DEPTH:
        return
    for member in node.members:
        if isinstance(member.node.value, str):
            yield member.node.value
            yield text[member.node.start : member.node.end]
        yield from _leaves(member.node, text, depth + 1)


def _may_be(name: str, value: str) -> bool:
    """Return whether a value, given under a secret's name, is the secret itself and not a reference to it."""
    if is_plain(name, value) or (" " in value.strip() and value.rstrip().endswith((":", "?"))):
        # The latter prompts for one: `input("AWS Secret Access Key: ")`.
        return False
    if value.startswith(".") and value[1:].isalpha():
        return False
    # For these words alone the value decides: training code is full of tokens and keys of other kinds.
    if name.strip("-").casefold() in ("token", "key", "auth", "pass", "signature", "sig", "pat", "sk"):
        return looks_random(value)
    return True


def _secrets_of_toml(text: str) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", toml.loads(text))]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            # The value of `[auth.password]` is called `value`.
            waiting.extend(
                (name if is_secret(name) and key in _VALUES else str(key), item) for key, item in value.items()
            )
            named = value.get("name", value.get("key"))
            if isinstance(named, str) and is_secret(named) and isinstance(value.get("value"), str):
                yield value["value"]
        elif isinstance(value, list):
            waiting.extend((name, item) for item in value)
            for option, item in pairwise(value):
                if isinstance(option, str) and isinstance(item, str) and option.startswith("-") and is_secret(option):
                    yield item
        elif isinstance(value, str):
            if name and is_secret(name) and _may_be(name, value):
                yield value
            yield from secrets_in(value)


# Python -------------------------------------------------------------------------------------------------------------


def _secrets_of_python(text: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    lines = text.split("\n")
    for node in ast.walk(tree):
        for name, value in _named_values(node):
            if is_secret(name):
                yield from (
                    constant for constant in _constants(value, 0) if _may_be(name, constant) and not _is_name(constant)
                )
                yield from _pieces(value, lines)


def _pieces(expression: ast.expr | None, lines: list[str]) -> Iterator[str]:
    """Yield the literals of a multi-line string, each of which is quoted by itself."""
    for node in ast.walk(expression) if expression is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno != node.lineno:
            for line in lines[node.lineno - 1 : node.end_lineno]:
                yield from (piece for piece in _QUOTED.findall(line) if looks_random(piece))


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names in a piece of code, each with the expression of its value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)):
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value
    elif isinstance(node, ast.Dict):
        yield from ((_text(key), value) for key, value in zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
        yield _name(node.left), node.comparators[0]
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from ((_option(first), second) for first, second in zip(node.elts, node.elts[1:], strict=False))
    elif isinstance(node, ast.arguments):
        given = [*node.posonlyargs, *node.args]
        yield from ((one.arg, value) for one, value in zip(reversed(given), reversed(node.defaults), strict=False))
        yield from ((one.arg, value) for one, value in zip(node.kwonlyargs, node.kw_defaults, strict=True))
    elif isinstance(node, ast.Call):
        yield from ((_text(first), second) for first, second in zip(node.args, node.args[1:], strict=False))
        default = next((each.value for each in node.keywords if each.arg in ("default", "const", "value")), None)
        for argument in node.args:
            yield _text(argument), default
        named = next((_text(each.value) for each in node.keywords if each.arg in ("name", "key", "variable")), "")
        yield named, default


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for one, item in zip(target.elts, value.elts, strict=False):
            yield from _targets(one, item)
    else:
        yield _name(target), value


def _name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return _text(expression.slice) if isinstance(expression, ast.Subscript) else ""


def _text(expression: ast.expr | None) -> str:
    found = expression.value if isinstance(expression, ast.Constant) else ""
    return found if isinstance(found, str) else ""


def _option(expression: ast.expr) -> str:
    text = _text(expression)
    return text if text.startswith("-") else ""


def _constants(expression: ast.expr | None, depth: int) -> Iterator[str]:
    """Yield the strings that an expression may evaluate to, without its lookup keys."""
    if expression is None or depth > _MAX_DEPTH:
        return
    if isinstance(expression, ast.Constant):
        value = expression.value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str) and not value.startswith("-"):
            yield value
    elif isinstance(expression, (ast.BoolOp, ast.JoinedStr, ast.List, ast.Tuple, ast.BinOp, ast.IfExp)):
        # All their parts but the test of a condition.
        skipped_part = expression.test if isinstance(expression, ast.IfExp) else None
        for item in ast.iter_child_nodes(expression):
            if isinstance(item, ast.expr) and item is not skipped_part:
                yield from _constants(item, depth + 1)
    elif isinstance(expression, ast.Dict):
        # `PASSWORDS = {"prod": "..."}`; a value in such a table is a secret unless it looks like a name.
        for item in expression.values:
            yield from (
                constant
                for constant in _constants(item, depth + 1)
                if looks_random(constant) or " " in constant or "-" in constant
            )
    elif isinstance(expression, ast.Call):
        called = _name(expression.func)
        skipped = 1 if called in _LOOKUPS else 0
        for item in expression.args[skipped:]:
            yield from _constants(item, depth + 1)
        if isinstance(expression.func, ast.Attribute) and called not in ("get", "getenv", "pop"):
            yield from _constants(expression.func.value, depth + 1)
        for each in expression.keywords:
            if each.arg in ("default", "const", "value"):
                yield from _constants(each.value, depth + 1)


def _is_name(value: str) -> bool:
    """Return `HF_TOKEN`: a lookup key, not a secret itself."""
    return value.isidentifier() and is_secret(value) and "_" in value and not any(map(str.isdigit, value))


#: Secrets that are hidden; each one is searched for in every text.
_MAX_SECRETS = 40


def secrets_of(commands: Iterable[Command]) -> frozenset[str]:
    """Return the values of variables with secret-looking names anywhere in a script."""
    found: set[str] = set()
    seen: set[int] = set()
    for command in commands:
        for variables in (command.environment, command.variables):
            if id(variables) in seen:
                continue
            seen.add(id(variables))
            for variable in variables.values():
                if is_secret(variable.name):
                    values = [str(item) for item in alternatives(variable.value) if len(str(item)) >= MIN_LENGTH]
                    found.update(
                        piece
                        for value in values
                        for piece in (() if is_plain(variable.name, value) else secret_pieces(value))
                    )
    return frozenset(sorted(found)[:_MAX_SECRETS])


def job_without_secrets(job: Job, secrets: frozenset[str], unsearched: frozenset[str] = frozenset()) -> Job:
    """Return a copy of the job with all `secrets` hidden, whichever of its files is quoted.

    No line of an `unsearched` file is quoted: not all of its secrets are known.
    """
    cleaner = _Cleaner(tuple(sorted(secrets, key=len, reverse=True)), unsearched)
    clean = cleaner.all_of(job)
    # References are not followed any more.
    targets = (replace(each, target=cleaner.text(each.target)) for each in clean.references)
    return replace(clean, references=tuple(targets))


def without_secrets(reading: Reading, secrets: frozenset[str] = frozenset()) -> Reading:
    """Return a copy of the reading with apparent secrets, and all `secrets`, replaced."""
    return _Cleaner(tuple(sorted(secrets, key=len, reverse=True))).all_of(reading)


_Placed = TypeVar("_Placed", Reference, Note, Suppression)
_Read = TypeVar("_Read", Job, Reading)


@dataclass(frozen=True, slots=True)
class _Cleaner:
    secrets: tuple[str, ...]
    unsearched: frozenset[str] = frozenset()

    def text(self, text: str) -> str:
        return hide_secrets(text, self.secrets)

    def span(self, span: Span) -> Span:
        clean = "" if span.path in self.unsearched else self.text(span.snippet)
        return span if clean == span.snippet else replace(span, snippet=clean)

    def value(self, value: Value) -> Value:
        if isinstance(value, Unresolved):
            clean = self.text(value.why)
            return value if clean == value.why else replace(value, why=clean)
        for item in value.values if isinstance(value, OneOf) else (value.value,):
            texts = item if isinstance(item, tuple) else (item,)
            if any(isinstance(text, str) and self.text(text) != text for text in texts):
                return Unresolved("redacted")
        return value

    def claim(self, claim: Claim) -> Claim:
        # Names of options are not secret, whatever is in them.
        value = claim.value if claim.quantity == "declared_options" else self.value(claim.value)
        span, spelling = self.span(claim.span), self.text(claim.spelling)
        condition = self.text(claim.condition) if claim.condition else ""
        because = tuple(self.claim(reason) for reason in claim.because) if claim.because else ()
        origin = None if claim.origin is None else self.span(claim.origin)
        clean = (value, span, spelling, condition, because, origin)
        # Nearly every claim is clean, and copying each would cost more than searching.
        if clean == (claim.value, claim.span, claim.spelling, claim.condition, claim.because, claim.origin):
            return claim
        return replace(
            claim, value=value, span=span, spelling=spelling, condition=condition, because=because, origin=origin
        )

    def launch(self, launch: Launch) -> Launch:
        arguments: list[str | None] = []
        option = ""
        for argument in launch.arguments:
            text = argument or ""
            shown = self.text(redact(option, text) if option else text)
            arguments.append(None if argument is None else shown)
            option = text if text.startswith("-") and "=" not in text else ""
        return replace(
            launch,
            span=self.span(launch.span),
            arguments=tuple(arguments),
            program=self.text(launch.program),
            condition=self.text(launch.condition),
        )

    def placed(self, item: _Placed) -> _Placed:
        return replace(item, span=self.span(item.span))

    def all_of(self, read: _Read) -> _Read:
        return replace(
            read,
            claims=tuple(map(self.claim, read.claims)),
            launches=tuple(map(self.launch, read.launches)),
            references=tuple(map(self.placed, read.references)),
            notes=tuple(replace(self.placed(note), message=self.text(note.message)) for note in read.notes),
            suppressions=tuple(map(self.placed, read.suppressions)),
        )

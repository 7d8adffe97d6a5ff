"""What every launcher's reader needs to state claims: scope and source once, then one call a claim."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Launch,
    OneOf,
    Plain,
    Reference,
    Relation,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
    one_of,
)
from preflight.sources.base import LaunchLine, SourceFile, Tree, Variable, Word
from preflight.sources.launchers.options import Given, glue, head, pieces_of, split_last, text_of, texts

#: What the shell reader says of `$PWD` and its like.
_STARTED_IN = "the directory it is started in"
#: A range such as `2:4` with more members than this is left unresolved.
_WIDEST_RANGE = 16


@dataclass(slots=True)
class Stating:
    """Collects the claims of one source about one launch."""

    source: str
    scope: Scope = WHOLE_JOB
    condition: str = ""
    claims: list[Claim] = field(default_factory=list)

    def say(
        self,
        quantity: str,
        value: Value,
        span: Span,
        spelling: str,
        *,
        strength: Strength = Strength.FLAG,
        relation: Relation = Relation.SETS,
        because: tuple[Claim, ...] = (),
        condition: str | None = None,
        source: str = "",
        scope: Scope | None = None,
    ) -> Claim:
        """State one claim and return it."""
        claim = Claim(
            quantity=quantity,
            value=value,
            span=span,
            spelling=spelling,
            source=source or self.source,
            scope=self.scope if scope is None else scope,
            strength=strength,
            relation=relation,
            condition=self.condition if condition is None else condition,
            because=because,
        )
        self.claims.append(claim)
        return claim

    def given(
        self,
        quantity: str,
        given: Given | Said | None,
        convert: Callable[[Value], Value] = lambda value: value,
        *,
        relation: Relation = Relation.SETS,
        strength: Strength | None = None,
    ) -> Claim | None:
        """State what an option says, when it was given."""
        if given is None:
            return None
        own = given.strength if isinstance(given, Said) else Strength.FLAG
        return self.say(
            quantity,
            convert(given.value),
            given.span,
            given.spelling,
            strength=strength or own,
            relation=relation,
            condition=(given.condition or self.condition) if isinstance(given, Said) else None,
        )


@dataclass(frozen=True, slots=True)
class Said:
    """A setting in force, whether it came from an option or from a variable."""

    value: Value
    span: Span
    spelling: str
    strength: Strength
    parts: tuple[Value, ...] = ()
    condition: str = ""


def said(given: Given | None) -> Said | None:
    """An option as a setting in force."""
    if given is None:
        return None
    return Said(given.value, given.span, given.spelling, Strength.FLAG, given.parts)


def said_by(variable: Variable | None, strength: Strength = Strength.ENVIRONMENT) -> Said | None:
    """An environment variable as a setting in force."""
    if variable is None:
        return None
    spelling = variable.spelling
    if not spelling.startswith((variable.name, "export ")):
        spelling = f"{variable.name}={spelling}"
    return Said(variable.value, variable.span, spelling, strength, (), variable.condition)


def as_text(value: Value) -> Value:
    """The same value as text."""
    return lift(lambda item: item if isinstance(item, str) else str(item), value)


def as_strings(value: Value, separator: str = ",") -> Value:
    """A list written as one text, as a tuple of its non-empty, stripped members."""
    return lift(
        lambda item: tuple(part.strip() for part in str(item).split(separator) if part.strip()), value
    )


def count_of(value: Value) -> Value:
    """How many members a tuple value has."""
    return lift(lambda item: len(item) if isinstance(item, tuple) else 1, value)


def node_range(value: Value) -> tuple[Value, Value]:
    """Smallest and possible node counts of `4`, `"2:4"`; both unresolved where it is neither."""

    def lowest(item: Plain) -> Plain:
        return int(str(item).partition(":")[0])

    smallest = lift(lowest, value)
    counts: list[Plain] = []
    for item in alternatives(value):
        low, colon, high = str(item).partition(":")
        if not re.fullmatch(r"\d{1,7}", low.strip()) or (
            colon and not re.fullmatch(r"\d{1,7}", high.strip())
        ):
            return smallest, Unresolved(f"{item!r} is neither a number nor min:max")
        first, last = int(low), int(high) if colon else int(low)
        if last - first >= _WIDEST_RANGE:
            return smallest, Unresolved(f"any number of nodes from {first} to {last}")
        counts.extend(range(first, last + 1) if last >= first else (first,))
    return smallest, one_of(counts) if counts else value


def endpoint(value: Value, parts: tuple[Value, ...] = ()) -> tuple[Value, Value | None]:
    """Host and port of `host:port`, each known as far as the line tells; no port at all is None."""
    pieces = pieces_of(value, parts)
    if isinstance(value, Unresolved):
        halves = split_last(pieces, ":")
        if halves is None:
            return glue(pieces), None
        host, port = halves
        return host, as_int(port)
    if isinstance(value, OneOf) and len({":" in str(item) for item in value.values}) > 1:
        return lift(lambda item: _host(str(item)), value), Unresolved("given in one branch only")
    host = lift(lambda item: _host(str(item)), value)
    if not any(_port(str(item)) for item in alternatives(value)):
        return host, None
    return host, lift(lambda item: int(_port(str(item))), value)


def _host(text: str) -> str:
    text = text.strip()
    bracketed = re.match(r"\[([^\]]*)\]", text)
    if bracketed:
        return bracketed[1]
    if text.count(":") > 1 and not re.search(r"\.\d+:\d+$", text):
        return text
    return text.rpartition(":")[0] if ":" in text else text


def _port(text: str) -> str:
    text = text.strip()
    if text.count(":") > 1 and not text.startswith("["):
        return ""
    match = re.search(r":([^:\]]*)$", text)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class Started:
    """The training program a launcher starts, as a launch, with what its arguments claim."""

    launch: Launch
    claims: tuple[Claim, ...]
    references: tuple[Reference, ...]


def started(
    line: LaunchLine,
    launcher: str,
    words: Sequence[Word],
    tree: Tree,
    *,
    module: bool = False,
    python: bool = True,
) -> Started:
    """The launch of `words` (program and its arguments) by `launcher`.

    `module`: the program is the name of a module. `python`: the launcher puts the interpreter in front itself.
    """
    from preflight.sources.launchers.arguments import argument_claims

    words = list(words)
    if not python:
        words, module = _without_interpreter(words, module)
    program, references = "", []
    stating = Stating(launcher, line.scope, line.command.condition)
    if words:
        word = words[0]
        found = [
            _program(text, line, tree, module=module) for text in paths_of(word.value, word.parts) if text
        ]
        for path, inside in found:
            if inside and (len(found) == 1 or isinstance(tree.read(path), SourceFile)):
                references.append(Reference(path, "script", word.span, line.scope))
        program = found[0][0] if len(found) == 1 else ""
        value = one_of(path for path, _ in found) if found else word.value
        stating.say("script", value, word.span, word.spelling)
    claims, more = argument_claims(line, words[1:], tree)
    launch = Launch(
        id=line.launch_id,
        launcher=launcher,
        span=line.words[0].span if line.words else line.command.span,
        wrappers=line.wrappers,
        program=program,
        arguments=tuple(text_of(word) for word in words[1:]),
        condition=line.command.condition,
    )
    return Started(launch, (*stating.claims, *claims), (*references, *more))


def _program(text: str, line: LaunchLine, tree: Tree, *, module: bool) -> tuple[str, bool]:
    """The file a program's name leads to, and whether it lies inside the root."""
    if module:
        return _module_path(text, line, tree), True
    inside = relative(text, line, tree)
    return (text, False) if inside is None else (inside, True)


def relative(path: str, line: LaunchLine, tree: Tree) -> str | None:
    """`path` as the command would open it, relative to the root; None when it leads outside."""
    directory = line.command.directory
    base = posixpath.join(directory, "_") if directory else line.command.span.path
    outermost = line.command
    while outermost.outer is not None:
        outermost = outermost.outer
    if not directory:
        base = outermost.span.path
    found = tree.resolve(path, relative_to=base)
    if found is None:
        return None
    folder = posixpath.dirname(base)
    if folder and path.startswith(f"{folder}/") and not isinstance(tree.read(found), SourceFile):
        # `$(dirname "$0")/ds.json` comes as a path from the root already.
        return posixpath.normpath(path)
    return posixpath.normpath(found)


def paths_of(value: Value, parts: tuple[Value, ...] = ()) -> tuple[str, ...]:
    """Every path a word may be; `$PWD/train.py` and `$SLURM_SUBMIT_DIR/train.py` are paths from where it runs."""
    if not isinstance(value, Unresolved):
        return texts(value)
    if len(parts) < 2 or not isinstance(parts[0], Unresolved) or _STARTED_IN not in parts[0].why:
        return ()
    return tuple(text.lstrip("/") for text in texts(glue(parts[1:])) if text.startswith("/"))


def _module_path(name: str, line: LaunchLine, tree: Tree) -> str:
    flat = name.replace(".", "/")
    for candidate in (f"{flat}.py", f"{flat}/__main__.py", f"{flat}/__init__.py"):
        found = relative(candidate, line, tree)
        if found is not None and isinstance(tree.read(found), SourceFile):
            return found
    return relative(f"{flat}.py", line, tree) or f"{flat}.py"


def _without_interpreter(words: list[Word], module: bool) -> tuple[list[Word], bool]:
    """`python -u train.py` as its program: with `--no-python` the user writes the interpreter."""
    from preflight.sources.launchers.programs import python_program

    if words and re.fullmatch(r"python[\d.]*", posixpath.basename(head(words[0]))):
        found = python_program(words)
        if found is not None:
            return list(found.words), found.module
    return words, module

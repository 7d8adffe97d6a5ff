"""What every launcher's reader needs to state claims: scope and source once, then one call a claim."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Known,
    OneOf,
    Plain,
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
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Variable
from preflight.sources.launchers.options import Given, Scanned, glue, pieces_of, split_last
from preflight.tables.row import Generated

#: A range such as `2:4` with more members than this is left unresolved.
_WIDEST_RANGE = 16
#: Where a host may stand for one that the reader of the script is to write in.
_OF_HOSTS = frozenset(("master_addr", "rendezvous_endpoint"))
#: `xxx.xxx.xxx.xxx`, `<ip of node 0>`, `{master}`, `MASTER_IP`, `your-master`, `master_addr`; the port may be known.
_BLANK = lazy_pattern(
    r"(?:[xX*]{1,4}(?:\.[xX*]{1,4}){3}|<[^<>]*>|\[[A-Za-z][^\]]*\]|\{[^{}]*\}|[A-Z]+(?:_[A-Z0-9]+)+|your[-_.].*"
    r"|(?:master|head|main)_(?:node_|process_)?(?:addr|address|ip|host))(?::.*)?"
)


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
            value=unless_blank(value) if quantity in _OF_HOSTS else value,
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


def unless_blank(value: Value) -> Value:
    """A host that is a blank to be filled in is as unknown as one that comes from outside."""
    blanks = [item for item in alternatives(value) if isinstance(item, str) and _BLANK.fullmatch(item.strip())]
    return Unresolved(f"`{blanks[0]}`, which is to be filled in") if blanks else value


_OPTION = lazy_pattern(r"--?[A-Za-z][\w-]*")


def state_unknown(stating: Stating, scanned: Scanned) -> None:
    """State which options the launcher's own parser would not know; what has no known name is left out."""
    for word in scanned.unknown:
        # Of `--name=$VALUE` the name is known.
        text = str(word.value.value) if isinstance(word.value, Known) else word.spelling
        name, equals, _ = text.partition("=")
        if not isinstance(word.value, Known) and not equals:
            continue
        if _OPTION.fullmatch(name):
            stating.say("unknown_option", Known(name), word.span, word.spelling)


def state_choices(stating: Stating, scanned: Scanned, table: Generated) -> None:
    """State the values of options that take only some words."""
    limited = {row.dest for row in table.rows if row.choices}
    for given in scanned.given:
        if given.dest in limited:
            stating.say("chosen_value", lift(str, given.value), given.span, given.spelling)


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
    return lift(lambda item: tuple(part.strip() for part in str(item).split(separator) if part.strip()), value)


def count_of(value: Value) -> Value:
    """How many members a tuple value has."""
    return lift(lambda item: len(item) if isinstance(item, tuple) else 1, value)


def first_of(item: Plain) -> Plain:
    """The first member of a list; empty text where there is none."""
    return item[0] if isinstance(item, tuple) and item else ""


def node_range(value: Value) -> tuple[Value, Value]:
    """Smallest and possible node counts of `4`, `"2:4"`; both unresolved where it is neither."""

    def lowest(item: Plain) -> Plain:
        return int(str(item).partition(":")[0])

    smallest = lift(lowest, value)
    counts: list[Plain] = []
    for item in alternatives(value):
        low, colon, high = str(item).partition(":")
        if not re.fullmatch(r"\d{1,7}", low.strip()) or (colon and not re.fullmatch(r"\d{1,7}", high.strip())):
            return smallest, Unresolved(f"{item!r} is neither a number nor min:max")
        first, last = int(low), int(high) if colon else int(low)
        if last < first or not first:
            return smallest, Unresolved(f"{item} is no range of nodes: the smallest number is {first}")
        if last - first >= _WIDEST_RANGE:
            return smallest, Unresolved(f"any number of nodes from {first} to {last}")
        counts.extend(range(first, last + 1))
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

"""Builds the claims of one launch: scope and source are set once, then each claim takes one call.

Options of a launcher are stated as settings: `setting.torchrun.rdzv_conf`, with the option as place. Faults of values
are rows of the rules' tables (data/refusals/torch.toml and its neighbours).

A claim also refers to the line that assigned its variable, because that is the line to edit: `--nnodes=$NNODES` is
correct, `NNODES=8` above it is wrong.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from preflight._util import toml
from preflight.model.job import (
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
    not_a_number,
    one_of,
)
from preflight.model.job.value import SETTING_PREFIX, Symbol
from preflight.sources.base import Command, LaunchLine, Variable, Word
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    concatenate,
    pieces_of,
    split_last,
    texts,
)
from preflight.sources.tables import Generated
from preflight.sources.value_readers import READERS, as_text

#: A range such as `2:40` with more members than this stays unresolved.
_MAX_RANGE = 16
#: Quantities whose host may be a placeholder for the user to replace.
_HOST_QUANTITIES = frozenset(("master_addr", "rendezvous_endpoint"))
#: `xxx.xxx.xxx.xxx`, `<ip of node 0>`, `{master}`, `MASTER_IP`, `your-master`, `master_addr`; the port may be known.
_PLACEHOLDER = re.compile(
    r"(?:[xX*]{1,4}(?:\.[xX*]{1,4}){3}|<[^<>]*>|\[[A-Za-z][^\]]*\]|\{[^{}]*\}|[A-Z]+(?:_[A-Z0-9]+)+|your[-_.].*"
    r"|(?:master|head|main)_(?:node_|process_)?(?:addr|address|ip|host))(?::.*)?"
)


class Placed(Protocol):
    """A word, option or variable, which has a place."""

    @property
    def span(self) -> Span:
        """Return the location."""

    @property
    def spelling(self) -> str:
        """Return how it is written."""


@dataclass(slots=True)
class ClaimBuilder:
    """Collects the claims of one source about one launch."""

    source: str
    scope: Scope = WHOLE_JOB
    condition: str = ""
    strength: Strength = Strength.FLAG
    claims: list[Claim] = field(default_factory=list)

    def add(
        self,
        quantity: str,
        value: Value,
        place: Span | Placed,
        spelling: str = "",
        *,
        strength: Strength | None = None,
        relation: Relation = Relation.SETS,
        because: tuple[Claim, ...] = (),
        condition: str | None = None,
        scope: Scope | None = None,
    ) -> Claim:
        """Add one claim and return it. A place that is only a span needs the spelling, too."""
        claim = Claim(
            quantity=quantity,
            value=unresolved_if_placeholder(value) if quantity in _HOST_QUANTITIES else value,
            span=place if isinstance(place, Span) else place.span,
            spelling=spelling if spelling or isinstance(place, Span) else place.spelling,
            source=self.source,
            scope=self.scope if scope is None else scope,
            strength=self.strength if strength is None else strength,
            relation=relation,
            condition=self.condition if condition is None else condition,
            because=because,
        )
        self.claims.append(claim)
        return claim

    def add_default(
        self, quantity: str, value: Value, word: Word, without: str, *, relation: Relation = Relation.SETS
    ) -> Claim:
        """Add the value that the launcher `word` uses when it is started without an option or variable."""
        spelling = f"{word.spelling} (without {without})"
        return self.add(quantity, value, word, spelling, strength=Strength.DEFAULT, relation=relation)

    def add_setting(
        self,
        quantity: str,
        given: GivenOption | None,
        convert: Callable[[Value], Value] = lambda value: value,
        *,
        relation: Relation = Relation.SETS,
        strength: Strength | None = None,
    ) -> Claim | None:
        """Add a claim for an option or variable; nothing if it is not set."""
        if given is None:
            return None
        return self.add(
            quantity,
            convert(given.value),
            given,
            strength=strength or given.strength,
            relation=relation,
            condition=given.condition or None,
        )


@dataclass(frozen=True, slots=True)
class _ClaimRow:
    """One row of `claims.toml`, whose head describes the fields."""

    quantity: str
    options: tuple[str, ...]
    read: Callable[[Value], Value]
    relation: Relation
    default: Plain = None
    without: str = ""


def _claim_row(quantity: str, row: str | Mapping[str, Any]) -> _ClaimRow:
    row = {"read": row} if isinstance(row, str) else row
    options = row.get("option", quantity)
    stated = Known(row["value"]) if "value" in row else None
    return _ClaimRow(
        quantity,
        (options,) if isinstance(options, str) else tuple(options),
        READERS[row.get("read", "any")] if stated is None else lambda _: stated,
        Relation(row.get("relation", Relation.SETS.value)),
        row.get("default"),
        row.get("without", ""),
    )


@functools.cache
def _claim_rows() -> dict[str, tuple[_ClaimRow, ...]]:
    tables = toml.beside(__file__, "claims.toml")
    return {program: tuple(_claim_row(*row) for row in rows.items()) for program, rows in tables.items()}


def state_options(
    builder: ClaimBuilder,
    program: str,
    get: Callable[[str], GivenOption | None],
    word: Word | None = None,
    *,
    hidden: bool = False,
) -> None:
    """Add the claims that `claims.toml` lists for a program.

    Args:
        builder: collects the claims.
        program: the name of the table.
        get: looks up an option or variable by name.
        word: the launcher, at which defaults are located; without it none are stated.
        hidden: whether the line may have further options, so that no default is certain.
    """
    for row in _claim_rows()[program]:
        given = next((found for name in row.options if (found := get(name)) is not None), None)
        if given is not None:
            builder.add_setting(row.quantity, given, row.read, relation=row.relation)
        elif row.default is not None and word is not None and not hidden:
            builder.add_default(row.quantity, Known(row.default), word, row.without, relation=row.relation)


def variables_of(environment: Mapping[str, Variable]) -> Callable[[str], GivenOption | None]:
    """Look up the variables of a line by name, for `state_options`."""
    return lambda name: variable_setting(environment.get(name))


def state_all_gpus(builder: ClaimBuilder, word: Word, without: str) -> None:
    """Add a claim of one process for each GPU of the host, the default of a launcher that is not given `without`."""
    value = Unresolved(Symbol.GPU_COUNT.value)
    builder.add_default("processes_per_node", value, word, f"{without}: one process per GPU")


def state_single_start(
    builder: ClaimBuilder,
    line: LaunchLine,
    wrappers: Collection[str] = ("srun", "mpirun", "mpiexec"),
    *,
    place: str = "node",
) -> None:
    """Require one task on each node, where `wrappers` start a launcher that starts the ranks of its node itself."""
    if any(wrapper in wrappers for wrapper in line.wrappers):
        word = line.words[0]
        spelling = f"{word.spelling} (is started once on each {place} and starts the ranks itself)"
        builder.add("tasks_per_node", Known(1), word, spelling, relation=Relation.REQUIRES)


def unresolved_if_placeholder(value: Value) -> Value:
    """Return a host as unresolved when it is a placeholder for the user to replace."""
    texts = [item for item in alternatives(value) if isinstance(item, str)]
    placeholders = [text for text in texts if _PLACEHOLDER.fullmatch(text.strip()) or not text.isascii()]
    return Unresolved(f"`{placeholders[0]}`, which must be replaced") if placeholders else value


_OPTION = re.compile(r"--?[A-Za-z][\w-]*")


def state_unknown(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    """Add claims for the options that the launcher's own parser does not know, if their names are known."""
    for word in scanned.unknown:
        # In `--name=$VALUE` the name is known.
        text = str(word.value.value) if isinstance(word.value, Known) else word.spelling
        name, equals, _ = text.partition("=")
        if not isinstance(word.value, Known) and not equals:
            continue
        if _OPTION.fullmatch(name):
            builder.add("unknown_option", Known(name), word)


def state_choices(builder: ClaimBuilder, scanned: ScannedLine, table: Generated) -> None:
    """Add claims for the values of options that accept only certain words, or numbers."""
    limited = {row.dest for row in table.rows if row.choices or row.kind in ("int", "float")} | {"log_level"}
    for given in scanned.given:
        # Another option stands where a value belongs, or the program, so that none is left.
        last = given is scanned.given[-1] and not scanned.rest
        misplaced = any(
            isinstance(item, str) and (item.startswith("--") or (last and item.endswith(".py")))
            for item in alternatives(given.value)
        )
        row = table.find(given.spelling.replace("=", " ").split()[0]) if given.dest not in limited else None
        if given.dest in limited or misplaced or (row is not None and row.dest in limited):
            builder.add("chosen_value", lift(str, given.value), given)


def variable_setting(variable: Variable | None) -> GivenOption | None:
    """Return a variable as the option that it represents."""
    if variable is None:
        return None
    spelling = variable.spelling
    if not spelling.startswith((variable.name, "export ")):
        spelling = f"{variable.name}={spelling}"
    return GivenOption(
        variable.name, variable.value, variable.span, spelling, (), Strength.ENVIRONMENT, variable.condition
    )


def rejected_range(value: Value) -> str | None:
    """Return the alternative of `value` that is a range with a minimum of 0 or above its maximum; None if there is
    none.
    """
    for item in alternatives(value):
        limits = _limits(str(item))
        if limits is None:
            return None
        if limits[1] < limits[0] or not limits[0]:
            return str(item)
    return None


def _limits(text: str) -> tuple[int, int] | None:
    """Return the numbers in `2:4`, or `4` twice; None for any other text."""
    low, colon, high = (part.strip() for part in text.partition(":"))
    numbers = (low, high if colon else low)
    return (int(low), int(numbers[1])) if all(re.fullmatch(r"\d{1,7}", each) for each in numbers) else None


def node_range(value: Value) -> tuple[Value, Value]:
    """Return the smallest node count and the possible node counts of `4` or `"2:4"`; both unresolved for other
    forms.
    """
    smallest = lift(lambda item: int(str(item).partition(":")[0]), value)
    rejected = rejected_range(value)
    if rejected is not None:
        return smallest, Unresolved(f"{rejected} is not a range of nodes")
    counts: list[Plain] = []
    for item in alternatives(value):
        limits = _limits(str(item))
        if limits is None:
            return smallest, not_a_number(str(item), ", nor MIN:MAX")
        first, last = limits
        if last - first >= _MAX_RANGE:
            return smallest, Unresolved(f"any number of nodes from {first} to {last}")
        counts.extend(range(first, last + 1))
    return smallest, one_of(counts) if counts else value


def state_node_range(builder: ClaimBuilder, nodes: GivenOption) -> None:
    """Add claims for the nodes of `4` or `2:4`, and the smallest number of a range."""
    smallest, counts = node_range(nodes.value)
    builder.add_setting("nodes", nodes, lambda _: counts, relation=Relation.REQUIRES)
    if any(":" in text for text in texts(nodes.value)):
        builder.add_setting("min_nodes", nodes, lambda _: smallest)


def endpoint(value: Value, parts: tuple[Value, ...] = ()) -> tuple[Value, Value | None]:
    """Split `host:port` into host and port, each as far as known; the port is None when there is none."""
    pieces = pieces_of(value, parts)
    if isinstance(value, Unresolved):
        halves = split_last(pieces, ":")
        if halves is None:
            return concatenate(pieces), None
        host, port = halves
        return host, as_int(port)
    if isinstance(value, OneOf) and len({":" in str(item) for item in value.values}) > 1:
        return lift(lambda item: _host(str(item)), value), Unresolved("given in one branch only")
    host = lift(lambda item: _host(str(item)), value)
    if not any(_port(str(item)) for item in alternatives(value)):
        return host, None
    return host, lift(lambda item: int(_port(str(item))), value)


def state_endpoint(
    builder: ClaimBuilder, given: GivenOption | None, read: Callable[[Value], Value] = lambda value: value
) -> Value | None:
    """Add claims for an endpoint, its host and its port, and return the port; `read` removes what is before the
    host.
    """
    if given is None:
        return None
    builder.add_setting("rendezvous_endpoint", given, as_text)
    host, port = endpoint(read(given.value), given.parts)
    builder.add_setting("master_addr", given, lambda _: host)
    if port is not None:
        builder.add_setting("master_port", given, lambda _: port)
    return port


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


#: Stands for the launcher: true where all its options are written out.
_CALL = "(call)"
#: Names that mean something else in conditions.
_NAMES = {"launcher": "multinode_launcher"}


def state_launcher(
    builder: ClaimBuilder,
    framework: str,
    word: Word,
    scanned: ScannedLine,
    environment: Mapping[str, Variable] | None = None,
    variables: str = "",
    *,
    written: bool = False,
    repeated: frozenset[str] = frozenset(),
) -> None:
    """Add claims for each option as text, a flag as true, and the number of occurrences of a repeated option.

    `NAME.times` is that number, and `NAME.again` is true for an option that is also given in another spelling.

    Args:
        builder: collects the claims.
        framework: the name of the settings.
        word: the launcher.
        scanned: its options.
        environment: the variables of the line.
        variables: prefixes of variables that represent options; these variables are stated by their own names.
        written: whether each spelling is stated, too, as `written.ppn`.
        repeated: options whose every occurrence counts; each is stated as the list of its values.
    """
    prefix = f"{SETTING_PREFIX}{framework}."
    whole = Unresolved("further options") if scanned.incomplete else Known(True)
    builder.add(f"{prefix}{_CALL}", whole, word)
    first: dict[str, GivenOption] = {}
    for given in scanned.given:
        if given.dest in first and _option(first[given.dest]) != _option(given):
            builder.add(f"{prefix}{given.dest}.again", Known(True), given)
        first.setdefault(given.dest, given)
        if written:
            builder.add(f"{prefix}written.{_option(given).strip('-').replace('-', '_')}", Known(True), given)
    for dest, times in Counter(given.dest for given in scanned.given).items():
        if times > 1:
            builder.add(f"{prefix}{dest}.times", Known(times), first[dest])
    for dest in sorted(first, key=lambda name: name not in repeated):
        if dest in repeated:
            values = lift(lambda *items: tuple(map(str, items)), *(given.value for given in scanned.every(dest)))
            builder.add(f"{prefix}{dest}", values, first[dest])
        else:
            builder.add_setting(f"{prefix}{_NAMES.get(dest, dest)}", scanned.last(dest), _text)
    for name, variable in (environment or {}).items() if variables else ():
        if name.startswith(variables):
            setting = variable_setting(variable)
            # A controller's own variable is nothing that the user could change.
            if name in variable.span.snippet:
                builder.add_setting(f"{prefix}{name}", setting, _text)
            dest = name.removeprefix(variables).lower()
            if dest not in first:
                builder.add_setting(f"{prefix}{dest}", setting, _text)


def _option(given: GivenOption) -> str:
    return given.spelling.replace("=", " ").split()[0]


def _text(value: Value) -> Value:
    return lift(lambda item: item if isinstance(item, bool) else str(item), value)


#: `$NAME`, `${NAME}` and `${NAME:-default}`; any other expansion is computed and has no single origin.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-[^{}$]*)?\})")
#: An assignment whose whole value is another variable.
_SINGLE_VARIABLE = re.compile(r"\"?\$(?:(\w+)|\{(\w+)\})\"?")
#: A parameter, alone or as part of `--port=*) PORT=${1#*=}`.
_PARAMETER = re.compile(r"\"?\$(?:\d|\{\d\})\"?")
#: Steps followed in `A=$B`, `B=$C`.
_MAX_CHAIN = 5


def with_origins(claims: Iterable[Claim], command: Command) -> tuple[Claim, ...]:
    """Add to each claim made from a single known variable the location of its assignment."""
    variables: dict[str, Variable] = {}
    outer = command.outer
    while outer is not None:
        variables = {**outer.variables, **outer.positional, **variables}
        outer = outer.outer
    variables.update(command.variables)
    variables.update(command.positional)
    arguments = command.outer.words[1:] if command.outer is not None else ()
    return tuple(_with_origin(claim, variables, arguments) for claim in claims)


def _with_origin(claim: Claim, variables: Mapping[str, Variable], arguments: Sequence[Word]) -> Claim:
    because = tuple(_with_origin(reason, variables, arguments) for reason in claim.because)
    origin = _origin(claim, variables, arguments) if "$" in claim.spelling else None
    if origin is None and because == claim.because:
        return claim
    return replace(claim, because=because, origin=origin)


def _origin(claim: Claim, variables: Mapping[str, Variable], arguments: Sequence[Word]) -> Span | None:
    found = _VARIABLE.search(claim.spelling)
    if found is None or claim.spelling.count("$") != 1:
        return None
    variable = variables.get(found[1] or found[2])
    # A variable set in branches has no single origin, and its last value may differ from the one the word used.
    if variable is None or not isinstance(variable.value, Known) or not _comes_from(claim, found, variable):
        return None
    for _ in range(_MAX_CHAIN):
        single = _SINGLE_VARIABLE.fullmatch(variable.spelling)
        before = variables.get(single[1] or single[2]) if single is not None else None
        if before is None or before.value != variable.value or before.span == variable.span:
            break
        variable = before
    if _PARAMETER.fullmatch(variable.spelling):
        # `--port) PORT=$2; shift 2`: the parameters have moved on, but the caller gave the value only once.
        given = [word for word in arguments if word.value == variable.value]
        if len(given) == 1 and given[0].span != claim.span:
            return given[0].span
    return None if variable.span == claim.span else variable.span


def _comes_from(claim: Claim, match: re.Match[str], variable: Variable) -> bool:
    """Return whether a claim's values are those of the variable, alone or within the rest of the word."""
    given = [str(item) for item in alternatives(variable.value)]
    claimed = [",".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in claim.alternatives]
    if not given or len(given) != len(claimed):
        return False
    bare = claim.spelling.replace('"', "")
    start, stop = bare.find(match[0]), bare.find(match[0]) + len(match[0])
    return all(
        value == text or (bool(text) and text in value and f"{bare[:start]}{text}{bare[stop:]}".endswith(value))
        for text, value in zip(given, claimed, strict=True)
    )

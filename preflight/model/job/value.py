"""Defines quantities, each with its type, unit and meaning (`quantities.toml`), and their values as read from files.

`Unresolved` is neither wrong nor absent: a rule may call a value faulty only if *every* alternative is faulty, so it
never calls an unresolved value faulty.

`Symbol` lists the values that are known only at run time, with their wording in `Unresolved.why`. The wording is
stable, so that a rule can distinguish "the first host of the allocation" (a good master address) from "the name of the
host it runs on" (a different name on every node under srun) without parsing prose.

A source states only these quantities, or `env.NAME` for an environment variable of the ranks, or
`setting.FRAMEWORK.KEY` for a key of a framework's configuration as it is written there.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from preflight._util import toml
from preflight._util.usage_error import nearest

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Scalar | tuple[Scalar, ...]

#: The largest number of alternatives; a value with more alternatives is unresolved.
MAX_ALTERNATIVES = 16
#: The largest number of combinations of alternatives, so that hostile input cannot exhaust time or memory.
MAX_COMBINATIONS = 4096
_NOT_A_NUMBER_TEXT = re.compile(r"not a whole number: (?P<quote>['\"])(?P<text>.*)(?P=quote)(?:, nor .*)?")
#: No size or count has more digits; `int` raises an error for thousands of digits.
_MAX_DIGITS = 18
#: A longer text is not a number of any job. `int` itself rejects thousands of digits only if it is configured to.
_MAX_NUMBER_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Known:
    """The quantity has exactly this value.

    Args:
        value: the value in the unit of the quantity.
    """

    value: Plain


@dataclass(frozen=True, slots=True)
class OneOf:
    """The quantity has one of these values, depending on a branch that is decided only at run time.

    Args:
        values: all possible values.
    """

    values: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The value cannot be known from the files.

    Args:
        why: the reason, in the terms of the user.
        set_by_caller: the variables that the submitter of the job sets, and that would determine the value.
    """

    why: str
    set_by_caller: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Computed(Unresolved):
    """The result of an expression of a program, before the program was evaluated.

    Args:
        at: the file, and the first line, first column, last line and last column of the expression, as Python's parser
            counts them.
    """

    at: tuple[str, int, int, int, int] = ("", 0, 0, 0, 0)


Value: TypeAlias = Known | OneOf | Unresolved

#: `"auto"` in a DeepSpeed configuration.
AUTO = Unresolved("auto: filled in by the trainer")
_NOT_A_NUMBER = "not a whole number: "
_INT_ERROR = "invalid literal for int() with base 10: "


#: No size, count or rate of any job is larger. Products of a few such numbers still fit into a float.
MAX_NUMBER = 10**18


def in_bounds(value: Value) -> Value:
    """Return the value; unresolved if it may exceed MAX_NUMBER, because arithmetic on huge numbers can take minutes."""
    for candidate in alternatives(value):
        if isinstance(candidate, int | float) and not -MAX_NUMBER <= candidate <= MAX_NUMBER:
            return Unresolved("a number larger than any quantity of a job")
        if isinstance(candidate, tuple) and any(
            isinstance(item, int | float) and not -MAX_NUMBER <= item <= MAX_NUMBER for item in candidate
        ):
            return Unresolved("a list with a number larger than any quantity of a job")
    return value


def alternatives(value: Value) -> tuple[Plain, ...]:
    """Return all possible values; empty if the value is unresolved."""
    if isinstance(value, Known):
        return (value.value,)
    if isinstance(value, OneOf):
        return value.values
    return ()


def one_of(values: Iterable[Plain]) -> Value:
    """Return the value that is one of `values`, without duplicates and in order; known if they are all equal."""
    distinct_values: list[Plain] = []
    for candidate in values:
        if not any(candidate == known and type(candidate) is type(known) for known in distinct_values):
            distinct_values.append(candidate)
            if len(distinct_values) > MAX_ALTERNATIVES:
                return Unresolved(f"one of more than {MAX_ALTERNATIVES} values")
    if not distinct_values:
        return Unresolved("no value")
    if len(distinct_values) == 1:
        return Known(distinct_values[0])
    return OneOf(tuple(distinct_values))


def join(values: Iterable[Value]) -> Value:
    """Return the value after several branches: any value that one of the branches may give."""
    all_values: list[Plain] = []
    value_list = list(values)
    if len(value_list) == 1:
        return value_list[0]
    for value in value_list:
        if isinstance(value, Unresolved):
            return without_place(value)
        all_values.extend(alternatives(value))
    return one_of(all_values)


def without_place(value: Value) -> Value:
    """Return the value without its location, for a value that is computed from it."""
    return Unresolved(value.why, value.set_by_caller) if isinstance(value, Computed) else value


def lift(function: Callable[..., Plain], *values: Value) -> Value:
    """Return `function` of every combination of alternatives; unresolved if an operand is, or if it raises."""
    for value in values:
        if isinstance(value, Unresolved):
            return without_place(value)
    if len(values) == 1 and isinstance(values[0], Known):
        try:
            return Known(function(values[0].value))
        except (ValueError, TypeError, ArithmeticError) as error:
            return _unresolved(error)
    if math.prod(len(alternatives(v)) for v in values) > MAX_COMBINATIONS:
        return Unresolved(f"one of more than {MAX_COMBINATIONS} combinations")
    results: list[Plain] = []
    for combination in itertools.product(*(alternatives(v) for v in values)):
        try:
            results.append(function(*combination))
        except (ValueError, TypeError, ArithmeticError) as error:
            return _unresolved(error)
    return one_of(results)


def product(*sizes: Plain) -> Plain:
    """Return the product of whole numbers, for `lift`. Raises ValueError for any other value."""
    result = 1
    for size in sizes:
        if not isinstance(size, int):
            raise ValueError(f"{size!r} is not a number")
        result *= size
    return result


def _unresolved(error: Exception) -> Unresolved:
    text = str(error)
    return Unresolved(_NOT_A_NUMBER + text.removeprefix(_INT_ERROR) if text.startswith(_INT_ERROR) else text)


def not_a_number(text: str, hint: str = "") -> Unresolved:
    """Return the unresolved value for a text that is not a number.

    Args:
        text: the text that should be a number.
        hint: the further forms that the reader accepts, for the message.
    """
    return Unresolved(f"{_NOT_A_NUMBER}{text!r}{hint}")


def unparsed_number(value: Value) -> str | None:
    """Return the text of a value that its reader could not parse as a number; None for any other value."""
    match = _NOT_A_NUMBER_TEXT.fullmatch(value.why) if isinstance(value, Unresolved) else None
    return match["text"] if match else None


def as_int(value: Value) -> Value:
    """Return the value as whole numbers. Strings such as `"8"` are converted; any other value is unresolved."""
    return lift(_whole_number, value)


def _whole_number(item: Plain) -> int:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{_NOT_A_NUMBER}{item!r}")
    if isinstance(item, float):
        if item != int(item):
            raise ValueError(f"{_NOT_A_NUMBER}{item!r}")
        return int(item)
    if isinstance(item, str) and len(item) > _MAX_NUMBER_LENGTH:
        raise ValueError("not a whole number: the text is too long")
    return int(item)


def is_whole_number(text: str) -> bool:
    """Return whether the string has at most 18 ASCII digits. `str.isdigit` also accepts `²`."""
    return 0 < len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal()


def numbers(value: Value) -> tuple[int, ...]:
    """Return all possible whole numbers, also from strings such as "8"; empty if any alternative is not one."""
    return tuple(n for n in alternatives(as_int(value)) if isinstance(n, int))


def texts(value: Value) -> tuple[str, ...]:
    """Return all possible strings; empty if the value is unresolved, or if any alternative is not a string."""
    candidates = alternatives(value)
    return tuple(str(item) for item in candidates) if all(isinstance(item, str) for item in candidates) else ()


def known_number(value: Value) -> int | None:
    """Return the whole number that a value certainly is, as a number or a string; None for any other value."""
    candidates = numbers(value)
    return candidates[0] if len(candidates) == 1 else None


def known_text(value: Value) -> str | None:
    """Return the string that a value certainly is; None for any other value."""
    candidates = texts(value)
    return candidates[0] if len(candidates) == 1 else None


def items(value: Value) -> tuple[str, ...]:
    """Return the items of a list as strings; empty for any other value, and if several lists are possible."""
    candidates = alternatives(value)
    return tuple(map(str, candidates[0])) if len(candidates) == 1 and isinstance(candidates[0], tuple) else ()


class Symbol(str, enum.Enum):
    """A value that is known only at run time; its description is contained in `Unresolved.why`."""

    FIRST_ALLOCATED_HOST = "the first host of the allocation"
    FIRST_ALLOCATED_ADDRESS = "an address of the first host of the allocation"
    ALLOCATED_HOSTS = "the hosts of the allocation"
    OTHER_ALLOCATED_HOST = "a later host of the allocation"
    ALLOCATED_HOST_COUNT = "the number of hosts of the allocation"
    THIS_HOST = "the name of the current host"
    THIS_ADDRESS = "an address of the current host"
    START_DIRECTORY = "the directory in which it is started"
    SUBMISSION_HOST = "the host that the job was submitted from"
    JOB_ID = "the id of the batch job"
    NODE_LIST = "the node list of the allocation"
    PROCESS_RANK = "the rank of the task"
    NODE_RANK = "the index of the node in the allocation"
    LOCAL_RANK = "the index of the task on its node"
    NODE_FILE = "the file in which the scheduler lists the hosts"
    NODE_FILE_LINES = "the lines of the scheduler's list of hosts"
    LIBRARY_DEFAULT = "chosen by the library"
    CONTAINER_OPTIONS = "options that are known only at run time"
    ARRAY_TASK = "the index of the Slurm array task"
    GPU_COUNT = "the number of GPUs of the current host"
    CORE_COUNT = "the number of CPU cores of the current host"
    RANDOM_NUMBER = "a random number"
    TIME = "the time of the run"
    PROCESS_ID = "a process id"
    USER = "the name of the user"
    HOME = "the home directory of the user"


FIRST_ALLOCATED_HOST = Symbol.FIRST_ALLOCATED_HOST.value
FIRST_ALLOCATED_ADDRESS = Symbol.FIRST_ALLOCATED_ADDRESS.value
ALLOCATED_HOSTS = Symbol.ALLOCATED_HOSTS.value
THIS_HOST = Symbol.THIS_HOST.value
THIS_ADDRESS = Symbol.THIS_ADDRESS.value
RANDOM_NUMBER = Symbol.RANDOM_NUMBER.value
JOB_ID = Symbol.JOB_ID.value

#: Variables that are always set in a batch job, or in a rank that MPI started, to a value that no file contains.
RUNTIME_VARIABLES = {
    name: Symbol[symbol]
    for symbol, names in toml.beside(__file__, "runtime_variables.toml").items()
    for name in names.split()
}


#: Added to the description of a task's rank that the script itself expands, before srun or mpirun starts the tasks.
_EXPANDED_SUFFIX = ", expanded before the tasks are started"


def expanded_in_script_text(symbol: Symbol) -> str:
    """Return the description of a rank that a script itself expands."""
    return symbol.value + _EXPANDED_SUFFIX


def is_expanded_in_script(value: Value) -> bool:
    """Return whether a value is a task's rank expanded before the tasks started, so that all get the same."""
    return isinstance(value, Unresolved) and _EXPANDED_SUFFIX in value.why


_AFFIXES = re.compile(r", written as `([^`]*)…([^`]*)`$")


def with_affixes(value: Unresolved, prefix: str, suffix: str) -> Unresolved:
    """Return an unresolved value with the text directly before and after it in the file."""
    if not prefix and not suffix:
        return value
    return replace(value, why=f"{value.why}, written as `{prefix}…{suffix}`")


def affixes_of(value: Value) -> tuple[str, str]:
    """Return the text directly before and after the unresolved part of a value; empty if there is none."""
    match = _AFFIXES.search(value.why) if isinstance(value, Unresolved) else None
    return (match[1], match[2]) if match is not None else ("", "")


def symbols_in(value: Value) -> frozenset[Symbol]:
    """Return the recognised run-time values that an unresolved value depends on; empty for any other value."""
    if not isinstance(value, Unresolved):
        return frozenset()
    symbols = {symbol for symbol in Symbol if symbol.value in value.why}
    if Symbol.FIRST_ALLOCATED_ADDRESS in symbols and value.why.count(FIRST_ALLOCATED_HOST) == value.why.count(
        FIRST_ALLOCATED_ADDRESS
    ):
        symbols.discard(Symbol.FIRST_ALLOCATED_HOST)
    if Symbol.ALLOCATED_HOST_COUNT in symbols and value.why.count(ALLOCATED_HOSTS) == 0:
        symbols.discard(Symbol.ALLOCATED_HOSTS)
    return frozenset(symbols)


ENVIRONMENT_PREFIX = "env."
SETTING_PREFIX = "setting."
#: The value of a setting that is a section with keys of its own.
SECTION = ("{...}",)
#: Represents each section in the value of a list of sections.
LISTED_SECTION = "{listed}"

_KNOWN_TYPES: dict[str, type] = {kind.__name__: kind for kind in (bool, float, int, str, tuple)}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that a source may state.

    Args:
        name: the name of the quantity.
        kind: the Python type of a known value.
        meaning: a description of the quantity.
        unit: the unit of its values; empty if they have no unit.
        agrees: whether the rule for disagreements compares the claims that set the quantity with the claims that
            require it.
    """

    name: str
    kind: type
    meaning: str
    unit: str = ""
    agrees: bool = False


QUANTITIES: dict[str, Quantity] = {
    name: Quantity(name, _KNOWN_TYPES[row["kind"]], row["meaning"], row.get("unit", ""), row.get("agrees", False))
    for name, row in toml.beside(__file__, "quantities.toml").items()
}


class UnknownQuantity(LookupError):
    """A rule or check requested a quantity that no source states; the message suggests the most similar name."""


def check_known(name: str) -> None:
    """Raise UnknownQuantity for a misspelt name, which would otherwise look like a quantity that is not set."""
    if is_known(name):
        return
    nearest_name = nearest(name, QUANTITIES)
    hint = f"did you mean {nearest_name!r}?" if nearest_name else "`preflight quantities` lists them"
    raise UnknownQuantity(f"unknown quantity {name!r}; {hint}")


def is_known(name: str) -> bool:
    """Return whether a source may state this quantity."""
    return name in QUANTITIES or any(
        name.startswith(prefix) and len(name) > len(prefix) for prefix in (ENVIRONMENT_PREFIX, SETTING_PREFIX)
    )

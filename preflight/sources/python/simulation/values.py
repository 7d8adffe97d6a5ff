"""The values of a simulated program: Python's own if they are known, and placeholders for the others."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.sources.base import SourceFile
from preflight.sources.python.simulation.libraries import names


class Unknown:
    """A value that the files do not determine.

    Args:
        aliases: the lists, dictionaries and objects that it may be.
        text: its text, if all ranks have the same.
    """

    def __init__(self, aliases: tuple[Any, ...] = (), text: str = "") -> None:
        self.aliases = aliases
        #: A text of which parts are known, with what stands for the others in braces; empty for anything else.
        self.text = text
        #: Whether the ranks have agreed on it since.
        self.is_agreed = False
        #: Whether it is certainly one of the aliases.
        self.is_complete = False

    def __repr__(self) -> str:
        return "unknown"


class Own(Unknown):
    """A value that may differ between ranks.

    Args:
        of_rank: whether only the rank makes it differ; otherwise the rank's own data do.
        of_part: whether it is in a part that the rank selects by its number: the parts may be equal.
        parts: its possible values.
    """

    def __init__(
        self,
        aliases: tuple[Any, ...] = (),
        *,
        of_rank: bool = False,
        of_part: bool = False,
        parts: tuple[Own, ...] = (),
    ) -> None:
        super().__init__(aliases)
        self.of_rank = of_rank
        self.of_part = of_part
        self.parts = parts

    def agree(self) -> None:
        """Take it, and what it may be, for agreed."""
        # These stand for any such value.
        self.is_agreed = self not in (OWN, OWN_PART, OF_RANK)
        for part in self.parts:
            part.agree()


UNKNOWN = Unknown()
OWN = Own()
OWN_PART = Own(of_part=True)
OF_RANK = Own(of_rank=True)
#: What the ranks have agreed on.
AGREED = Unknown()
AGREED.is_agreed = True
#: The number of ranks, where the files do not say how many a launcher starts: more than one.
SEVERAL = Unknown()
SEVERAL.is_agreed = True


#: Objects that one unknown value may be.
_MAX_ALIASES = 100
#: Parts of one value.
_MAX_PARTS = 10_000
#: Values in values are followed to this depth.
_MAX_NESTING = 6


_BARS = names("bars")
_RECORDS = names("records")


class NotKnown(Exception):
    """A value has a part that is not known."""


class OutOfSteps(Exception):
    """A run cannot be followed to its end: it is too long, or changes in a way that nothing shows."""


class TooLong(Exception):
    """A call takes so many steps that what it does is left unknown; `depth` is its place among those under way."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth


#: The names of Python's own types of data.
PLAIN_TYPES = frozenset(f"builtins.{name}" for name in ("bool", "int", "float", "str", "list", "dict", "tuple"))


@dataclass(eq=False, slots=True)
class Frame:
    """The names of one call of a function, of a class body or of a module.

    Args:
        parent: the frame around it, whose names are visible in it.
        region: the uncertain region that created it.
        function: the called function; None for a class or a module.
        returned: its return value where it may have continued.
        outside: the names that `global` and `nonlocal` declare.
    """

    module: ModuleValue
    parent: Frame | None = None
    names: dict[str, Any] = field(default_factory=dict)
    region: object = None
    function: FunctionValue | None = None
    returned: list[Any] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)
    #: Where the conditions come from under which it may have returned.
    own: Unknown = UNKNOWN
    #: What it yields, and the conditions that decide how often.
    yielded: list[Any] = field(default_factory=list)
    size_origin: Unknown = UNKNOWN
    #: Where the conditions come from under which it was called.
    own_of_call: Unknown = UNKNOWN
    #: What ends it early on some ranks.
    early: list[Any] = field(default_factory=list)
    is_class: bool = False


@dataclass(eq=False, slots=True)
class ModuleValue:
    """A user module."""

    file: SourceFile
    frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        self.frame = Frame(self)


@dataclass(eq=False, slots=True)
class FunctionValue:
    """A user-defined function, with what its defaults are."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    defaults: Mapping[str, Any]
    decorators: frozenset[str] = frozenset()
    owner: ClassValue | None = None
    #: Whether a decorator gives it arguments that are not known.
    is_open: bool = False


@dataclass(eq=False, slots=True)
class ClassValue:
    """A user-defined class."""

    node: ast.ClassDef
    bases: tuple[Any, ...]
    names: dict[str, Any]
    is_dataclass: bool = False
    #: The annotated names in their order.
    fields: tuple[str, ...] = ()
    _order: list[ClassValue | External] | None = None

    def lookup(self, name: str, *, above: ClassValue | None = None) -> tuple[Any, ClassValue | External] | None:
        """Look up a name in the class or its bases; return its value and class. `super()` starts above a class."""
        order = self.order()
        for each in order[order.index(above) + 1 :] if above in order else order:
            if isinstance(each, ClassValue) and name in each.names:
                return each.names[name], each
        return None

    def order(self) -> list[ClassValue | External]:
        """Return the class and its bases in the order in which names are looked up."""
        if self._order is None:
            self._order = self._linearized()
        return self._order

    def _linearized(self) -> list[ClassValue | External]:
        lines = [each.order() if isinstance(each, ClassValue) else [each] for each in self.bases]
        lines.append(list(self.bases))
        found: list[ClassValue | External] = [self]
        while lines := [line for line in lines if line]:
            first = (line[0] for line in lines if not any(line[0] in other[1:] for other in lines))
            following = next(first, lines[0][0])
            found.append(following)
            lines = [[each for each in line if each is not following] for line in lines]
        return found

    @property
    def is_record(self) -> bool:
        """Return whether its constructor takes its annotated names: that of a dataclass, a NamedTuple, a model of
        pydantic.
        """
        foreign = self.foreign
        is_named = foreign is not None and foreign.last in _RECORDS
        return is_named or any(isinstance(each, ClassValue) and each.is_dataclass for each in self.order())

    @property
    def foreign(self) -> External | None:
        """Return the first base class that is not user-defined; None if that leaves only `object`."""
        return next((each for each in self.order() if not isinstance(each, ClassValue)), None)


class Growing:
    """A collection that unknown code may extend."""

    is_open: bool


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a user-defined class."""

    owner: ClassValue
    region: object
    attributes: dict[str, Any] = field(default_factory=dict)
    #: Whether it may have further attributes, which are not known.
    is_open: bool = False
    #: The wrapper that it was taken out of again: DataParallel, an engine.
    wrapped_by: str = ""
    #: What the constructor of a library's class was given, if the user's own has none.
    made_with: Mapping[str, Any] = field(default_factory=dict)
    #: What it is beside, if its class is one of parsers of argparse.
    parser: Any = None


@dataclass(eq=False, slots=True)
class External:
    """A module, function, class or object of a library: `torch.nn.Linear`, and `torch.nn.Linear()` what it returned."""

    name: str
    region: object = None
    attributes: dict[str, Any] = field(default_factory=dict)
    #: The call that returned it, where that stands, and what it was given.
    call: ast.Call | None = None
    file: SourceFile | None = None
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    #: What it is an attribute of.
    owner: External | None = None
    #: OWN, OF_RANK or AGREED where that is known of its value.
    origin: Unknown | None = None
    #: The user-defined object whose class has it from a library.
    of: Instance | None = None

    @property
    def last(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def is_result(self) -> bool:
        """Return whether a call returned it."""
        return "(" in self.name


@dataclass(eq=False, slots=True)
class Method:
    """A method of a known value: `"a,b".split`, `args.get`."""

    receiver: Any
    name: str


@dataclass(eq=False, slots=True)
class Bound:
    """A method of a user-defined object, or a function with some of its arguments."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class ListValue:
    """A list or set, which may grow; None if its items are not known."""

    items: list[Any] | None
    region: object = None
    is_set: bool = False
    #: Where what was put into it comes from; None if nothing was.
    origin: Unknown | None = None
    #: Where the conditions come from under which something was put into it.
    size_origin: Unknown = UNKNOWN
    #: What each of its items may be, where these are not known; None if nothing is known of them.
    item: Any = None


@dataclass(eq=False, slots=True)
class DictValue:
    """A dictionary, or an object that consists of its attributes; None if its items are not known."""

    items: dict[Any, Any] | None
    region: object = None
    #: Whether its items are its attributes: of a namespace, or of an EasyDict.
    has_attributes: bool = False
    #: Whether the files state all of its keys, so that another one is an error.
    file: str = ""


@dataclass(eq=False, slots=True)
class OpenFile:
    """A file that the program has opened."""

    path: Any
    mode: str


@dataclass(eq=False, slots=True)
class Coroutine:
    """A call of an `async` function that nothing awaits yet."""

    call: Bound


@dataclass(eq=False, slots=True)
class Super:
    """`super()` in a method."""

    receiver: Any
    above: ClassValue


def native(value: Any) -> Any:
    """Return a value as Python has it. Raises NotKnown if a part of it is not known, or there are too many."""
    return _native(value, itertools.count())


def _native(value: Any, count: Iterator[int]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if next(count) > _MAX_PARTS:
        raise NotKnown
    if isinstance(value, tuple):
        return tuple(_native(item, count) for item in value)
    if isinstance(value, ListValue) and value.items is not None:
        items = [_native(item, count) for item in value.items]
        return set(items) if value.is_set else items
    if isinstance(value, DictValue) and value.items is not None:
        return {_native(key, count): _native(item, count) for key, item in value.items.items()}
    raise NotKnown


def of_native(value: Any, region: object = None, file: str = "") -> Any:
    """Return the value for one of Python's own; UNKNOWN for a large one."""
    try:
        return _of_native(value, region, file, itertools.count())
    except OverflowError:
        return UNKNOWN


def _of_native(value: Any, region: object, file: str, count: Iterator[int]) -> Any:
    # Anchors of YAML can make a short file as large as they like.
    if next(count) > _MAX_PARTS:
        raise OverflowError
    if isinstance(value, Mapping):
        items = {key: _of_native(item, region, file, count) for key, item in value.items()}
        return DictValue(items, region, file=file)
    if isinstance(value, (list, set, frozenset)):
        is_set = isinstance(value, (set, frozenset))
        return ListValue([_of_native(item, region, file, count) for item in value], region, is_set)
    if isinstance(value, tuple):
        return tuple(_of_native(item, region, file, count) for item in value)
    return value if value is None or isinstance(value, (bool, int, float, str, bytes)) else UNKNOWN


def forget(value: Any, depth: int = 0) -> None:
    """Take what something unknown was given for changed."""
    if depth > _MAX_NESTING:
        return
    inner: list[Any] = list(value.aliases) if isinstance(value, Unknown) else []
    if isinstance(value, (ListValue, tuple)):
        inner = list((value.items if isinstance(value, ListValue) else value) or ())
    elif isinstance(value, DictValue):
        inner = list((value.items or {}).values())
    elif isinstance(value, Instance):
        inner = list(value.attributes.values())
        value.attributes = dict.fromkeys(value.attributes, UNKNOWN)
        value.is_open = True
    if isinstance(value, Growing):
        value.is_open = True
    if isinstance(value, (ListValue, DictValue)):
        value.items = None
    if isinstance(value, ListValue):
        value.origin, value.item = None, None
    for each in inner:
        forget(each, depth + 1)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is not known."""
    if isinstance(value, (ListValue, DictValue)):
        return None if value.items is None else bool(value.items)
    if isinstance(value, (FunctionValue, ClassValue, ModuleValue, Bound, OpenFile)):
        return True
    if isinstance(value, Instance):
        return None if value.owner.lookup("__bool__") or value.owner.lookup("__len__") or value.owner.foreign else True
    if isinstance(value, (Unknown, External, Method, Super)):
        return None
    return bool(value)


def truth_origin(value: Any) -> Unknown:
    """Return the origin of a value's truth: for a list, whether it has any items."""
    return value.size_origin if isinstance(value, ListValue) else mixed(value)


def merged(one: Any, other: Any) -> Any:
    """Merge two possible values."""
    if one is other or (type(one) is type(other) and isinstance(one, (bool, int, float, str)) and one == other):
        return one
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(merged, one, other))
    if isinstance(one, External) and isinstance(other, External) and one.name == other.name:
        return one
    for inner, outer in ((one, other), (other, one)):
        if isinstance(outer, External) and outer.last in _BARS and outer.arguments[:1] == (inner,):
            return inner
    found, origin = one_of((one, other)), mixed(one, other)
    if origin is AGREED and not found.aliases:
        return AGREED
    if isinstance(origin, Own):
        parts = tuple(each for each in (one, other) if isinstance(each, Own))
        return Own(found.aliases, of_rank=origin.of_rank, of_part=origin.of_part, parts=parts)
    return found


def mixed(*values: Any) -> Unknown:
    """Return an unknown value computed from others: OWN, OWN_PART, OF_RANK, AGREED or UNKNOWN."""
    origins = [_origin(each) for each in values]
    own = [each for each in origins if isinstance(each, Own)]
    if own:
        if all(each.of_rank for each in own):
            return OF_RANK
        return OWN_PART if all(each.of_rank or each.of_part for each in own) else OWN
    return AGREED if AGREED in origins and UNKNOWN not in origins else UNKNOWN


def part_of(value: Any, *keys: Any) -> Unknown:
    """Return an item of an unknown value; if a key depends on the rank, the item is that rank's own part."""
    return OWN_PART if any(isinstance(each, Own) for each in keys) else mixed(value)


def item_of_one(value: Unknown, position: Any) -> Any:
    """Return an item of a value that may be one of several lists."""
    lists = [each.items if isinstance(each, ListValue) else each for each in value.aliases]
    if value.is_agreed or not lists or not isinstance(position, int):
        return value
    found: Any = UNKNOWN
    for each in lists:
        if not isinstance(each, (list, tuple)) or not -len(each) <= position < len(each):
            return value
        found = merged(found, each[position])
    for part in value.parts if isinstance(value, Own) else ():
        found = merged(found, part)
    return found


def _origin(value: Any) -> Unknown | None:
    """Return the known origin of a value; None if the value itself is known."""
    if isinstance(value, Unknown) and value.is_agreed:
        return AGREED
    if isinstance(value, Own):
        return OF_RANK if value.of_rank else OWN_PART if value.of_part else OWN
    if isinstance(value, External):
        return value.origin or (_origin(value.owner) if value.owner is not None else UNKNOWN)
    if isinstance(value, tuple):
        return mixed(*value[:_MAX_ALIASES]) if value else None
    if isinstance(value, ListValue):
        return mixed(*value.items[:_MAX_ALIASES]) if value.items else value.origin or UNKNOWN
    return None if _is_plain(value) else UNKNOWN


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes))


#: What a name may stand for that is called.
CALLABLES = (External, FunctionValue, ClassValue, Bound)


def one_of(values: Sequence[Any]) -> Unknown:
    """Return a value that is one of several."""
    objects = [each for each in values if isinstance(each, (*CALLABLES, ListValue, DictValue, Instance, tuple))]
    objects += [alias for each in values if isinstance(each, Unknown) for alias in each.aliases]
    distinct = {id(each): each for each in objects}
    if not distinct:
        return UNKNOWN
    found = Unknown(tuple(distinct.values())[:_MAX_ALIASES])
    are_known = all(each.is_complete if isinstance(each, Unknown) else id(each) in distinct for each in values)
    found.is_complete = are_known and len(distinct) <= _MAX_ALIASES
    return found

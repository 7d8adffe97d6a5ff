"""The library's dataclasses, whose methods are written when they are first called.

A command defines hundreds of them and uses a few. The library writes and compiles up to seven functions for each one,
half a millisecond together, which was a third of what it takes to lint a job. Here fields, slots and defaults are the
library's own, so that `fields`, `replace`, `asdict` and pydantic take such a class for what it is; `__init__`, `__eq__`
and `__hash__` are made at their first call, and the other methods are the same functions for all.
`preflight.node.record` does without the library altogether, for nodes.

To the library none of them is frozen, so what derives from a frozen one must be made here as well; and a field without
a default behind one that has one is told of at the first instance.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, eq=True, order=False, unsafe_hash=False, frozen=False, kw_only=False, slots=False):
        """`dataclasses.dataclass` with the options that are used here; `order=True` is left to the library."""
        if order:
            return dataclasses.dataclass(
                cls, eq=eq, order=order, unsafe_hash=unsafe_hash, frozen=frozen, kw_only=kw_only, slots=slots
            )

        def make(cls):
            own = dict(cls.__dict__)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
            _furnish(made, own, eq=eq, hashes=unsafe_hash or (eq and frozen), frozen=frozen, slots=slots)
            return made

        return make if cls is None else make(cls)


def _furnish(cls: Any, own: dict[str, Any], *, eq: bool, hashes: bool, frozen: bool, slots: bool) -> None:
    """Give a class the methods it lacks. `own` is what its author wrote."""
    if "__init__" not in own:
        cls.__init__ = _writing_init(cls, frozen)
    if "__repr__" not in own:
        cls.__repr__ = _show
    if eq and "__eq__" not in own:
        cls.__eq__ = _writing_eq(cls)
    if "__hash__" not in own or ("__eq__" in own and own["__hash__"] is None):
        if hashes:
            cls.__hash__ = _writing_hash(cls)
        elif eq:
            cls.__hash__ = None
    if frozen:
        for name in ("__setattr__", "__delattr__"):
            if name in own:
                raise TypeError(f"cannot overwrite attribute {name} in class {cls.__name__}")
            setattr(cls, name, _refuse)
        if slots:
            for name, function in (("__getstate__", _state), ("__setstate__", _restore)):
                if name not in own:
                    setattr(cls, name, function)


def _writing_init(cls: Any, frozen: bool) -> Any:
    def __init__(self: Any, /, *values: Any, **named: Any) -> None:
        cls.__init__ = written = _init_of(cls, frozen)
        written(self, *values, **named)

    return __init__


def _init_of(cls: Any, frozen: bool) -> Any:
    """`__init__` as the library would write it."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    positional: list[str] = ["self"]
    named: list[str] = []
    body: list[str] = []
    for number, field in enumerate(dataclasses.fields(cls)):
        value = field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_default{number}"] = field.default
            default = f" = _default{number}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make{number}"] = field.default_factory
            default = " = _missing"
            value = f"_make{number}() if {field.name} is _missing else {field.name}"
        if not field.init:
            if not default:
                continue
            value = f"_make{number}()" if default == " = _missing" else f"_default{number}"
        else:
            (named if field.kw_only else positional).append(field.name + default)
        body.append(f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    takes = ", ".join([*positional, *(["*", *named] if named else [])])
    text = f"def __init__({takes}):\n " + "\n ".join(body or ["pass"])
    exec(text, names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _writing_eq(cls: Any) -> Any:
    def __eq__(self: Any, other: Any) -> Any:
        cls.__eq__ = written = _eq_of(cls)
        return written(self, other)

    return __eq__


def _eq_of(cls: Any) -> Any:
    values = _values_of([field.name for field in dataclasses.fields(cls) if field.compare])

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _writing_hash(cls: Any) -> Any:
    def __hash__(self: Any) -> int:
        cls.__hash__ = written = _hash_of(cls)
        return int(written(self))

    return __hash__


def _hash_of(cls: Any) -> Any:
    fields = dataclasses.fields(cls)
    values = _values_of([f.name for f in fields if (f.compare if f.hash is None else f.hash)])

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _values_of(names: list[str]) -> Any:
    """What takes these values from an instance, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda one: (getattr(one, names[0]),)) if names else lambda _: ()


#: Instances that are being shown right now, and by which thread: one may hold itself.
_showing: set[tuple[int, int]] = set()


def _show(self: Any) -> str:
    place = id(self), get_ident()
    if place in _showing:
        return "..."
    _showing.add(place)
    try:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    finally:
        _showing.discard(place)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

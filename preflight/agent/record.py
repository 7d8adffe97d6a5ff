"""Dataclasses whose library features are created on demand.

The code on nodes has a hundred dataclasses. The library generates and compiles several functions for each, and
importing it alone takes as long as starting Python: together that was a third of the time that a node spent on its
facts. These use functions that are written once, and provide the library's fields on demand.
"""

from __future__ import annotations

import sys

from preflight.agent.bootstrap import ORIGIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any, Dict, Tuple

#: Whether annotations can be looked up, as the head does to read facts. A node never does, and importing the types they
#: use takes as long as running a probe; so `if ANNOTATED:` guards such imports.
ANNOTATED = not __file__.startswith(ORIGIN)
_NONE = object()


class _Field:
    """An explicit field: `field(default_factory=list)`."""

    def __init__(self, default: Any, default_factory: Any) -> None:
        self.default = default
        self.default_factory = default_factory


class _LazyFields:
    """The class attribute by which the library recognises its own; reading it returns the library's fields."""

    def __get__(self, instance: Any, cls: Any) -> Any:
        for parent in reversed(cls.__mro__):
            if isinstance(parent.__dict__.get("__dataclass_fields__"), _LazyFields):
                _process_fields(parent)
        return cls.__dataclass_fields__


def _process_fields(cls: Any) -> None:
    """Let the library process the fields; the shared functions stay in place."""
    import dataclasses

    del cls.__dataclass_fields__
    for name, default in cls.__dict__["__later__"].items():
        if isinstance(default, _Field):
            setattr(cls, name, dataclasses.field(default_factory=default.default_factory))
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)


def names_of(cls: Any) -> Any:
    """The names of the fields of such a class, in order; None for any other."""
    return getattr(cls, "__names__", None)


def _init(self: Any, *values: Any, **named: Any) -> None:
    """The shared `__init__`."""
    cls = type(self)
    names = cls.__names__
    if len(values) > len(names):
        raise TypeError("%s takes %d values, not %d" % (cls.__name__, len(names), len(values)))
    found = self.__dict__
    found.update(zip(names, values))
    for name in named:
        if name in found or name not in names:
            raise TypeError("%s has no field %r, or it is given twice" % (cls.__name__, name))
    found.update(named)
    if len(found) < len(names):
        defaults = cls.__defaults__
        for name in names:
            if name not in found:
                default = defaults.get(name, _NONE)
                if default is _NONE:
                    raise TypeError("%s needs a value for %r" % (cls.__name__, name))
                found[name] = default.default_factory() if type(default) is _Field else default


def _equal(self: Any, other: Any) -> Any:
    return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(self.__dict__[name] for name in type(self).__names__))


def _repr(self: Any) -> str:
    shown = ", ".join("%s=%r" % (name, self.__dict__.get(name)) for name in type(self).__names__)
    return "%s(%s)" % (type(self).__qualname__, shown)


def _reject_change(self: Any, name: str, *_: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError("cannot change field %r" % name)


_SHARED_METHODS: Dict[str, Any] = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _reject_change,
    "__delattr__": _reject_change,
}

if not TYPE_CHECKING:

    def field(*, default=_NONE, default_factory=None):
        """A field with a default that is created for each instance."""
        return default if default_factory is None else _Field(default, default_factory)

    def dataclass(cls=None, *, frozen=False):
        """The library's decorator, reduced to what nodes need: no `__post_init__`, order, or slots."""
        return _process_class(cls, frozen) if cls is not None else lambda cls: _process_class(cls, frozen)

    def replace(value, **changes):
        """A copy with other values for some fields."""
        return type(value)(**{**{name: getattr(value, name) for name in type(value).__names__}, **changes})


def _process_class(cls: Any, frozen: bool) -> Any:
    names: Tuple[str, ...] = getattr(cls, "__names__", ())
    defaults: Dict[str, Any] = dict(getattr(cls, "__defaults__", {}))
    # Since 3.10 this is never a parent's, and since 3.14 it is only here.
    own = cls.__annotations__ if sys.version_info >= (3, 10) else cls.__dict__.get("__annotations__", {})
    later = {name: cls.__dict__[name] for name in own if name in cls.__dict__}
    for name, default in later.items():
        if isinstance(default, _Field):
            delattr(cls, name)
    cls.__later__ = later
    cls.__names__ = (*names, *(name for name in own if name not in names))
    cls.__defaults__ = {**defaults, **later}
    cls.__dataclass_fields__ = _LazyFields()
    for name, function in _SHARED_METHODS.items():
        if cls.__dict__.get(name) is not None or (not frozen and function is _reject_change):
            continue
        setattr(cls, name, None if function is _hash and not frozen else function)
    return cls

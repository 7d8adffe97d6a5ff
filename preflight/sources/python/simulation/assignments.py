"""Assignments in a simulated run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from preflight.sources.python.simulation.argument_parser import Parser
from preflight.sources.python.simulation.run_state import RunState
from preflight.sources.python.simulation.values import (
    OF_RANK,
    OWN,
    OWN_PART,
    UNKNOWN,
    ClassValue,
    DictValue,
    External,
    Frame,
    Instance,
    ListValue,
    ModuleValue,
    NotKnown,
    Own,
    Unknown,
    forget,
    item_of_one,
    mixed,
    native,
)

ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, NotKnown, AttributeError, MemoryError)


class Assignments(RunState):
    """Gives names, attributes and items their values."""

    def _assign_name(self, name: str, value: Any, frame: Frame) -> None:
        if name not in frame.outside:
            frame.names[name] = value
            return
        owner = frame.parent
        while owner is not None and name not in owner.names and owner.parent is not None:
            owner = owner.parent
        if owner is not None:
            self._changes += 1
            is_certain = owner.region is self.region
            owner.names[name] = value if is_certain else self._replaced(owner.names.get(name, UNKNOWN), value)

    def _assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        # An unknown value is told apart from what the name was before, and from others.
        if value is UNKNOWN:
            value = Unknown()
        elif value in (OWN, OWN_PART, OF_RANK):
            value = Own(of_rank=value.of_rank, of_part=value.of_part)
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value, frame)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value, frame)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN, frame)
        elif isinstance(target, ast.Attribute):
            self.note_switch(target, value, frame)
            self.set_attribute(self.value(target.value, frame), target.attr, value)
        elif isinstance(target, ast.Subscript):
            receiver, key = self.value(target.value, frame), self.value(target.slice, frame)
            if not self.operated(receiver, target, frame):
                self._set_item(receiver, key, value)

    def _unpack(self, targets: Sequence[ast.expr], value: Any, frame: Frame) -> None:
        items = self.items(value)
        if items is not None and len(items) == len(targets) and not any(isinstance(t, ast.Starred) for t in targets):
            for target, item in zip(targets, items, strict=True):
                self._assign(target, item, frame)
            return
        for position, target in enumerate(targets):
            part: Any = item_of_one(value, position) if isinstance(value, Unknown) else UNKNOWN
            if isinstance(value, External) and value.last == "shape":
                part = self.functions.item(self, value, position)
            elif isinstance(value, External):
                # The first of several results is the one that the others belong to.
                part = value if position == 0 else External(f"{value.name}[{position}]", self.region, owner=value)
            self._assign(target, part, frame)

    def set_attribute(self, receiver: Any, name: str, value: Any) -> None:
        """Assign an attribute."""
        self._changes += 1
        if isinstance(receiver, Unknown) or name == "__dict__":
            forget(receiver)
        elif isinstance(receiver, External) and f"{receiver.name}.{name}" == "sys.argv":
            self.functions.set_line(value)
        elif isinstance(receiver, Instance) and receiver.owner.lookup(f"{name}.setter") is not None:
            # What it sets is not followed.
            forget(receiver)
        elif isinstance(receiver, (Instance, External)):
            is_certain = receiver.region is self.region
            before = receiver.attributes.get(name, UNKNOWN)
            receiver.attributes[name] = value if is_certain else self._replaced(before, value)
        elif isinstance(receiver, Parser):
            receiver.is_open = True
        elif isinstance(receiver, ClassValue):
            receiver.names[name] = (
                value if not self._regions else self._replaced(receiver.names.get(name, UNKNOWN), value)
            )
        elif isinstance(receiver, ModuleValue):
            names = receiver.frame.names
            names[name] = (
                value if receiver.frame.region is self.region else self._replaced(names.get(name, UNKNOWN), value)
            )
        elif isinstance(receiver, DictValue) and receiver.has_attributes:
            self._set_item(receiver, name, value)

    def _set_item(self, receiver: Any, key: Any, value: Any) -> None:
        self._changes += 1
        if isinstance(receiver, Unknown):
            forget(receiver)
        elif isinstance(receiver, External) and receiver.name == "os.environ":
            self.functions.set_variable(self, key, value)
        elif isinstance(receiver, External):
            origin = mixed(value)
            if isinstance(origin, Own) and receiver.is_result:
                receiver.origin = origin
        elif isinstance(receiver, DictValue):
            try:
                name = native(key)
                is_certain = receiver.region is self.region
                if receiver.items is not None:
                    before = receiver.items.get(name, UNKNOWN)
                    receiver.items[name] = value if is_certain else self._replaced(before, value)
            except (NotKnown, TypeError):
                receiver.items = None
        elif isinstance(receiver, ListValue):
            if (
                receiver.items is not None
                and isinstance(key, int)
                and -len(receiver.items) <= key < len(receiver.items)
            ):
                receiver.items[key] = value if receiver.region is self.region else UNKNOWN
            else:
                receiver.items = None

    def change(self, receiver: ListValue | DictValue, how: Callable[[Any], Any]) -> None:
        """Change the items of a list or dictionary; they are not known any more where that is uncertain."""
        self._changes += 1
        try:
            certain = receiver.region is self.region and receiver.items is not None
            receiver.items = how(receiver.items) if certain else None
        except ERRORS:
            receiver.items = None

    def items(self, value: Any, *, strict: bool = False) -> list[Any] | None:
        """Return the items of a loop over a value; None if they are not known, or NotKnown for `strict`."""
        found: list[Any] | None = None
        if isinstance(value, (ListValue, DictValue)):
            found = None if value.items is None else list(value.items)
        elif isinstance(value, (tuple, str)):
            found = list(value)
        if found is None and strict:
            raise NotKnown
        return found

"""Expressions in a simulated run."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from preflight.sources.conditions import COMPARE, Several, UnknownValue
from preflight.sources.python.simulation.assignments import ERRORS, Assignments
from preflight.sources.python.simulation.data_origins import item_of, size_origin
from preflight.sources.python.simulation.libraries import names
from preflight.sources.python.simulation.open_texts import added, assigned_values, function_of, open_text, text_of
from preflight.sources.python.simulation.run_state import Failure
from preflight.sources.python.simulation.values import (
    AGREED,
    OF_RANK,
    OWN,
    OWN_PART,
    PLAIN_TYPES,
    SEVERAL,
    UNKNOWN,
    Bound,
    ClassValue,
    Coroutine,
    DictValue,
    External,
    Frame,
    FunctionValue,
    Instance,
    ListValue,
    Method,
    ModuleValue,
    NotKnown,
    OpenFile,
    Own,
    Super,
    Unknown,
    item_of_one,
    merged,
    mixed,
    native,
    of_native,
    one_of,
    part_of,
    truth,
    truth_origin,
)

#: A number with more bits is not computed with.
_MAX_BITS = 256
#: A width that fills memory.
_WIDE = re.compile(r"%[^a-zA-Z]*\d{4}")
_SHARED = names("shared_attributes")
#: Characters of a text that is computed, and items of a sequence.
_MAX_SIZE = 10_000

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: lambda one, other: one << other if 0 <= other < 64 else _refuse(),
    ast.RShift: operator.rshift,
    ast.Pow: lambda one, other: one**other if abs(one) < 1000 and 0 <= other < 20 else _refuse(),
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def _refuse() -> Any:
    raise NotKnown


class Expressions(Assignments):
    """The values of expressions."""

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> FunctionValue:
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = [*zip(positional[::-1], node.args.defaults[::-1], strict=False)]
        pairs += [(arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
        defaults = {arg.arg: self.value(value, frame) for arg, value in pairs if value is not None}
        names = [end_of_decorator(each) for each in getattr(node, "decorator_list", ())]
        return FunctionValue(node, frame, defaults, frozenset(names))

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression."""
        self._step()
        handler = getattr(self, f"_of_{type(node).__name__}", None)
        found = handler(node, frame) if handler is not None else UNKNOWN
        if not self._muted and id(node) in self._watched:
            self.values.setdefault(self._watched[id(node)], []).append(found)
        return found

    def _of_Constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name, frame: Frame) -> Any:
        at: Frame | None = frame
        while at is not None:
            if node.id in at.names and (at is frame or not at.is_class):
                return at.names[node.id]
            at = at.parent
        return self.functions.builtin(node.id)

    def _of_Tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        items = self._spread(node.elts, frame)
        return items if isinstance(items, Unknown) else tuple(items)

    def _of_List(self, node: ast.List | ast.Set, frame: Frame) -> Any:
        items = self._spread(node.elts, frame)
        is_set = isinstance(node, ast.Set)
        if isinstance(items, Unknown):
            return ListValue(None, self.region, is_set, origin=items)
        return ListValue(_distinct(items) if is_set else items, self.region, is_set)

    _of_Set = _of_List

    def _spread(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Any] | Unknown:
        """Return the values of expressions, some of which may be `*values`; one unknown value if their number is
        unknown.
        """
        found: list[Any] = []
        is_known = True
        for node in nodes:
            value = self.value(node.value if isinstance(node, ast.Starred) else node, frame)
            items = self.items(value) if isinstance(node, ast.Starred) else [value]
            is_known &= items is not None
            found += items if items is not None else [value]
        return found if is_known else mixed(*found)

    def _of_Dict(self, node: ast.Dict, frame: Frame) -> Any:
        made = DictValue({}, self.region)
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.value(value, frame)
            if key is not None:
                self._set_item(made, self.value(key, frame), item)
            elif isinstance(item, DictValue) and item.items is not None and made.items is not None:
                made.items.update(item.items)
            else:
                made.items = None
        return made

    def _of_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts = [self.value(each, frame) for each in node.values]
        return "".join(parts) if all(isinstance(part, str) for part in parts) else added(parts, node.values, frame)

    def _of_FormattedValue(self, node: ast.FormattedValue, frame: Frame) -> Any:
        value = self.value(node.value, frame)
        form = self.value(node.format_spec, frame) if node.format_spec is not None else ""
        try:
            plain = node.conversion == -1 and not _WIDE.search(f"%{form}")
            return format(native(value), form) if plain else mixed(value)
        except ERRORS:
            return open_text(text_of(value, node.value, function_of(frame)), value)

    def _of_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Any:
        deciding = isinstance(node.op, ast.Or)
        value: Any = UNKNOWN
        unknown: list[Any] = []
        with contextlib.ExitStack() as stack:
            is_open = False
            for part in node.values:
                value = self.value(part, frame)
                outcome = truth(value)
                if outcome is deciding and is_open and not isinstance(value, bool):
                    return merged(UNKNOWN, mixed(*map(truth_origin, unknown)))
                if outcome is deciding:
                    return value if not is_open else deciding
                unknown += [value] if outcome is None else []
                if outcome is None and not is_open:
                    is_open = True
                    stack.enter_context(self._in_region(maybe=True, own=truth_origin(value)))
        return (merged(UNKNOWN, mixed(*map(truth_origin, unknown))) if is_open else value) if unknown else value

    def _of_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            outcome = truth(value)
            return truth_origin(value) if outcome is None else not outcome
        try:
            return _UNARY[type(node.op)](native(value))
        except ERRORS:
            return mixed(value)

    def _of_BinOp(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        if self.operated(left, node, frame) or self.operated(right, node, frame):
            return UNKNOWN
        found = self._computed(type(node.op), left, right)
        if isinstance(found, Unknown) and isinstance(node.op, ast.Add) and _is_text(left, right):
            return added((left, right), (node.left, node.right), frame)
        return found

    def _computed(self, sign: type[ast.AST], left: Any, right: Any) -> Any:
        if isinstance(left, OpenFile) or sign not in _BINARY:
            return mixed(left, right)
        if sign is ast.Add and isinstance(left, ListValue) and isinstance(right, ListValue):
            known = left.items is not None and right.items is not None
            items = [*(left.items or ()), *(right.items or ())] if known else None
            return ListValue(items, self.region, origin=None if known else mixed(left, right))
        if sign is ast.Mult and isinstance(left, ListValue) and left.items is not None and isinstance(right, int):
            is_small = len(left.items) * right <= _MAX_SIZE
            return ListValue(left.items * right, self.region) if is_small else UNKNOWN
        if sign is ast.Div and isinstance(left, External) and left.last.startswith("Path("):
            return self.functions.joined(left, right)
        try:
            one, other = native(left), native(right)
            if sign is ast.Mult and not all(isinstance(each, (int, float)) for each in (one, other)):
                return UNKNOWN
            if _is_large(one) or _is_large(other) or (sign is ast.Mod and _WIDE.search(str(one))):
                return UNKNOWN
            found = _BINARY[sign](one, other)
        except ERRORS:
            return mixed(left, right)
        return of_native(found, self.region)

    def _of_Compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.value(node.left, frame)
        outcome: Any = True
        for sign, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, frame)
            if not isinstance(sign, (ast.Is, ast.IsNot)):
                self.operated(left, node, frame)
                self.operated(right, node, frame)
            found = self._compared(type(sign), left, right)
            if found is False:
                return False
            outcome = outcome if found is True else found if outcome is True else mixed(outcome, found)
            left = right
        return outcome

    def _compared(self, sign: type[ast.cmpop], left: Any, right: Any) -> Any:
        if sign in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq) and _is_plain_type(left) and _is_plain_type(right):
            return (left.name == right.name) is (sign in (ast.Is, ast.Eq))
        if sign in (ast.Is, ast.IsNot):
            same = self._is_same(left, right)
            return self._of_form(left, right) if same is None else same is (sign is ast.Is)
        if sign in (ast.In, ast.NotIn):
            inside = self._is_in(left, right)
            return self._of_form(left, right) if inside is None else inside is (sign is ast.In)
        if left is SEVERAL or right is SEVERAL:
            outcome = _compared_with_several(sign, left, right)
            self.takes_several |= outcome is not None
            return AGREED if outcome is None else outcome
        try:
            return COMPARE[sign](native(left), native(right))
        except ERRORS:
            found = mixed(left, right)
            self.named_ranks |= {each for each in (left, right) if found is OF_RANK and isinstance(each, int)}
            # What is in the parts of the ranks is compared because it differs.
            return OWN if found is OWN_PART else found

    def _of_form(self, left: Any, right: Any) -> Unknown:
        """Return whether data are there, and with what keys: on all ranks or on none, unless that depends on the
        rank.
        """
        found = mixed(left, right)
        return found if not isinstance(found, Own) or found.of_rank else UNKNOWN

    def _is_same(self, left: Any, right: Any) -> bool | None:
        for one, other in ((left, right), (right, left)):
            if other is None:
                if isinstance(one, (Unknown, Method)):
                    return None
                if isinstance(one, External) and one.last not in _NEVER_NONE and not _CLASS.fullmatch(one.last):
                    return None
                return one is None
            if isinstance(other, bool):
                return None if isinstance(one, (Unknown, External)) else one is other
        return (
            None if isinstance(left, (Unknown, External)) or isinstance(right, (Unknown, External)) else left is right
        )

    def _is_in(self, item: Any, group: Any) -> bool | None:
        if isinstance(group, External) and group.name == "os.environ":
            found: bool | None = self.functions.has_variable(self, item)
            return found
        if isinstance(group, DictValue):
            group = ListValue(list(group.items)) if group.items is not None else UNKNOWN
        try:
            sought = native(item)
            if isinstance(group, str):
                return sought in group
            items = group.items if isinstance(group, ListValue) else group if isinstance(group, tuple) else None
            if items is None:
                return None
            known = [native(each) for each in items if not isinstance(each, (Unknown, External))]
            return True if sought in known else None if len(known) < len(items) else False
        except ERRORS:
            return None

    def _of_IfExp(self, node: ast.IfExp, frame: Frame) -> Any:
        test = self.value(node.test, frame)
        outcome, own = truth(test), truth_origin(test)
        self._note_outcome(node.test, outcome, frame)
        if outcome is not None:
            return self.value(node.body if outcome else node.orelse, frame)
        with self._in_region(maybe=True, own=own):
            one = self.value(node.body, frame)
        with self._in_region(maybe=True, own=own):
            return self._merged(one, self.value(node.orelse, frame))

    def _of_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Any:
        value = self.value(node.value, frame)
        self._assign(node.target, value, frame)
        return value

    def _of_Lambda(self, node: ast.Lambda, frame: Frame) -> Any:
        return self._function(node, frame)

    def _of_Await(self, node: ast.Await, frame: Frame) -> Any:
        return self.awaited(self.value(node.value, frame), node.value, frame)

    def awaited(self, value: Any, node: ast.expr, frame: Frame) -> Any:
        """Return the result of a coroutine; any other value unchanged."""
        if not isinstance(value, Coroutine):
            return value
        call = value.call
        return self.call(call.function, call.arguments, dict(call.keywords), node, frame, awaited=True)

    def _of_Starred(self, node: ast.Starred, frame: Frame) -> Any:
        return self.value(node.value, frame)

    def _of_Yield(self, node: ast.Yield, frame: Frame) -> Any:
        frame.yielded.append(self.value(node.value, frame) if node.value is not None else None)
        frame.size_origin = mixed(frame.size_origin, self.own)
        return UNKNOWN

    def _of_YieldFrom(self, node: ast.YieldFrom, frame: Frame) -> Any:
        value = self.value(node.value, frame)
        frame.yielded.append(item_of(value, node.value))
        frame.size_origin = mixed(frame.size_origin, size_origin(value))
        return UNKNOWN

    def _of_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame) -> Any:
        is_set = isinstance(node, ast.SetComp)
        made = ListValue(None, self.region, is_set)
        found = self._comprehended(node.generators, frame, lambda inner: self.value(node.elt, inner), made)
        made.items = _distinct(found) if is_set else found
        return made

    _of_SetComp = _of_ListComp
    _of_GeneratorExp = _of_ListComp

    def _of_DictComp(self, node: ast.DictComp, frame: Frame) -> Any:
        made = DictValue({}, self.region)
        pairs = self._comprehended(
            node.generators, frame, lambda inner: (self.value(node.key, inner), self.value(node.value, inner))
        )
        for key, value in pairs or ():
            self._set_item(made, key, value)
        return made if pairs is not None else DictValue(None, self.region)

    def _comprehended(
        self,
        generators: Sequence[ast.comprehension],
        frame: Frame,
        element: Callable[[Frame], Any],
        made: ListValue | None = None,
    ) -> list[Any] | None:
        """Return the elements of a comprehension; None if some are unknown: then their origin is recorded."""
        inner = Frame(frame.module, frame, region=self.region)
        first = generators[0]
        whole = self.value(first.iter, frame)
        items = self.items(whole)
        if items is None or len(items) > _MAX_SIZE or len(generators) > 1:
            with self._in_region(maybe=False):
                self._loops += 1
                try:
                    sizes: list[Unknown] = []
                    for each in generators:
                        iterable = self.value(each.iter, inner if sizes else frame) if each is not first else whole
                        self._assign(each.target, item_of(iterable, each.iter), inner)
                        sizes += [size_origin(iterable), *(truth_origin(self.value(test, inner)) for test in each.ifs)]
                    found = element(inner)
                    if made is not None:
                        made.origin, made.size_origin, made.item = mixed(found), mixed(*sizes), found
                finally:
                    self._loops -= 1
            return None
        elements: list[Any] = []
        for item in items:
            self._assign(first.target, item, inner)
            tests = [self.value(test, inner) for test in first.ifs]
            outcomes = [truth(test) for test in tests]
            if None in outcomes:
                if made is not None:
                    made.item = element(inner)
                    origins = list(map(truth_origin, tests))
                    made.origin, made.size_origin = mixed(made.item, *origins), mixed(*origins)
                return None
            if all(outcomes):
                elements.append(element(inner))
        return elements

    def _of_Attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.value(node.value, frame), node.attr, node, frame)

    def attribute(self, receiver: Any, name: str, node: ast.expr, frame: Frame) -> Any:
        """Return an attribute of a value."""
        if isinstance(receiver, Unknown) and (methods := _methods(receiver, name)):
            return one_of(methods)
        if isinstance(receiver, Super):
            found = receiver.receiver.owner.lookup(name, above=receiver.above)
            if found is not None:
                return self._class_attribute(found[0], receiver.receiver, node, frame)
            if receiver.receiver.parser is not None:
                return Method(receiver.receiver.parser, name)
            return External(f"{self._foreign_name(receiver.receiver.owner)}().{name}")
        if isinstance(receiver, Instance):
            if receiver.owner.lookup("__getattribute__") or receiver.owner.lookup("__setattr__"):
                found = receiver.owner.lookup(name)
                is_method = found is not None and isinstance(found[0], FunctionValue)
                return (
                    self._class_attribute(found[0], receiver, node, frame)
                    if found is not None and is_method
                    else UNKNOWN
                )
            if name in receiver.attributes:
                return receiver.attributes[name]
            if name == "__dict__":
                return one_of((receiver,))
            found = receiver.owner.lookup(name)
            if found is not None and not isinstance(found[0], FunctionValue):
                # What sets it may not have been followed.
                is_other = receiver.is_open or name in self._stored or isinstance(found[0], Instance)
                return UNKNOWN if is_other else found[0]
            if found is not None:
                return self._class_attribute(found[0], receiver, node, frame)
            if name == "__class__":
                return receiver.owner
            if receiver.parser is not None:
                return Method(receiver.parser, name)
            foreign = receiver.owner.foreign
            if name == "training" and foreign is not None and foreign.last in ("Module", "Layer"):
                # It is true until something evaluates a model.
                return True if self.unsearched or not self.has_evaluated else UNKNOWN
            if foreign is None:
                return UNKNOWN
            found = self.functions.attribute(self, External(f"{foreign.name}()"), name)
            return External(f"{foreign.name}().{name}", of=receiver) if isinstance(found, External) else found
        if isinstance(receiver, ClassValue):
            found = receiver.lookup(name)
            if name == "apply" and found is None and (forward := _forward_of(receiver)) is not None:
                return Bound(forward, (UNKNOWN,))
            if found is not None and not isinstance(found[0], FunctionValue) and _is_enumeration(receiver):
                return UNKNOWN
            if found is not None:
                is_bound = isinstance(found[0], FunctionValue) and "classmethod" in found[0].decorators
                return Bound(found[0], (receiver,)) if is_bound else found[0]
            if name == "__name__":
                return receiver.node.name
            foreign = receiver.foreign
            return External(f"{foreign.name}.{name}") if foreign is not None else UNKNOWN
        if isinstance(receiver, ModuleValue):
            if name in receiver.frame.names:
                return receiver.frame.names[name]
            part = self._find_module(receiver.file, name, 1)
            return self.import_module(part) if part is not None and part.path in self._modules else UNKNOWN
        if name == "shape" and isinstance(receiver, (Unknown, External)):
            full = f"{receiver.name}.shape" if isinstance(receiver, External) else "builtins.shape"
            return External(full, origin=UNKNOWN, arguments=(receiver,))
        if isinstance(receiver, External):
            if name in receiver.attributes:
                return receiver.attributes[name]
            return self.functions.attribute(self, receiver, name)
        if isinstance(receiver, DictValue) and receiver.has_attributes:
            if name == "__dict__":
                return receiver
            if receiver.items is not None and name in receiver.items:
                return receiver.items[name]
            return Method(receiver, name) if hasattr(dict, name) else UNKNOWN
        if isinstance(receiver, Unknown):
            return AGREED if name == "grad" else receiver if name not in _SHARED else UNKNOWN
        if isinstance(receiver, FunctionValue) and name == "__name__":
            return getattr(receiver.node, "name", "<lambda>")
        if isinstance(receiver, (FunctionValue, Bound, Method)):
            return UNKNOWN
        return Method(receiver, name)

    def _foreign_name(self, owner: ClassValue) -> str:
        return owner.foreign.name if owner.foreign is not None else "builtins.object"

    def _class_attribute(self, found: Any, receiver: Instance, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an object for a name of its class."""
        if not isinstance(found, FunctionValue):
            return found
        if {"property", "cached_property"} & found.decorators:
            return self.call(Bound(found, (receiver,)), (), {}, node, frame)
        if "staticmethod" in found.decorators:
            return found
        return Bound(found, (receiver.owner if "classmethod" in found.decorators else receiver,))

    def _of_Subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        receiver = self.value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.value(each, frame) if each is not None else None
                for each in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            return self._sliced(receiver, bounds)
        key = self.value(node.slice, frame)
        is_open = isinstance(receiver, (External, Unknown)) and isinstance(key, (External, Unknown))
        if is_open and _is_mask(node.slice, frame):
            # It has as many rows as the data decide.
            return External("masked_select()", self.region, origin=mixed(receiver, key))
        return self.item(receiver, key, node, frame)

    def _sliced(self, receiver: Any, bounds: Sequence[Any]) -> Any:
        items = receiver.items if isinstance(receiver, ListValue) else receiver
        if not isinstance(items, (list, tuple, str)) or not all(
            each is None or isinstance(each, int) for each in bounds
        ):
            return part_of(receiver, *bounds)
        if bounds[2] == 0:
            return UNKNOWN
        found = items[slice(*bounds)]
        return ListValue(found, self.region) if isinstance(found, list) else found

    def item(self, receiver: Any, key: Any, node: ast.expr, frame: Frame) -> Any:
        """Return an item of a value."""
        if isinstance(receiver, External):
            return self.functions.item(self, receiver, key)
        if isinstance(receiver, Unknown):
            return part_of(receiver, key) if isinstance(key, Own) else item_of_one(receiver, key)
        if self.operated(receiver, node, frame):
            return UNKNOWN
        try:
            name = native(key)
            if isinstance(receiver, DictValue):
                if receiver.items is None:
                    return UNKNOWN
                if name not in receiver.items and receiver.file and isinstance(getattr(node, "ctx", None), ast.Load):
                    shown = f"{receiver.file} has no `{name}`"
                    raise self._stopped(Failure(frame.module.file, node, shown))
                return receiver.items.get(name, UNKNOWN)
            items = receiver.items if isinstance(receiver, ListValue) else receiver
            return items[name] if isinstance(items, (list, tuple, str)) else mixed(receiver)
        except ERRORS:
            return UNKNOWN


def _methods(receiver: Unknown, name: str) -> list[Bound]:
    """Return the methods with this name of the objects that a value may be."""
    objects = [each for each in receiver.aliases if isinstance(each, Instance)]
    found = [(each, each.owner.lookup(name)) for each in objects]
    return [
        Bound(method[0], (each,))
        for each, method in found
        if method is not None and isinstance(method[0], FunctionValue) and not method[0].decorators
    ]


#: A class, or an object of one.
_CLASS = re.compile(r"[A-Z]\w*(?:\(\))?")
_NEVER_NONE = names("never_none")


def _is_text(*values: Any) -> bool:
    """Return whether one of some values is a text, possibly with unknown parts."""
    return any(isinstance(each, str) or (isinstance(each, Unknown) and each.text) for each in values)


def _is_mask(node: ast.expr, frame: Frame) -> bool:
    """Return whether an index compares: `x[y > 0]`, also through a name that the function assigns."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert) and _is_mask(node.operand, frame)
    if isinstance(node, ast.BinOp):
        is_logical = isinstance(node.op, (ast.BitAnd, ast.BitOr))
        return is_logical and (_is_mask(node.left, frame) or _is_mask(node.right, frame))
    if isinstance(node, ast.Name) and frame.function is not None and not isinstance(frame.function.node, ast.Lambda):
        given = [each for each in assigned_values(frame.function.node).get(node.id, ()) if each is not None]
        return len(given) == 1 and not isinstance(given[0], ast.Name) and _is_mask(given[0], frame)
    return isinstance(node, ast.Compare) and isinstance(
        node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
    )


def _forward_of(owner: ClassValue) -> FunctionValue | None:
    """Return the function that `apply` of an operation with its own gradient calls: torch.autograd.Function, PyLayer of
    Paddle.
    """
    found = owner.lookup("forward")
    is_operation = owner.foreign is not None and owner.foreign.name.endswith(("autograd.Function", "PyLayer"))
    return found[0] if is_operation and found is not None and isinstance(found[0], FunctionValue) else None


def _is_large(value: Any) -> bool:
    """Return whether computing with a value may take long."""
    if isinstance(value, int):
        return value.bit_length() > _MAX_BITS
    return isinstance(value, (str, bytes, tuple, list, dict, set)) and len(value) > _MAX_SIZE


def _distinct(items: Sequence[Any] | None) -> list[Any] | None:
    """Return the items of a set; None if they are not all known."""
    try:
        return list(dict.fromkeys(map(native, items))) if items is not None else None
    except (NotKnown, TypeError):
        return None


def _is_enumeration(owner: ClassValue) -> bool:
    """Return whether the names of a class are objects of it."""
    return owner.foreign is not None and owner.foreign.last.endswith(("Enum", "Flag"))


def _compared_with_several(sign: type[ast.cmpop], left: Any, right: Any) -> bool | None:
    """Return the result of a comparison with a number of ranks, if it is the same for every number above 1."""
    if sign not in COMPARE or not isinstance(right if left is SEVERAL else left, int):
        return None
    several = Several("the number of ranks")
    try:
        return bool(COMPARE[sign](several, right) if left is SEVERAL else COMPARE[sign](left, several))
    except UnknownValue:
        return None


def _is_plain_type(value: Any) -> bool:
    """Whether a value is one of Python's own types: `bool`."""
    return isinstance(value, External) and value.name in PLAIN_TYPES


def end_of_decorator(node: ast.expr) -> str:
    """Return the last part of the name of a decorator."""
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""

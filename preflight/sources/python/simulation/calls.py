"""Calls in a simulated run."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from preflight.sources.python.collectives import AGREEING
from preflight.sources.python.simulation.data_origins import (
    MAY_DIVIDE,
    data_of,
    draws_from_all,
    is_stream_for_all,
    shuffles_all,
    size_of,
    size_origin,
    unused_samplers,
)
from preflight.sources.python.simulation.divergence import SHARDED_MODEL
from preflight.sources.python.simulation.expressions import Expressions
from preflight.sources.python.simulation.known_functions import EQUAL, KEEPS, LOSS, OWN_RESULTS
from preflight.sources.python.simulation.libraries import names, table
from preflight.sources.python.simulation.run_state import Branch, Event, LeftLoop, Returned, Signal, Stopped
from preflight.sources.python.simulation.values import (
    AGREED,
    CALLABLES,
    OWN,
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
    Own,
    Super,
    TooLong,
    Unknown,
    forget,
    merged,
    mixed,
)

#: Calls in calls are followed to this depth.
_MAX_DEPTH = 40
#: Calls of one function that may be under way at the same time.
_MAX_RECURSION = 2
#: Functions that a name may stand for, which are all followed.
_MAX_FUNCTIONS = 2
_METHODS_OF_DATA = names("methods_of_data")
_CACHING = names("caching_decorators")

#: Classes of libraries whose constructors set no attribute.
_WITHOUT_ATTRIBUTES = ("Dataset", "IterableDataset")
#: Methods that libraries call of the objects that they get.
_CALLED_BY_LIBRARIES = ("__getitem__", "__call__", "forward")
#: Those that they call of objects whose class extends one of theirs.
#: The parameters that get the data of the rank.
_BATCHES = re.compile(r"(?:^|_)(?:batch|inputs|samples?|data|outputs?)$")
_HOOKS: list[str] = table()["names"]["hooks"]
_CERTAIN_HOOKS = names("certain_hooks")
#: Methods that run where an object is used in an expression; calls, loops, contexts are followed by themselves.
_OPERATOR = re.compile(
    r"__(?!init|new|call|enter|exit|iter|next|get__|set__|getattr|setattr|post_init|del__|aenter)\w+__"
)


def _sampler_of(made: Event | External) -> Any:
    """Return the sampler that a loader gets; None if it gets none."""
    return made.keywords.get("batch_sampler", made.keywords.get("sampler"))


def _is_call_of(event: Event, loader: External) -> bool:
    """Return whether a call has made a loader."""
    is_same = event.node is loader.call and data_of(event) is data_of(loader)
    return is_same and _sampler_of(event) is _sampler_of(loader)


class Calls(Expressions):
    """Calls of functions, methods and classes."""

    def _of_Call(self, node: ast.Call, frame: Frame) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super(frame)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and len(node.args) == 2:
            above, receiver = self.value(node.args[0], frame), self.value(node.args[1], frame)
            known = isinstance(above, ClassValue) and isinstance(receiver, Instance)
            return Super(receiver, above) if known else UNKNOWN
        callee = self.value(node.func, frame)
        spread = self._spread(node.args, frame)
        keywords: dict[str, Any] = {}
        is_open = isinstance(spread, Unknown)
        arguments = (spread,) if isinstance(spread, Own) else () if isinstance(spread, Unknown) else tuple(spread)
        for keyword in node.keywords:
            given = self.value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = given
            elif isinstance(given, DictValue) and given.items is not None:
                keywords.update({str(name): item for name, item in given.items.items()})
            else:
                is_open = True
                if isinstance(given, Own) and isinstance(callee, (Unknown, External)):
                    arguments = (*arguments, given)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
            self.note_switch(node.func, arguments[0] if arguments else keywords.get("requires_grad", True), frame)
        return self.call(callee, arguments, keywords, node, frame, is_open=is_open)

    def _super(self, frame: Frame) -> Any:
        function = frame.function
        first = next(iter(frame.names.values()), UNKNOWN)
        if function is not None and function.owner is not None and isinstance(first, Instance):
            return Super(first, function.owner)
        return UNKNOWN

    def call(
        self,
        callee: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
        *,
        is_open: bool = False,
        awaited: bool = False,
    ) -> Any:
        """Return the result of a call.

        Args:
            is_open: whether there are further, unknown arguments.
            awaited: whether an `async` function is run to its end.
        """
        if isinstance(callee, Bound):
            arguments = (*callee.arguments, *arguments)
            return self.call(callee.function, arguments, {**callee.keywords, **keywords}, node, frame, is_open=is_open)
        if isinstance(callee, FunctionValue) and isinstance(callee.node, ast.AsyncFunctionDef) and not awaited:
            return Coroutine(Bound(callee, arguments, keywords))
        if isinstance(callee, FunctionValue):
            is_open = is_open or callee.is_open
            return self._called(callee, arguments, keywords, node, frame, is_open=is_open)
        if isinstance(callee, ClassValue):
            return self._instantiated(callee, arguments, keywords, node, frame, is_open=is_open)
        if isinstance(callee, (Instance, External)) and any(callee is each for each in self.sharded):
            self.record(SHARDED_MODEL, node, frame, arguments, keywords)
        if isinstance(callee, Instance):
            found = callee.owner.lookup("__call__") or callee.owner.lookup("forward")
            if found is not None:
                return self.call(found[0], (callee, *arguments), keywords, node, frame, is_open=is_open)
            return UNKNOWN
        if isinstance(callee, External):
            return self.functions.called(self, callee, arguments, keywords, node, frame, is_open=is_open)
        if isinstance(callee, Method):
            if is_open:
                self.functions.forget_receiver(callee)
                return UNKNOWN
            return self.functions.method(self, callee, arguments, keywords, node, frame)
        if isinstance(callee, Unknown) and 0 < len(callee.aliases) <= _MAX_FUNCTIONS and not self._is_one_of_several:
            self._call_each(callee, arguments, keywords, node, frame, is_open=is_open)
        self.record("", node, frame, arguments, keywords)
        # A method of data waits for no rank.
        self._waited += not isinstance(callee, Own)
        for given in (callee, *arguments, *keywords.values()):
            forget(given)
        return self._of_unknown(callee, (*arguments, *keywords.values()), node, frame)

    def _call_each(
        self,
        callee: Unknown,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
        *,
        is_open: bool,
    ) -> None:
        """Follow each function that a name may stand for."""
        before, self._is_one_of_several = self._is_one_of_several, True
        self._forks += 1
        outside, fork = self._branches, self._forks
        for number, each in enumerate(callee.aliases):
            self._branches = {**outside, fork: Branch(number)}
            if isinstance(each, CALLABLES) and not (isinstance(each, External) and each.is_result):
                with self._in_region(maybe=True), contextlib.suppress(Signal):
                    self.call(each, arguments, keywords, node, frame, is_open=is_open)
        self._branches, self._is_one_of_several = outside, before

    def agree(self, node: ast.expr, frame: Frame) -> None:
        """Take the arguments of a call for what the ranks have agreed on: a collective changes them in place."""
        if not isinstance(node, ast.Call):
            return
        for argument in (*node.args, *(each.value for each in node.keywords)):
            if isinstance(argument, (ast.Name, ast.Attribute, ast.List)):
                with self._quiet():
                    value = self.value(argument, frame)
                if isinstance(value, Own) and value.of_rank and argument not in node.args[:1]:
                    # It names the root.
                    continue
                self._agree_on(value)
                if isinstance(value, Unknown) and isinstance(argument, (ast.Name, ast.Attribute)):
                    self._assign(argument, AGREED, frame)

    def change_on_one(self, node: ast.expr, frame: Frame, position: int) -> None:
        """Take an argument of a call for what differs between ranks: a collective gives one of them its result."""
        argument = node.args[position] if isinstance(node, ast.Call) and len(node.args) > position else None
        if not isinstance(argument, (ast.Name, ast.Attribute)):
            return
        with self._quiet():
            value = self.value(argument, frame)
        if isinstance(value, (External, ListValue)):
            value.origin = OWN
        if isinstance(value, ListValue):
            value.items = None
        elif isinstance(value, Unknown):
            self._assign(argument, OWN, frame)

    def _agree_on(self, value: Any) -> None:
        if isinstance(value, Own):
            value.agree()
        elif isinstance(value, External):
            value.origin = AGREED
        elif isinstance(value, ListValue):
            for item in value.items or ():
                self._agree_on(item)
            value.items, value.origin = None, AGREED

    def _of_unknown(self, callee: Any, given: Sequence[Any], node: ast.expr, frame: Frame) -> Any:
        """Return whether what a call of something unknown returns differs between ranks, by its name."""
        written = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        short = written.rpartition(".")[2]
        if short == "size" and given:
            return size_of(callee, given[0])
        if short in EQUAL:
            return AGREED
        if AGREEING.search(short):
            self.agree(node, frame)
            return AGREED
        found = mixed(callee, *given)
        if short in OWN_RESULTS and found is UNKNOWN and LOSS.search(ast.unparse(node)):
            return OWN
        owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        keeper = owner if owner is not None else getattr(node, "func", None)
        if isinstance(found, Own) and isinstance(keeper, ast.Name) and KEEPS.search(keeper.id):
            frame.names[keeper.id] = found
        return found

    def maybe_called(self, function: FunctionValue | Bound, node: ast.expr, frame: Frame) -> None:
        """Follow a function that is passed to a library, which may call it."""
        with self._in_region(maybe=True), contextlib.suppress(Signal):
            self.call(function, (), {}, node, frame, is_open=True)

    def call_hooks(
        self,
        function: External,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> None:
        """Follow the methods that a trainer calls on its objects, its callbacks, or their subclasses."""
        trainer = function.owner or function.of
        made_with = trainer.keywords if isinstance(trainer, External) else trainer.made_with if trainer else {}
        callbacks = [each.get("callbacks") for each in (keywords, made_with)]
        inner = [item for each in callbacks if isinstance(each, ListValue) for item in each.items or ()]
        objects = [
            each
            for each in (function.of, *arguments, *keywords.values(), *inner)
            if isinstance(each, Instance) and each.owner.foreign is not None
        ]
        known = {"trainer": trainer, "pl_module": objects[0] if objects else UNKNOWN}
        before, self.trained_by = self.trained_by, self.events[-1] if self.events else None
        for given in objects:
            for name in _HOOKS:
                found = given.owner.lookup(name)
                if found is None or not isinstance(found[0], FunctionValue):
                    continue
                parameters = [each.arg for each in found[0].node.args.args]
                named: dict[str, Any] = {each: OWN for each in parameters if _BATCHES.search(each)}
                named |= {each: value for each, value in known.items() if each in parameters}
                with self._in_region(maybe=name not in _CERTAIN_HOOKS), contextlib.suppress(Signal):
                    self._loops += 1
                    self.call(found[0], (given,), named, node, frame, is_open=True)
                self._loops -= 1
        self.trained_by = before

    def undivided(self) -> Iterator[tuple[Event, str, FunctionValue | None]]:
        """Yield the loaders of data that is not divided among the ranks, with the kind and the `__iter__` of a stream.

        The kinds are those of the quantity `data_unsplit`.
        """
        unsampled = unused_samplers(self.events)
        for event in list(self.events):
            if any(event is each for each in unsampled):
                yield event, "unsampled", None
                continue
            data = data_of(event)
            is_stream = is_stream_for_all(event)
            if not (is_stream or shuffles_all(event)):
                continue
            found = (
                data.owner.lookup("__iter__" if is_stream else "__getitem__") if isinstance(data, Instance) else None
            )
            method = found[0] if found is not None and isinstance(found[0], FunctionValue) else None
            kind = "paddle_loader" if "paddle" in event.name else "loader"
            if isinstance(data, Instance) and method is not None and not self._reads_own_part(data, method, event):
                yield event, "stream" if is_stream else kind, method if is_stream else None
            elif isinstance(data, External) and not is_stream:
                yield event, kind, None

        for loader in self.trained_on:
            made = next((event for event in self.events if _is_call_of(event, loader)), None)
            if made is not None and self._reads_all(made):
                is_own = isinstance(_sampler_of(made), Instance)
                yield made, "own_sampler" if is_own else "paddle_loader" if "paddle" in made.name else "loader", None

    def _reads_all(self, event: Event) -> bool:
        """Return whether a training loader certainly yields the same data on every rank."""
        data = data_of(event)
        possible = (data.aliases if data.is_complete else ()) if isinstance(data, Unknown) else (data,)
        sampler = _sampler_of(event)
        if isinstance(sampler, Instance):
            return self._is_for_all(sampler, "__iter__", event, made_of_indices=True)
        draws = draws_from_all(sampler) if sampler is not None else event.keywords.get("shuffle") is True
        return (
            draws
            and bool(possible)
            and all(
                self._is_for_all(each, "__getitem__", event)
                if isinstance(each, Instance)
                else isinstance(each, External)
                and MAY_DIVIDE.search(each.name) is None
                and not isinstance(mixed(*each.arguments, *each.keywords.values()), Own)
                for each in possible
            )
        )

    def _is_for_all(self, data: Instance, name: str, event: Event, *, made_of_indices: bool = False) -> bool:
        """Return whether a method of the user's data certainly yields the same on every rank."""
        found = data.owner.lookup(name)
        method = found[0] if found is not None else None
        return isinstance(method, FunctionValue) and not self._reads_own_part(
            data, method, event, made_of_indices=made_of_indices
        )

    def _reads_own_part(
        self, data: Instance, method: FunctionValue, event: Event, *, made_of_indices: bool = False
    ) -> bool:
        """Return whether what a method of data yields may depend on the rank.

        Args:
            made_of_indices: whether it yields indices, as a sampler does, so that what the object keeps does not count.
        """
        start, asked = len(self.events), self.functions.is_asked
        self.functions.is_asked = False
        made: Any = OWN
        draws = self.functions.equal_draws() if made_of_indices else contextlib.nullcontext()
        with draws, self._in_region(maybe=True), contextlib.suppress(Signal):
            made = self.call(method, (data,), {}, event.node, method.frame, is_open=True)
        called = [each.name or _method_of_data(each) for each in self.events[start:]]
        kept = () if made_of_indices else tuple(data.attributes.values())
        called += [each.name for each in data.attributes.values() if isinstance(each, External)]
        seeds = [each for each in self.events[start:] if "seed" in each.name]
        given = [value for each in seeds for value in (*each.arguments, *each.keywords.values())]
        is_own = self.functions.is_asked or isinstance(mixed(made, size_origin(made), *kept, *given), Own)
        del self.events[start:]
        self.functions.is_asked |= asked
        return is_own or any(not name or MAY_DIVIDE.search(name) for name in called)

    def operated(self, value: Any, node: ast.expr, frame: Frame) -> bool:
        """Follow the operators of a user-defined object; False for any other value."""
        if not isinstance(value, Instance):
            return False
        for each in value.owner.order():
            for name, method in each.names.items() if isinstance(each, ClassValue) else ():
                if _OPERATOR.fullmatch(name) and isinstance(method, FunctionValue):
                    self.maybe_called(Bound(method, (value,)), node, frame)
        return True

    def _called(
        self,
        function: FunctionValue,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
        *,
        is_open: bool,
    ) -> Any:
        under_way = sum(each is function or each.node is function.node for each, _, _ in self._calls)
        given = [each for each in (*arguments, *keywords.values()) if not isinstance(each, Instance)]
        is_blind = bool(given) and all(isinstance(each, Unknown) for each in given)
        is_deep = under_way >= (1 if is_blind else _MAX_RECURSION) or len(self._calls) >= _MAX_DEPTH
        if is_deep or function.node in self.left_out:
            # What it calls is not followed.
            self.record("", node, frame, arguments, keywords)
            return UNKNOWN
        call = None if is_open else self._call_key(function, arguments, keywords)
        before = self._effects()
        if call is not None and self._results.get(call, (None,))[0] == self._changes:
            return self._results[call][1]
        inner = Frame(function.frame.module, function.frame, region=self.region, function=function)
        inner.own_of_call = self.own
        self._frames.append(inner)
        self._bind(function, inner, arguments, keywords, is_open=is_open)
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, inner)
        assumed = self._assumed
        self._enter(function)
        self._calls.append((function, node, frame.module.file))
        self._starts.append(self._steps)
        branches, tries, is_one, rounds = self._branches, self._tries, self._is_one_of_several, len(self._rounds)
        start, depth, waited = len(self.events), self._maybe, self._waited
        loops, self._early = self._early, []
        try:
            if _yields(function.node):
                # It runs only as far as something takes its values.
                with self._in_region(maybe=False), contextlib.suppress(Signal):
                    self.block(function.node.body, inner)
                size = mixed(inner.size_origin, inner.own)
                item = functools.reduce(merged, inner.yielded) if inner.yielded else None
                return ListValue(None, self.region, origin=mixed(*inner.yielded), size_origin=size, item=item)
            # What is kept of an earlier call is not called again.
            is_kept = function in self._kept
            if _CACHING & function.decorators:
                self._kept.append(function)
            with self._in_region(maybe=True) if is_kept else contextlib.nullcontext():
                self.block(function.node.body, inner)
            result: Any = None
        except Returned as signal:
            result = signal.value
        except LeftLoop:
            result = UNKNOWN
        except Stopped as stopped:
            if not inner.returned:
                raise
            # It may have returned before; of what fails only where it has not, nothing is known.
            result = inner.returned.pop(0)
            self._may_have_exited |= stopped.failure is None
        except TooLong as too_long:
            if too_long.depth < len(self._calls) - 1:
                raise
            self._branches, self._tries, self._is_one_of_several = branches, tries, is_one
            del self._rounds[rounds:]
            self.left_out.add(function.node)
            self._may_have_exited = True
            for value in (*arguments, *keywords.values()):
                forget(value)
            self.record("", node, frame, arguments, keywords)
            result = UNKNOWN
        finally:
            self._calls.pop()
            self._starts.pop()
            self._early = loops
            self._end_early(inner.early, start, depth)
        self._assumed = assumed
        for other in inner.returned:
            result = self._merged(result, other, inner.own)
        name = getattr(function.node, "name", "")
        if isinstance(result, Own) and AGREEING.search(name) and self._waited > waited:
            # It returns what it got where there is one rank alone.
            return AGREED
        if call is not None and before == self._effects():
            self._results[call] = (self._changes, result)
        return result

    def _call_key(
        self, function: FunctionValue, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Hashable | None:
        """Return a key that equal calls share; None if it is not known."""
        if function.frame.parent is not None or function.frame.is_class:
            return None
        given = [_signature(each) for each in (*arguments, *keywords.values())]
        if None in given:
            return None
        doubt = 2 if self._maybe else 1 if self._is_doubtful else 0
        around = (doubt, bool(self._muted), self._unsynced, self.is_wrapped, self.unsearched, self.has_evaluated)
        return (id(function), *around, self.functions.state, type(self.own).__name__, *keywords, *given)

    def _effects(self) -> tuple[object, ...]:
        """Return the possible side effects of a call."""
        counts = (self._changes, self._waited, self._met, self._assumed, self._left, self._may_have_exited)
        noted = (len(self.divergences), len(self.parsers), len(self.switches), len(self._raised), len(self.checks))
        return (*counts, *noted, id(self.exhausted))

    def _enter(self, function: FunctionValue) -> None:
        """Note that a function is called."""
        self._called_functions.add(function.node)
        if not self._maybe and not self._muted:
            node = function.node
            self.entered.add((function.frame.module.file.path, node.lineno, node.end_lineno or node.lineno))

    def _bind(
        self,
        function: FunctionValue,
        inner: Frame,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        is_open: bool,
    ) -> None:
        """Give the parameters of a function their values."""
        given = function.node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        names = [*positional, *(each.arg for each in given.kwonlyargs)]
        unknown = mixed(*arguments) if isinstance(mixed(*arguments), Own) else UNKNOWN
        for name in names:
            inner.names[name] = unknown if is_open else function.defaults.get(name, UNKNOWN)
        inner.names.update(zip(positional, arguments, strict=False))
        inner.names.update({name: value for name, value in keywords.items() if name in names})
        if given.vararg is not None:
            inner.names[given.vararg.arg] = unknown if is_open else tuple(arguments[len(positional) :])
        if given.kwarg is not None:
            rest = {name: value for name, value in keywords.items() if name not in names}
            inner.names[given.kwarg.arg] = DictValue(None if is_open else rest, self.region)

    def _instantiated(
        self,
        owner: ClassValue,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
        *,
        is_open: bool,
    ) -> Any:
        foreign = owner.foreign
        if foreign is not None and foreign.name in ("builtins.dict", "collections.OrderedDict", "addict.Dict"):
            if not _is_plain_dictionary(owner):
                return DictValue(None, self.region, has_attributes=True)
            made = self.functions.called(
                self, External("builtins.dict"), arguments, keywords, node, frame, is_open=is_open
            )
            if isinstance(made, DictValue):
                made.has_attributes = True
            return made
        if owner.lookup("__new__") is not None:
            self.record("", node, frame, arguments, keywords)
            return UNKNOWN
        instance = Instance(owner, self.region)
        hooks = _HOOKS if foreign is not None else ()
        for method in (owner.lookup(name) for name in (*_CALLED_BY_LIBRARIES, *hooks)):
            if method is not None and isinstance(method[0], FunctionValue):
                self._enter(method[0])
        if foreign is not None and foreign.name == "argparse.ArgumentParser":
            instance.parser = self.functions.called(self, foreign, (), {}, node, frame)
        found = owner.lookup("__init__")
        if found is not None and (not owner.is_dataclass or "__init__" in owner.names):
            self.call(found[0], (instance, *arguments), keywords, node, frame, is_open=is_open)
        elif owner.is_record:
            fields = [name for each in reversed(owner.order()) if isinstance(each, ClassValue) for name in each.fields]
            for name in fields:
                default = owner.lookup(name)
                value = default[0] if default is not None else UNKNOWN
                instance.attributes[name] = (
                    UNKNOWN if is_open else self.functions.field_default(self, value, node, frame)
                )
            instance.attributes.update(zip(fields, arguments, strict=False))
            instance.attributes.update({name: value for name, value in keywords.items() if name in fields})
            if (after := owner.lookup("__post_init__")) is not None:
                self.call(after[0], (instance,), {}, node, frame)
        elif foreign is not None and instance.parser is None:
            # Its constructor may set any attribute, but that of a data set sets none.
            instance.is_open = foreign.last not in _WITHOUT_ATTRIBUTES
            instance.made_with = keywords
            self.functions.called(self, foreign, arguments, keywords, node, frame, is_open=is_open)
        return instance


def _signature(value: Any) -> Hashable | None:
    """Return a key that distinguishes arguments; None for a mutable one."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), value
    if isinstance(value, tuple):
        parts = tuple(map(_signature, value))
        return None if None in parts else (tuple, parts)
    if isinstance(value, External):
        return External.__name__, value.name, type(value.origin).__name__, value.origin is AGREED
    if isinstance(value, Unknown) and not value.aliases:
        of_rank = isinstance(value, Own) and (value.of_rank, value.of_part)
        return type(value).__name__, value.is_agreed, value.text, of_rank
    return id(value) if isinstance(value, (FunctionValue, ClassValue)) else None


def _method_of_data(event: Event) -> str:
    """Return the method of something that is not known, if texts, lists or tensors have it; otherwise empty."""
    function = event.node.func
    return function.attr if isinstance(function, ast.Attribute) and function.attr in _METHODS_OF_DATA else ""


def _is_plain_dictionary(owner: ClassValue) -> bool:
    """Return whether a class of dictionaries only makes the keys attributes: `self.__dict__ = self`."""
    methods = [each for each in owner.node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return not methods or (len(methods) == 1 and "self.__dict__ = self" in ast.unparse(methods[0]))


@functools.lru_cache(maxsize=4096)
def _yields(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a generator."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return False

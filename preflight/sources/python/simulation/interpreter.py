"""Follows the statements of a program with known or unknown values.

If a condition is unknown, both branches are followed, each on its own copy of the names, and values that differ
afterwards are unknown. In such a region an item or attribute with a new value is unknown from then on. A loop with
unknown items is followed once, after a round that finds out what changes in it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from preflight.sources.base import SourceFile
from preflight.sources.python.simulation.calls import Calls
from preflight.sources.python.simulation.coverage import names_in
from preflight.sources.python.simulation.data_origins import item_of, loaders_in, size_origin
from preflight.sources.python.simulation.divergence import Divergence, Early, called_name, names_of, only_in_one
from preflight.sources.python.simulation.expressions import end_of_decorator
from preflight.sources.python.simulation.libraries import names
from preflight.sources.python.simulation.run_state import (
    Branch,
    Event,
    Failure,
    Guard,
    LeftLoop,
    Returned,
    Signal,
    Stopped,
)
from preflight.sources.python.simulation.values import (
    OF_RANK,
    UNKNOWN,
    Bound,
    ClassValue,
    DictValue,
    External,
    Frame,
    FunctionValue,
    Instance,
    ListValue,
    ModuleValue,
    OutOfSteps,
    Own,
    Unknown,
    forget,
    merged,
    mixed,
    one_of,
    truth,
    truth_origin,
)

#: A known sequence is followed item by item up to this length, a longer one where little is done with each.
_MAX_ITEMS = 8
_MAX_LIGHT_ITEMS = 200
#: So many nodes are little.
_LIGHT = 40
_SUPPRESSING = names("suppressing")
_DECORATES_MAIN = tuple(names("decorating_main"))


class Interpreter(Calls):
    """One run of a program."""

    def run(self, script: SourceFile) -> Failure | None:
        """Run a script. Returns the place where it certainly stops with an error, or None."""
        module = ModuleValue(script)
        self._modules[script.path] = module
        statements = self._read(script)
        if statements is None:
            raise OutOfSteps
        module.frame.names["__name__"] = "__main__"
        module.frame.names["__file__"] = UNKNOWN
        try:
            self.block(statements, module.frame)
        except Stopped as stopped:
            return stopped.failure if stopped.failure is not None and stopped.failure.is_certain else None
        except Signal:
            return None
        return None

    def import_module(self, file: SourceFile) -> ModuleValue:
        """Return a module, run when it is imported first."""
        if file.path not in self._modules:
            module = self._modules[file.path] = ModuleValue(file)
            module.frame.names["__name__"] = file.path.removesuffix(".py").replace("/", ".")
            statements = self._read(file)
            module.frame.region = self.region
            with contextlib.suppress(Returned, LeftLoop):
                self.block(statements or (), module.frame)
        return self._modules[file.path]

    def module_named(self, name: str, frame: Frame) -> ModuleValue | None:
        """Return the user module that a module imports by this name; None if it is not one."""
        file = self._find_module(frame.module.file, name, 0)
        return self.import_module(file) if file is not None else None

    def block(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        guards = len(self._guards)
        try:
            for statement in statements:
                self._step()
                self._executed.add(statement)
                handler = getattr(self, f"_do_{type(statement).__name__}", None)
                if handler is not None:
                    handler(statement, frame)
        finally:
            del self._guards[guards:]

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self._statement = node.value
        self.value(node.value, frame)

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self._assign(target, value, frame)

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._assign(node.target, self.value(node.value, frame), frame)

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        before, more = self.value(node.target, frame), self.value(node.value, frame)
        if isinstance(before, ListValue):
            added = self.items(more)
            before.size_origin = mixed(before.size_origin, self.own)
            known = (
                before.items is not None and added is not None and isinstance(node.op, ast.Add) and not before.is_set
            )
            self.change(before, lambda items: [*items, *added] if known and added is not None else None)
            return
        if isinstance(before, DictValue):
            merging = more.items if isinstance(more, DictValue) else None
            self.change(before, lambda items: {**items, **merging} if merging is not None else None)
            return
        if self.operated(before, node.target, frame):
            return
        self._assign(node.target, self._computed(type(node.op), before, more), frame)

    def _do_Delete(self, node: ast.Delete, frame: Frame) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                frame.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                receiver, key = self.value(target.value, frame), self.value(target.slice, frame)
                if isinstance(receiver, DictValue) and isinstance(key, (str, int)):
                    self.change(receiver, functools.partial(_without, key))
                else:
                    forget(receiver)
            elif isinstance(target, ast.Attribute):
                forget(self.value(target.value, frame))

    def _do_Global(self, node: ast.Global, frame: Frame) -> None:
        frame.outside.update(node.names)

    def _do_Nonlocal(self, node: ast.Nonlocal, frame: Frame) -> None:
        frame.outside.update(node.names)

    def _do_Return(self, node: ast.Return, frame: Frame) -> None:
        raise Returned(self.value(node.value, frame) if node.value is not None else None, node)

    def _do_Break(self, node: ast.Break, frame: Frame) -> None:
        raise LeftLoop(node)

    def _do_Continue(self, node: ast.Continue, frame: Frame) -> None:
        raise LeftLoop(node)

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> None:
        raised = self.value(node.exc, frame) if node.exc is not None else UNKNOWN
        name = raised.name if isinstance(raised, External) else ""
        if "SystemExit" in name or "KeyboardInterrupt" in name:
            status = self.value(node.exc.args[0], frame) if isinstance(node.exc, ast.Call) and node.exc.args else None
            self.stop(node, frame, status)
        stopped = self._stopped(self._failure(node, frame))
        owner = raised.owner if isinstance(raised, Instance) else raised
        classes = owner.order() if isinstance(owner, ClassValue) else [owner]
        stopped.kinds = [
            each.node.name if isinstance(each, ClassValue) else each.last.removesuffix("()")
            for each in classes
            if isinstance(each, (ClassValue, External))
        ]
        raise stopped

    def _do_Assert(self, node: ast.Assert, frame: Frame) -> None:
        outcome = truth(self.value(node.test, frame))
        self._note_check([node], outcome)
        if outcome is False:
            raise self._stopped(
                Failure(frame.module.file, node.test, self.show(node.test, frame, outcome=False), is_assert=True)
            )

    def _do_If(self, node: ast.If, frame: Frame) -> None:
        self.takes_several = False
        value = self.value(node.test, frame)
        outcome = truth(value)
        is_assumed = self.takes_several and outcome is not None
        self._note_outcome(node.test, outcome, frame)
        self._note_check((*node.body, *node.orelse), outcome)
        if outcome is None:
            maybe = not self._comes_round(node.test, frame)
            self._either([node.body, node.orelse], frame, maybe=maybe, test=node.test, own=truth_origin(value))
            return
        guards, assumed = len(self._guards), self._assumed
        self._guards.append(Guard(frame.module.file, node.test, outcome, frame, len(self._calls)))
        self._assumed += is_assumed
        try:
            self.block(node.body if outcome else node.orelse, frame)
        finally:
            self._assumed = assumed if is_assumed else self._assumed
            del self._guards[guards:]

    def _either(
        self,
        blocks: Sequence[Sequence[ast.stmt]],
        frame: Frame,
        *,
        maybe: bool = True,
        test: ast.expr | None = None,
        own: Unknown = UNKNOWN,
    ) -> None:
        """Follow blocks when it is unknown which one runs.

        Args:
            maybe: whether it may be the same one forever.
            test: the condition that decides between two.
            own: the origin of the condition's value.
        """
        before = frame.names
        ends: list[tuple[dict[str, Any], Signal | None]] = []
        starts: list[int] = []
        outside = self._branches
        self._forks += 1
        fork = self._forks
        for number, block in enumerate(blocks):
            frame.names = dict(before)
            starts.append(len(self.events))
            self._branches = {**outside, fork: Branch(number, test, isinstance(own, Own))}
            with self._in_region(maybe=maybe, own=own):
                try:
                    self.block(block, frame)
                    ends.append((frame.names, None))
                except Signal as signal:
                    ends.append((frame.names, signal.without_traceback()))
        self._branches = outside
        live = [names for names, signal in ends if signal is None]
        signals = [signal for _, signal in ends if signal is not None]
        frame.names = live[0] if live else ends[0][0]
        for other in live[1:]:
            self._merge_names(frame, other, own)
        # What is not known may still be a condition that some ranks alone come to.
        is_behind = not isinstance(own, Own) and self.own is OF_RANK and frame.own_of_call is not OF_RANK
        if test is not None and (isinstance(own, Own) or is_behind) and not self._muted:
            called = [self.events[starts[0] : starts[1]], self.events[starts[1] :]]
            deciding = own if isinstance(own, Own) else OF_RANK
            self._note_parting(test, deciding, [signal for _, signal in ends], called, frame, is_behind=is_behind)
        leaving = [each for each in signals if not (isinstance(each, Stopped) and each.failure is not None)]
        if not live:
            self._end_together(signals, leaving)
        for each in leaving:
            if isinstance(each, Returned):
                frame.returned.append(each.value)
                frame.own = mixed(frame.own, own)
        self._assumed += bool(leaving)
        self._left += any(isinstance(each, LeftLoop) for each in leaving)
        self._may_have_exited |= any(isinstance(each, Stopped) for each in leaving)

    def _note_parting(
        self,
        test: ast.expr,
        own: Own,
        signals: Sequence[Signal | None],
        called: Sequence[Sequence[Event]],
        frame: Frame,
        *,
        is_behind: bool,
    ) -> None:
        """Record the collectives that only some ranks reach after a condition that each decides for itself.

        Args:
            is_behind: whether only some ranks reach the condition.
        """
        stopped = next((each for each in signals if isinstance(each, Stopped)), None)
        if stopped is not None:
            # Its launcher ends the other ranks, too, unless the rank itself goes on.
            if self._tries and not stopped.is_exit and not own.of_rank:
                self._raised.append(stopped.kinds)
            return
        file, depth = frame.module.file, self._maybe + 1
        left = next((each for each in signals if isinstance(each, (Returned, LeftLoop))), None)
        if left is None or None not in signals:
            event = only_in_one(called, depth)
            if event is not None and not is_behind:
                self.divergences.append(Divergence("if", test, test, file, event, own.of_rank))
            return
        if isinstance(left, Returned) and left.value is None and self._is_step(frame) and self.trained_by is not None:
            # The others wait for the gradients of this rank.
            self.divergences.append(Divergence("return", left.node, test, file, self.trained_by, is_behind))
            return
        number = signals.index(left)
        done = names_of(called[number]) - names_of(called[1 - number])
        early = Early(type(left.node).__name__.lower(), left.node, test, file, len(self.events), done, is_behind)
        if isinstance(left, LeftLoop) and self._early:
            self._early[-1].append(early)
        elif isinstance(left, Returned) and (is_behind or not own.of_rank):
            frame.early.append(early)

    def _is_step(self, frame: Frame) -> bool:
        """Return whether a function returns the loss of a step to Lightning, or None for a batch to skip."""
        function = frame.function
        foreign = function.owner.foreign if function is not None and function.owner is not None else None
        is_module = foreign is not None and foreign.last == "LightningModule"
        return is_module and function is not None and getattr(function.node, "name", "") == "training_step"

    def _end_together(self, signals: Sequence[Signal], leaving: Sequence[Signal]) -> None:
        """End the block as all of its branches do; one that fails only if all do."""
        returned = [each.value for each in leaving if isinstance(each, Returned)]
        if returned and len(returned) == len(leaving):
            value = returned[0]
            for other in returned[1:]:
                value = merged(value, other)
            raise Returned(value, next(each.node for each in leaving if isinstance(each, Returned)))
        raise (leaving or signals)[0].without_traceback()

    def _do_For(self, node: ast.For, frame: Frame) -> None:
        iterable = self.value(node.iter, frame)
        for name in ("__iter__", "__next__", "__getitem__") if isinstance(iterable, Instance) else ():
            if (found := iterable.owner.lookup(name)) is not None:
                self.maybe_called(Bound(found[0], (iterable,)), node.iter, frame)
        items = self.items(iterable)
        if not self._muted:
            place = (frame.module.file.path, node.lineno, node.col_offset)
            self.rounds.setdefault(place, set()).add(len(items) if items is not None else -1)
        if items is None or len(items) > (_MAX_LIGHT_ITEMS if _is_light(node) else _MAX_ITEMS):
            one = one_of(items or ()) if items is not None else item_of(iterable, node.iter)
            # Where the loop may be left, the ranks may have agreed on when.
            own = UNKNOWN if _may_leave(node) else size_origin(iterable)
            start, depth = len(self.events), self._maybe
            rounds = len(items) if items is not None and not _may_leave(node) else None
            with self._repeated(rounds):
                self._loop(node, frame, lambda: self._assign(node.target, one, frame), own)
            if any(called_name(event) == "backward" for event in self.events[start:]):
                self.trained_on += loaders_in(iterable)
            self._note_rounds("for", node.iter, own, start, depth, frame)
            return
        for number, item in enumerate(items):
            left = self._left
            self._assign(node.target, item, frame)
            with self._round():
                try:
                    self.block(node.body, frame)
                except LeftLoop as signal:
                    if signal.is_break:
                        return
            if left != self._left and number + 1 < len(items):
                # It may be over.
                rest = one_of(items[number + 1 :])
                self._loop(node, frame, lambda rest=rest: self._assign(node.target, rest, frame))  # type: ignore[misc]
                return
        self.block(node.orelse, frame)

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While, frame: Frame) -> None:
        if truth(self.value(node.test, frame)) is False:
            self.block(node.orelse, frame)
            return
        start, depth = len(self.events), self._maybe
        with self._repeated(None):
            self._loop(node, frame, lambda: self.value(node.test, frame))
        self._note_rounds("while", node.test, truth_origin(self.value(node.test, frame)), start, depth, frame)

    @contextlib.contextmanager
    def _repeated(self, rounds: int | None) -> Iterator[None]:
        """Yield the body of a loop that is followed once for so many rounds."""
        self._rounds.append(rounds)
        try:
            yield
        finally:
            self._rounds.pop()

    def _note_rounds(self, kind: str, node: ast.expr, own: Unknown, start: int, depth: int, frame: Frame) -> None:
        """Record the collective of a loop whose number of rounds depends on a rank's own value."""
        event = next((each for each in self.events[start:] if each.waits and each.depth <= depth), None)
        if isinstance(own, Own) and not own.of_rank and event is not None and not self._muted:
            self.divergences.append(Divergence(kind, node, node, frame.module.file, event))

    @contextlib.contextmanager
    def _round(self) -> Iterator[None]:
        """Yield one round of a loop."""
        early: list[Early] = []
        start, depth = len(self.events), self._maybe
        self._early.append(early)
        try:
            yield
        finally:
            self._early.pop()
            self._end_early(early, start, depth)

    def _loop(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        frame: Frame,
        begin: Callable[[], Any],
        own: Unknown = UNKNOWN,
    ) -> None:
        """Follow the body of a loop once if its number of rounds is unknown; that number may have an origin."""
        assumed = self._assumed
        if self._loops:
            for name in _assigned_names(node):
                frame.names[name] = merged(frame.names.get(name), UNKNOWN)
        else:
            self._muted += 1
            self._loops += 1
            before = dict(frame.names)
            try:
                with self._in_region(maybe=False, own=own), contextlib.suppress(Signal):
                    begin()
                    self.block(node.body, frame)
            finally:
                self._muted -= 1
                self._loops -= 1
            self._merge_names(frame, before, own)
        before = dict(frame.names)
        self._loops += 1
        try:
            with self._in_region(maybe=False, own=own), self._round():
                begin()
                self.block(node.body, frame)
        except Returned as signal:
            frame.returned.append(signal.value)
            assumed += 1
        except LeftLoop:
            pass
        except Stopped as stopped:
            assumed += stopped.failure is None
        finally:
            self._loops -= 1
        self._assumed = assumed
        self._merge_names(frame, before, own)
        self.block(node.orelse, frame)

    def _do_With(self, node: ast.With, frame: Frame) -> None:
        may_keep, unsynced = False, 0
        entered_objects: list[Instance] = []
        for item in node.items:
            context = self.value(item.context_expr, frame)
            entered = context
            # What is left of it may keep an exception from the rest.
            may_keep |= isinstance(context, (Instance, Unknown))
            may_keep |= isinstance(context, External) and context.last.removesuffix("()") in _SUPPRESSING
            unsynced += isinstance(context, External) and context.last == "no_sync()"
            if isinstance(context, Instance) and (found := context.owner.lookup("__enter__")) is not None:
                entered = self.call(Bound(found[0], (context,)), (), {}, item.context_expr, frame)
                entered_objects.append(context)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, entered, frame)
        self._tries += may_keep
        self._unsynced += unsynced
        try:
            self.block(node.body, frame)
        except Stopped as stopped:
            if stopped.is_exit or not may_keep:
                raise
        finally:
            self._tries -= may_keep
            self._unsynced -= unsynced
        for each in reversed(entered_objects):
            if (left := each.owner.lookup("__exit__")) is not None:
                call = Bound(left[0], (each, None, None, None))
                self.call(call, (), {}, node.items[0].context_expr, frame)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try, frame: Frame) -> None:
        before = dict(frame.names)
        ended: Signal | None = None
        self._tries += bool(node.handlers)
        exhausted, self.exhausted = self.exhausted, UNKNOWN
        raised, self._raised = self._raised, []
        try:
            self.block(node.body, frame)
        except Signal as signal:
            ended = signal.without_traceback()
        finally:
            self._tries -= bool(node.handlers)
        self._note_end_of_data(node, frame)
        self._note_raised(node, frame)
        self.exhausted, self._raised = exhausted, raised
        is_caught = isinstance(ended, Stopped) and bool(node.handlers) and not ended.is_exit
        if ended is None or is_caught:
            try:
                self._after_body(node, frame, before, is_caught=is_caught)
            except Signal as signal:
                ended = signal.without_traceback()
            else:
                ended = None
        self.block(node.finalbody, frame)
        if ended is not None:
            raise ended.without_traceback()

    _do_TryStar = _do_Try

    def _note_end_of_data(self, node: ast.Try, frame: Frame) -> None:
        """Note that a rank leaves its loop where its own data end: `except StopIteration: break`."""
        own = self.exhausted
        if not isinstance(own, Own) or not self._early or self._muted:
            return
        for handler in node.handlers:
            leaving = next((each for each in handler.body if isinstance(each, ast.Break)), None)
            if leaving is not None and handler.type is not None and "StopIteration" in ast.unparse(handler.type):
                early = Early("break", leaving, handler.type, frame.module.file, len(self.events), Counter())
                self._early[-1].append(early)

    def _note_raised(self, node: ast.Try, frame: Frame) -> None:
        """Record that a rank leaves its round of a loop after an exception caused by its own data."""
        for kinds in self._raised if self._early and not self._muted else ():
            for handler in node.handlers:
                leaving = next((each for each in handler.body if isinstance(each, (ast.Break, ast.Continue))), None)
                caught = set(names_in(handler.type)) if handler.type is not None else set()
                if handler.type is not None and leaving is not None and caught & {*kinds, "Exception", "BaseException"}:
                    kind = type(leaving).__name__.lower()
                    early = Early(kind, leaving, handler.type, frame.module.file, len(self.events), Counter())
                    self._early[-1].append(early)
                    break

    def _after_body(self, node: ast.Try, frame: Frame, before: dict[str, Any], *, is_caught: bool) -> None:
        if not is_caught:
            self.block(node.orelse, frame)
        after = frame.names
        for handler in node.handlers:
            frame.names = dict(before)
            self._tries += 1
            try:
                with self._in_region(maybe=True):
                    if handler.name:
                        frame.names[handler.name] = UNKNOWN
                    self.block(handler.body, frame)
            except Signal:
                # An exception is rare: what it leads to is not followed further.
                frame.names = after
            finally:
                self._tries -= 1
            other, frame.names = frame.names, after
            self._merge_names(frame, {**after, **other})

    def _do_Match(self, node: ast.Match, frame: Frame) -> None:
        self.value(node.subject, frame)
        for case in node.cases:
            for name in _assigned_names(case.pattern):
                frame.names[name] = UNKNOWN
        self._either([*(case.body for case in node.cases), []], frame)

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        made: Any = self._function(node, frame)
        if frame.is_class and {"setter", "deleter"} & made.decorators:
            frame.names[f"{node.name}.setter"] = made
            return
        for decorator in reversed(node.decorator_list):
            made = self._decorated(made, self.value(decorator, frame), decorator, frame)
        self._assign_name(node.name, made, frame)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _decorated(self, function: Any, decorator: Any, node: ast.expr, frame: Frame) -> Any:
        if isinstance(decorator, (FunctionValue, Bound, ClassValue)):
            return self.call(decorator, (function,), {}, node, frame)
        if isinstance(decorator, External):
            made = self.functions.decorated(self, function, decorator)
            if decorator.name.partition("(")[0].endswith(_DECORATES_MAIN) and frame.names.get("__name__") == "__main__":
                self.call(made, (), {}, node, frame, is_open=True)
            return made
        return UNKNOWN

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:
        bases = tuple(self.value(base, frame) for base in node.bases)
        inner = Frame(frame.module, frame, region=self.region, is_class=True)
        with contextlib.suppress(Returned, LeftLoop):
            self.block(node.body, inner)
        bases = tuple(base if isinstance(base, (ClassValue, External)) else External("unknown") for base in bases)
        bases = tuple(base for base in bases if not (isinstance(base, External) and base.name == "builtins.object"))
        fields = tuple(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each.annotation)
        )
        decorators = [end_of_decorator(each) for each in node.decorator_list]
        made = ClassValue(node, bases, inner.names, "dataclass" in decorators, fields)
        for value in inner.names.values():
            if isinstance(value, FunctionValue) and value.owner is None:
                value.owner = made
        shown: Any = made if self._is_made(made, node, frame) else UNKNOWN
        for decorator in reversed(node.decorator_list):
            shown = self._decorated(shown, self.value(decorator, frame), decorator, frame)
        self._assign_name(node.name, shown, frame)

    def _is_made(self, made: ClassValue, node: ast.ClassDef, frame: Frame) -> bool:
        """Run what a base does with a new class; False where a user-defined metaclass makes it."""
        keywords = {each.arg or "": self.value(each.value, frame) for each in node.keywords}
        is_own = isinstance(keywords.pop("metaclass", None), (ClassValue, FunctionValue))
        found = made.lookup("__init_subclass__", above=made)
        if found is not None:
            self.call(
                found[0], (made,), keywords, ast.copy_location(ast.Call(ast.Name(node.name), [], []), node), frame
            )
        return not is_own

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            module = self.module_named(alias.name, frame)
            found: Any = module or External(alias.name)
            root, *rest = alias.name.split(".")
            if alias.asname or not rest:
                self._assign_name(alias.asname or root, found, frame)
                continue
            package: Any = frame.names.get(root)
            if not isinstance(package, External):
                package = self.module_named(root, frame) or External(root)
                self._assign_name(root, package, frame)
            at = package
            for part in rest[:-1]:
                further = at.attributes.get(part) if isinstance(at, External) else None
                if isinstance(at, External):
                    at.attributes[part] = further = further or External(f"{at.name}.{part}")
                at = further
            if isinstance(at, External) and module is not None:
                at.attributes[rest[-1]] = found
            elif isinstance(at, ModuleValue):
                at.frame.names[rest[-1]] = found

    def _import_all(self, module: ModuleValue | None, frame: Frame) -> None:
        """`from module import *`."""
        names = module.frame.names if module is not None else {}
        listed = self.items(names.get("__all__", UNKNOWN)) or []
        for name in listed if module is not None else ():
            part = self._find_module(module.file, name, 1) if isinstance(name, str) and module is not None else None
            if part is not None and name not in names:
                names[name] = self.import_module(part)
        found = {name: value for name, value in names.items() if not name.startswith("_") or name in listed}
        frame.names.update({name: value for name, value in found.items() if not listed or name in listed})

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        here = frame.module.file
        file = self._find_module(here, node.module or "", node.level)
        module = self.import_module(file) if file is not None else None
        for alias in node.names:
            if alias.name == "*":
                self._import_all(module, frame)
                continue
            inner = f"{node.module}.{alias.name}" if node.module else alias.name
            if module is not None and alias.name in module.frame.names:
                found = module.frame.names[alias.name]
            elif (part := self._find_module(here, inner, node.level)) is not None:
                found = self.import_module(part)
            else:
                is_own = module is not None or node.level
                package = External(node.module or "")
                found = UNKNOWN if is_own else self.functions.attribute(self, package, alias.name)
            self._assign_name(alias.asname or alias.name, found, frame)


def _is_light(node: ast.For | ast.AsyncFor) -> bool:
    """Return whether a loop only assigns names, attributes and items: `for key in data: setattr(args, key, ...)`."""
    inside = [each for statement in node.body for each in ast.walk(statement)]
    return len(inside) <= _LIGHT and not any(isinstance(each, (ast.For, ast.While, ast.Await)) for each in inside)


def _may_leave(node: ast.For | ast.AsyncFor) -> bool:
    """Return whether something in a loop may end it before its last item."""
    return any(isinstance(each, (ast.Break, ast.Return)) for each in ast.walk(node))


def _without(key: Any, items: dict[Any, Any]) -> dict[Any, Any]:
    return {name: item for name, item in items.items() if name != key}


def _assigned_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a loop or a pattern assigns."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, (ast.MatchAs, ast.MatchStar)) and each.name:
            yield each.name

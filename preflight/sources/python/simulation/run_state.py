"""Where a simulated run is: its uncertain regions, its calls, its end."""

from __future__ import annotations

import ast
import bisect
import contextlib
import copy
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from preflight._util.budget import spend
from preflight._util.redaction import scrub
from preflight.sources.base import SourceFile
from preflight.sources.python.collectives import comes_round, is_collective_event
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.simulation import coverage, frozen_parameters
from preflight.sources.python.simulation.coverage import Part
from preflight.sources.python.simulation.data_origins import exchanges_buffers
from preflight.sources.python.simulation.divergence import LAYER, WRAPS, Divergence, Early, missed, waits
from preflight.sources.python.simulation.frozen_parameters import Switch
from preflight.sources.python.simulation.open_texts import function_of
from preflight.sources.python.simulation.values import (
    AGREED,
    OF_RANK,
    UNKNOWN,
    ClassValue,
    External,
    Frame,
    FunctionValue,
    ModuleValue,
    NotKnown,
    OutOfSteps,
    Own,
    TooLong,
    Unknown,
    merged,
    mixed,
    native,
    truth,
)

#: Nodes that are followed in one run.
MAX_STEPS = 40_000
#: Steps after which calls of so many steps are left out.
_FIRST_CHECK, _LONG_CALL = 16_000, 4_000
#: Bytes of the modules of one run.
_MAX_TEXT = 2 * 1024 * 1024
#: Calls that are kept of one run.
_MAX_EVENTS = 5_000
#: Characters of a value in a message.
_MAX_SHOWN = 60


#: The file of an expression, and its first and last line and column.
ExpressionPlace: TypeAlias = tuple[str, int, int, int, int]


class Guard(NamedTuple):
    """A condition that was known when the program reached it, in a function at this depth of calls."""

    file: SourceFile
    test: ast.expr
    outcome: bool
    frame: Frame
    depth: int


class Branch(NamedTuple):
    """The branch of an unknown condition that is followed; `test` is None for the cases of a `match` or a call.

    Args:
        is_own: whether each rank may take another branch.
    """

    number: int
    test: ast.expr | None = None
    is_own: bool = False


class Event(NamedTuple):
    """A call of a function that is not the user's own.

    Args:
        name: the dotted name of the function; empty if unknown.
        calls: the calls that led the program to it, itself last, each with its file.
        doubt: 0 if the program certainly reaches it, 1 in a loop, or after it may have ended, 2 under an unknown
            condition.
        guards: the known conditions around it, outermost first.
        depth: the number of unknown conditions around it.
        waits: whether a rank waits for the others in it.
        is_layer: whether it is a layer whose gradients the ranks wait for, as no search for unused ones is made.
        branches: the branch that is taken at each unknown condition around it.
        times: how often it is made where the program is followed once; None if unknown.
        is_statement: whether its result is unused.
        function: the called object, if it is of a library.
        within: the user's own function that contains the call.
    """

    name: str
    file: SourceFile
    node: ast.Call
    calls: tuple[tuple[SourceFile, ast.expr], ...]
    doubt: int
    guards: tuple[Guard, ...]
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    depth: int = 0
    waits: bool = False
    is_layer: bool = False
    is_statement: bool = False
    function: External | None = None
    within: ast.AST | None = None
    branches: Mapping[int, Branch] = {}
    times: int | None = 1

    def excludes(self, other: Event) -> bool:
        """Return whether only one of the two calls can be made: they are in different branches of one condition."""
        return any(other.branches.get(fork, branch) != branch for fork, branch in self.branches.items())

    @property
    def path(self) -> tuple[tuple[str, int, int], ...]:
        """Return the places of its calls."""
        return tuple((file.path, node.lineno, node.col_offset) for file, node in self.calls)


class Run(NamedTuple):
    """The run of one process of a job.

    Args:
        is_complete: whether the run was followed to its end.
        has_left_out: whether it was followed to its end, except for calls that take too many steps.
        role: `worker` or `server`; empty if there are no servers.
        is_of_any: whether it represents any rank: known values hold for all of them.
        checks: whether checks of the program, each of which may end it, were decided.
        variables: the variables that it sets.
        values: the values of expressions at some places, each time.
        outcomes: the outcomes of conditions, by file, line and column; None if unknown.
        rounds: the numbers of items of loops, by file, line and column; -1 if unknown.
        divergences: the collectives that some ranks may not reach.
        is_wrapped: whether it has reached a call that makes ranks exchange their gradients.
        named_ranks: the ranks that it compares its own with.
        asks_for_rank: whether its behaviour may depend on its rank.
        parsers: the calls that parse a line.
        entered: the functions that it certainly calls, by file, first and last line.
        not_reached: the parts of its modules that it never reaches.
        not_set: unset variables that have a default in the program.
        switches: assignments that take parameters out of training or put them back.
        place: the rank, and the local rank; None for any rank, or if unknown.
        undivided: the loaders of undivided data, each with its `data_unsplit` kind and, for a stream, the method that
            reads it.
    """

    events: Sequence[Event]
    failure: Failure | None
    is_complete: bool
    role: str = ""
    is_of_any: bool = False
    checks: frozenset[bool] = frozenset()
    variables: frozenset[str] = frozenset()
    values: Mapping[ExpressionPlace, Sequence[Any]] = {}
    outcomes: Mapping[tuple[str, int, int], frozenset[bool | None]] = {}
    rounds: Mapping[tuple[str, int, int], set[int]] = {}
    divergences: Sequence[Divergence] = ()
    is_wrapped: bool = False
    named_ranks: frozenset[int] = frozenset()
    asks_for_rank: bool = True
    parsers: Sequence[ParserCall] = ()
    entered: Collection[tuple[str, int, int]] = ()
    not_reached: Collection[Part] = ()
    not_set: Sequence[str] = ()
    undivided: Sequence[tuple[Event, str, FunctionValue | None]] = ()
    place: tuple[int | None, int | None] = (None, None)
    switches: Sequence[Switch] = ()
    has_left_out: bool = False


class ParserCall(NamedTuple):
    """A call that parses a line.

    Args:
        options: every option that the parser declares; empty if it may take others, or parses another line.
    """

    file: SourceFile
    node: ast.expr
    options: tuple[str, ...]


class Parsed(NamedTuple):
    """The statements of a module, and the names of the attributes that it sets."""

    tree: ast.Module
    stored: frozenset[str]


def _expressions_on(tree: ast.Module, lines: Sequence[int]) -> Iterator[ast.expr]:
    """Yield the expressions of a module that extend over one of these lines, which are in order."""
    waiting: list[ast.AST] = [tree] if lines else []
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            decorators = getattr(child, "decorator_list", ())
            first = min((each.lineno for each in decorators), default=getattr(child, "lineno", 0))
            number = bisect.bisect_left(lines, first)
            # Parts such as a list of parameters have no place of their own.
            if not first or (number < len(lines) and lines[number] <= getattr(child, "end_lineno", 0)):
                waiting.append(child)
                if isinstance(child, ast.expr):
                    yield child


class Failure(NamedTuple):
    """Where the program certainly stops with an error.

    Args:
        node: the condition that decides it, or what raises.
        shown: what is seen there.
    """

    file: SourceFile
    node: ast.AST
    shown: str
    is_parser: bool = False
    is_assert: bool = False
    is_certain: bool = True


class Signal(Exception):
    """The reason why a block ends before its last statement."""

    def without_traceback(self) -> Signal:
        """Return a copy without the traceback, whose frames would keep everything that the run created alive."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made


class Returned(Signal):
    def __init__(self, value: Any, node: ast.AST) -> None:
        super().__init__()
        self.value = value
        self.node = node


class LeftLoop(Signal):
    """`break`, or `continue`."""

    def __init__(self, node: ast.Break | ast.Continue) -> None:
        super().__init__()
        self.node = node
        self.is_break = isinstance(node, ast.Break)


class Stopped(Signal):
    """An exception or an exit; `failure` is None for an exit that reports none.

    Args:
        kinds: the classes of an exception that the program raises, by their last names.
    """

    def __init__(self, failure: Failure | None, *, is_exit: bool = False, kinds: Collection[str] = ()) -> None:
        super().__init__()
        self.failure = failure
        self.is_exit = is_exit
        self.kinds = kinds


#: What returns the group of all ranks: torch 2.13, Paddle 3.3.1.
_GROUPS_OF_ALL = ("_get_default_group()", "_get_global_group()", "WORLD")


def _product(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else math.prod(each for each in counts if each is not None)


def _is_group_of_all(value: Any) -> bool:
    """Return whether a value is the group of all ranks, or one that is made without naming ranks."""
    if not isinstance(value, External):
        return False
    is_new = value.last == "new_group()" and not value.arguments and "ranks" not in value.keywords
    return is_new or value.last in _GROUPS_OF_ALL


#: The user module that a name in a file stands for; None if it is none.
FindModule = Callable[[SourceFile, str, int], "SourceFile | None"]


class RunState:
    """Where a run is, how certain that is, and what it has called so far."""

    def __init__(
        self,
        functions: Any,
        find_module: FindModule,
        parse: Callable[[SourceFile], Parsed | None],
        wanted: Callable[[SourceFile], Collection[ExpressionPlace]],
    ) -> None:
        self.functions = functions
        self.events: list[Event] = []
        self.outcomes: dict[tuple[str, int, int], set[bool | None]] = {}
        self.values: dict[ExpressionPlace, list[Any]] = {}
        #: How many items the loops at some places had.
        self.rounds: dict[tuple[str, int, int], set[int]] = {}
        self.entered: set[tuple[str, int, int]] = set()
        self._called_functions: set[ast.AST] = set()
        self._executed: set[ast.AST] = set()
        self._watched: dict[int, ExpressionPlace] = {}
        self._wanted = wanted
        self._find_module = find_module
        self._parse = parse
        self._modules: dict[str, ModuleValue] = {}
        self._read_bytes = 0
        self._frames: list[Frame] = []
        self._steps = 0
        self._regions: list[object] = []
        self._maybe = 0
        self._assumed = 0
        self._may_have_exited = False
        #: Whether the condition that is evaluated was decided for more than one rank.
        self.takes_several = False
        #: How often a loop may have been left.
        self._left = 0
        self._muted = 0
        #: Where the conditions come from under which a value is given now.
        self.own: Unknown = UNKNOWN
        #: How many calls have been made in which a rank may wait for the others.
        self._waited = 0
        #: The branch that is followed at each unknown condition.
        self._branches: dict[int, Branch] = {}
        self._forks = 0
        #: Whether the function that is followed is one of several that a name may stand for.
        self._is_one_of_several = False
        #: The models that `fully_shard` has divided in place.
        self.sharded: list[Any] = []
        #: The loaders of loops with a backward pass in them.
        self.trained_on: list[External] = []
        #: Where the lengths come from of what `next` was called with.
        self.exhausted: Unknown = UNKNOWN
        #: The classes of each exception that this rank raises because of its own data.
        self._raised: list[Collection[str]] = []
        self._loops = 0
        #: The numbers of rounds of the loops that are followed once.
        self._rounds: list[int | None] = []
        #: The expression that is a statement of its own.
        self._statement: ast.expr | None = None
        #: How many of the events are waited in, or are layers whose gradients are waited for.
        self._met = 0
        #: How often an attribute, an item or a name of another function was given a value.
        self._changes = 0
        #: What calls without any other effect returned, and after how many changes.
        self._results: dict[Hashable, tuple[int, Any]] = {}
        #: Functions that were called, which may keep what they returned.
        self._kept: list[FunctionValue] = []
        self._tries = 0
        self._calls: list[tuple[FunctionValue, ast.expr, SourceFile]] = []
        #: The steps that were taken when each of them began, and those at which long ones are looked for next.
        self._starts: list[int] = []
        self._next_check = _FIRST_CHECK
        #: The functions that are not followed because they take too many steps.
        self.left_out: set[ast.AST] = set()
        self._guards: list[Guard] = []
        self.divergences: list[Divergence] = []
        #: The branches by which a rank may leave the loops under way.
        self._early: list[list[Early]] = []
        self.is_wrapped = False
        #: The call of the trainer whose hooks are followed.
        self.trained_by: Event | None = None
        #: Whether Paddle's fleet exchanges gradients without servers.
        self._is_collective = False
        #: Models around whose layers all have to be used.
        self.unsearched = 0
        #: Whether a model is not in its training mode any more.
        self.has_evaluated = False
        #: Contexts around in which gradients are not exchanged.
        self._unsynced = 0
        #: Names of attributes that some module gives a value.
        self._stored: set[str] = set()
        #: Ranks that the program compares its own with.
        self.named_ranks: set[int] = set()
        self.parsers: list[ParserCall] = []
        self.switches: list[Switch] = []
        #: Whether checks of the program were decided.
        self.checks: set[bool] = set()

    def _stopped(self, failure: Failure | None, *, is_exit: bool = False) -> Stopped:
        """Return the signal for the end of the program, as certain as the way to this place is."""
        if failure is not None:
            failure = failure._replace(is_certain=not self._is_doubtful)
        return Stopped(failure, is_exit=is_exit)

    @property
    def _is_doubtful(self) -> bool:
        return bool(self._maybe or self._loops or self._tries or self._assumed or self._may_have_exited)

    @property
    def region(self) -> object:
        """Return the innermost uncertain region; None outside of all."""
        return self._regions[-1] if self._regions else None

    @contextlib.contextmanager
    def _in_region(self, *, maybe: bool, own: Unknown = UNKNOWN) -> Iterator[None]:
        """Yield an uncertain part of the program.

        Args:
            maybe: whether it may not run at all.
            own: the origin of its condition.
        """
        self._regions.append(object())
        self._maybe += maybe
        guards, before = len(self._guards), self.own
        self.own = mixed(before, own)
        try:
            yield
        finally:
            self._regions.pop()
            self._maybe -= maybe
            self.own = before
            del self._guards[guards:]

    def _merged(self, one: Any, other: Any, own: Unknown = UNKNOWN) -> Any:
        """Return the value of a name with two possible values, whose condition has a known origin."""
        if one is other:
            return one
        found, origin = merged(one, other), mixed(own, self.own)
        if origin is OF_RANK and mixed(one, other) is AGREED:
            return AGREED
        return merged(found, origin) if isinstance(found, Unknown) and isinstance(origin, Own) else found

    def _step(self) -> None:
        self._steps += 1
        if self._steps % 100 == 0:
            spend(100)
        if self._steps > MAX_STEPS:
            raise OutOfSteps
        if self._steps >= self._next_check:
            self._leave_long_call()

    def _leave_long_call(self) -> None:
        """End a call that takes most of the steps of what called it: a recursion, or one of many in a large program."""
        self._next_check = self._steps + _LONG_CALL
        taken = [self._steps - start for start in self._starts]
        nodes = [function.node for function, _, _ in self._calls]
        for depth, node in enumerate(nodes):
            if taken[depth] >= _LONG_CALL and nodes.count(node) > 1:
                raise TooLong(depth)
        # What the script itself calls is the program.
        for depth in reversed(range(1, len(nodes))):
            if _LONG_CALL <= taken[depth] < self._steps // 2:
                raise TooLong(depth)

    def stop(self, node: ast.AST, frame: Frame, status: Any) -> None:
        """End the program with a status."""
        is_failure = not isinstance(status, (Unknown, External)) and status not in (None, 0, False)
        raise self._stopped(self._failure(node, frame) if is_failure else None, is_exit=True)

    def note_parser(self, node: ast.expr, frame: Frame, options: tuple[str, ...]) -> None:
        """Note a call that parses a line."""
        if not self._muted:
            self.parsers.append(ParserCall(frame.module.file, node, () if self._is_doubtful else options))

    def note_switch(self, target: ast.Attribute, value: Any, frame: Frame) -> None:
        """Note what an attribute or a method does to the parameters that are trained."""
        parsed, function = self._parse(frame.module.file), frame.function
        if target.attr not in frozen_parameters.TRAINED_IF or parsed is None or self._muted:
            return
        around = parsed.tree if function is None else function.node
        switch = frozen_parameters.switch(target, value, frame.module.file, around, len(self.events))
        if switch is not None:
            self.switches.append(switch)

    def refuse(self, node: ast.AST, frame: Frame, why: str) -> None:
        """End the program because its parser refuses the line."""
        raise self._stopped(Failure(frame.module.file, node, why, is_parser=True))

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call outside the program's path; UNKNOWN if it fails."""
        try:
            with self._quiet():
                return call()
        except Signal:
            return UNKNOWN

    def _failure(self, node: ast.AST, frame: Frame) -> Failure:
        """Return the failure at a statement, shown by the condition that led to it in its function."""
        guard = next((each for each in reversed(self._guards) if each.frame is frame), None)
        if guard is None:
            return Failure(frame.module.file, node, "")
        return Failure(guard.file, guard.test, self.show(guard.test, frame, outcome=guard.outcome))

    def show(self, test: ast.expr, frame: Frame, *, outcome: bool) -> str:
        """Return a condition with the values of its parts: the part that decides it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.show(test.operand, frame, outcome=not outcome)
        with self._quiet():
            if isinstance(test, ast.BoolOp):
                deciding = [each for each in test.values if truth(self.value(each, frame)) is outcome]
                return self.show(deciding[-1], frame, outcome=outcome) if deciding else ""
            shown = ast.unparse(_Filled(lambda each: self.value(each, frame)).visit(copy.deepcopy(test)))
        shown = scrub(shown)
        return f"`{shown}` is {str(outcome).lower()}" if shown != str(outcome) else ""

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Evaluate something once more without recording it."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def _comes_round(self, test: ast.expr, frame: Frame) -> bool:
        """Return whether a condition in a loop is certainly true in some of its rounds."""
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        with self._quiet():
            return bool(self._loops) and all(comes_round(each) or truth(self.value(each, frame)) for each in parts)

    def _replaced(self, before: Any, value: Any) -> Any:
        """Return the value of an attribute or item after an assignment in an uncertain region."""
        found = self._merged(before, value)
        if isinstance(found, Own) and not isinstance(mixed(value, self.own), Own):
            return AGREED if mixed(value) is AGREED else Unknown(found.aliases)
        return found

    def _note_check(self, statements: Sequence[ast.stmt], outcome: bool | None) -> None:
        """Record whether a check is decided: a condition whose branch ends the program."""
        if any(isinstance(each, (ast.Raise, ast.Assert)) for each in statements):
            self.checks.add(outcome is not None)

    def _note_outcome(self, test: ast.expr, outcome: bool | None, frame: Frame) -> None:
        if not self._muted:
            place = (frame.module.file.path, test.lineno, test.col_offset)
            self.outcomes.setdefault(place, set()).add(outcome)

    def free(self) -> None:
        """Break the cycles of what the run made, so that little of it is kept with its events."""
        for frame in (*self._frames, *(module.frame for module in self._modules.values())):
            for value in frame.names.values():
                if isinstance(value, ClassValue):
                    value.names.clear()
            frame.names.clear()

    def not_reached(self, *, is_finished: bool) -> frozenset[Part]:
        """Return the parts of its modules that the run never reaches; parts after an early stop are unknown."""
        parsed = {path: self._parse(module.file) for path, module in self._modules.items()}
        trees = {path: each.tree for path, each in parsed.items() if each is not None}
        found = set(coverage.uncalled(trees, self._called_functions))
        if is_finished:
            found |= set(coverage.not_reached(trees, self._called_functions, self._executed))
        return frozenset(found)

    def _read(self, file: SourceFile) -> Sequence[ast.stmt] | None:
        """Return the statements of a module; None if it cannot be parsed. Raises OutOfSteps where the modules are too
        long.
        """
        parsed = self._parse(file)
        if parsed is None:
            return None
        self._stored |= parsed.stored
        self._read_bytes += file.size_bytes
        if self._read_bytes > _MAX_TEXT:
            raise OutOfSteps
        wanted = self._wanted(file)
        for node in _expressions_on(parsed.tree, sorted({place[1] for place in wanted})):
            place = (file.path, node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            if place in wanted:
                self._watched[id(node)] = place
        return parsed.tree.body

    def _end_early(self, early: Sequence[Early], start: int, depth: int) -> None:
        """Note what a rank missed that left a loop or function early; `start` is where the loop began."""
        for each in early:
            event = missed(each, self.events[start if each.kind == "break" else each.start :], depth)
            if event is not None:
                self.divergences.append(Divergence(each.kind, each.node, each.test, each.file, event, each.of_rank))

    def _merge_names(self, frame: Frame, other: dict[str, Any], own: Unknown = UNKNOWN) -> None:
        """Merge the names of two branches; a name that only one branch sets keeps its value."""
        for name, value in other.items():
            frame.names[name] = self._merged(frame.names[name], value, own) if name in frame.names else value

    def record(
        self,
        name: str,
        node: ast.expr,
        frame: Frame,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
        function: External | None = None,
    ) -> None:
        """Note a call of something that is not the user's own."""
        if not isinstance(node, ast.Call):
            return
        self._waited += bool(name and not is_foreign(name)) or is_collective_event(name, node)
        if self._muted:
            return
        if len(self.events) >= _MAX_EVENTS:
            raise OutOfSteps
        doubt = 2 if self._maybe else 1 if self._assumed or self._loops or self._may_have_exited else 0
        calls = (*((file, call) for _, call, file in self._calls), (frame.module.file, node))
        guards = tuple(self._guards)
        self.has_evaluated = self.has_evaluated or name.endswith(".eval")
        self.is_wrapped = self.is_wrapped or bool(WRAPS.search(name))
        file, named = frame.module.file, keywords or {}
        is_wrapped = self.is_wrapped and not self._unsynced and not self.functions.world.has_servers
        self._is_collective |= name.endswith(".fleet.init") and named.get("is_collective") is True
        given = arguments or ((named["program"],) if "program" in named else ())
        is_of_all = any(_is_group_of_all(each) for each in (*arguments, *named.values()))
        is_waiting = waits(
            name, node, given, is_wrapped=is_wrapped, is_collective=self._is_collective, is_of_all=is_of_all
        )
        made_with = function.owner.keywords if function is not None and function.owner is not None else ()
        is_waiting |= exchanges_buffers(function) or (bool(made_with) and is_collective_event(name, node, made_with))
        is_layer = bool(self.unsearched and LAYER.search(name))
        self._met += is_waiting or is_layer
        self.events.append(
            Event(
                *(name, file, node, calls, doubt, guards, arguments, named, self._maybe, is_waiting, is_layer),
                is_statement=node is self._statement,
                function=function,
                within=function_of(frame),
                branches=self._branches,
                times=None if self._assumed or self._may_have_exited else _product(self._rounds),
            )
        )

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression."""
        raise NotImplementedError

    def operated(self, value: Any, node: ast.expr, frame: Frame) -> bool:
        """Follow the operators of a user-defined object; False for any other value."""
        raise NotImplementedError

    def block(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Follow statements one after the other."""
        raise NotImplementedError

    def import_module(self, file: SourceFile) -> ModuleValue:
        """Return a module, run when it is imported first."""
        raise NotImplementedError

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
        raise NotImplementedError


class _Filled(ast.NodeTransformer):
    """Puts the values of names, attributes and calls in their places."""

    def __init__(self, value_of: Callable[[ast.expr], Any]) -> None:
        self._value_of = value_of

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            return self.generic_visit(node)
        try:
            value = native(self._value_of(node))
        except NotKnown:
            return node
        return ast.Constant(value) if len(repr(value)) <= _MAX_SHOWN else node

"""Command lines that a Python script starts (`subprocess.run(["torchrun", ...])`, `os.system`), programs that start
ranks themselves, and whether a script does something when run.

Words and strings are composed as far as constants, assignments and loops over constants determine them; the rest is
unknown. The shell reader then reads the words or the line as if they were in a script.

Such a program has no launch line, so the call is the launch. A program that a launcher starts as a rank is the
launcher's; its own calls then state nothing here.

Sources: torch/multiprocessing/spawn.py (2.9); paddle/distributed/spawn.py (3.2); detectron2/engine/launch.py (0.6);
lightning/pytorch/trainer/trainer.py and lightning/fabric/fabric.py (2.6); ray/train (2.51: trainers take
`scaling_config`); accelerate/launchers.py (1.14: notebook_launcher); submitit/core/core.py (1.5: update_parameters).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from preflight.model.job import Claim, Known, Launch, OneOf, Scope, Strength, Unresolved, Value, alternatives, as_int
from preflight.model.job.value import Symbol
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.process_group import spawned_processes
from preflight.sources.python.rank_conditions import RankSet, ranks_where_true
from preflight.sources.python.words import WORDS
from preflight.sources.shell.shell_document import Alt, FileText, Hole, Lit, Piece, Place, Text

#: Scripts that start no programs, or have no word that starts ranks, are not examined.
_STARTS = re.compile(
    r"subprocess|os\.(?:system|popen|exec|spawn)|\bPopen\(|\bcheck_call\("
    r"|\b(?:run|exec|execute|call|launch|start|sh|shell)_?(?:cmd|command|shell|bash)s?\("
)
_LAUNCHES = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate|mpirun|mpiexec|srun|sbatch|fleetrun|horovodrun"
    r"|paddle\.distributed\.launch|\brank\b|\.sh\b"
)
_PROCESSES = frozenset(("run", "Popen", "call", "check_call", "check_output"))
_SHELL_CALLS = frozenset(("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"))
#: A function of another module that runs the command line it is given, by its name.
_RUNS_COMMAND = re.compile(r"(?:run|exec|execute|call|launch|start|sh|shell)_?(?:cmd|command|shell|bash)s?$")
_EXECS = frozenset(("os.execvp", "os.execv", "os.execve", "os.execvpe", "os.spawnvp"))
#: Runs of one loop, and calls of one script, that are followed.
_MAX_ITERATIONS = 16
_MAX_CALLS = 40
_MAX_DEPTH = 12
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """One started command.

    Args:
        words: the words; empty for a line.
        line: the line that a shell reads; empty for words.
        environment: the variables that the call or the script before it sets.
        place: where the call is.
        background: whether the script continues while it runs.
    """

    words: tuple[Text, ...]
    line: Text
    environment: Mapping[str, Text]
    place: Place
    background: bool = False


def may_start(text: str) -> bool:
    """Return whether a script may start ranks by a command line. Cheap."""
    return _STARTS.search(text) is not None and _LAUNCHES.search(text) is not None


def started_commands(module: Module) -> Iterator[StartedCommand]:
    """Yield the started commands in source order; a call in a loop over constants once for each iteration."""
    if not may_start(module.file.text):
        return
    file = FileText(module.file.path, module.file.text)
    exported = _exported_values(module)
    calls = sorted(
        (call for call in module.calls if _kind(module, call)), key=lambda call: (call.lineno, call.col_offset)
    )
    for call in (*calls, *_calls_of_runners(module, calls))[:_MAX_CALLS]:
        for names in itertools.islice(_iterations(module, call), _MAX_ITERATIONS):
            found = _started_command(TextBuilder(module, file, names, call), call, exported)
            if found is not None:
                yield found


def _kind(module: Module, call: ast.Call) -> str:
    """Return how a call starts something: `words`, `line`, `exec` or nothing."""
    name = module.called(call)
    if name in _SHELL_CALLS:
        return "line"
    if name in _EXECS:
        return "exec"
    if last(name) in _PROCESSES and (name.startswith("subprocess.") or name in ("Popen", "check_call")):
        return "words"
    return ""


def _calls_of_runners(module: Module, calls: Iterable[ast.Call]) -> list[ast.Call]:
    """Return the calls of functions that run the command line which is their first argument: those of the script that
    pass it on to a process, and imported ones with such a name.
    """
    runners: set[str] = set()
    for call in calls:
        given = argument(call, "args", 1 if _kind(module, call) == "exec" else 0)
        passed = value_of(given) if given is not None else None
        function = module.parent(call)
        while function is not None and not isinstance(function, _FUNCTIONS):
            function = module.parent(function)
        if isinstance(passed, ast.Name) and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [item.arg for item in function.args.args if item.arg not in ("self", "cls")]
            if names[:1] == [passed.id]:
                runners.add(function.name)
    own = {node.name for node in module.nodes(ast.FunctionDef)}
    found = [
        call
        for call in module.calls
        if call.args
        and not _kind(module, call)
        and ((name := last(module.called(call))) in runners or (name not in own and _RUNS_COMMAND.match(name)))
    ]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _started_command(builder: TextBuilder, call: ast.Call, exported: Mapping[str, ast.expr]) -> StartedCommand | None:
    module, kind = builder.module, _kind(builder.module, call)
    given = argument(call, "args", 1 if kind == "exec" else 0)
    if given is None:
        given = call.args[0] if call.args and not kind else None
    if given is None:
        return None
    expression = value_of(given)
    environment = {name: builder.text(value) for name, value in exported.items()}
    own = argument(call, "env")
    if own is not None:
        environment.update(builder.table(value_of(own)))
    background = last(module.called(call)) == "Popen"
    place = builder.place(call)
    words = builder.words(expression) if kind != "line" else None
    if words:
        return StartedCommand(tuple(words), (), environment, place, background)
    line = builder.text(expression)
    return StartedCommand((), line, environment, place, background) if any(isinstance(p, Lit) for p in line) else None


def _exported_values(module: Module) -> dict[str, ast.expr]:
    """Return the values that the script assigns to `os.environ["NAME"]`."""
    found: dict[str, ast.expr] = {}
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
                continue
            if module.name(target.value) == "os.environ":
                found[str(target.slice.value)] = node.value
    return found


def _iterations(module: Module, call: ast.AST) -> Iterator[dict[str, str]]:
    """Yield the values of the loop variables around a call in each iteration; outside of loops, one empty iteration."""
    loops: list[tuple[str, list[str]]] = []
    node = module.parent(call)
    while node is not None and not isinstance(node, _FUNCTIONS):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            values = _items(module, node.iter)
            if values is not None:
                loops.append((node.target.id, values))
        node = module.parent(node)
    for turn in itertools.product(*(values for _, values in loops)):
        yield dict(zip((name for name, _ in loops), turn, strict=True))


def _items(module: Module, expression: ast.expr) -> list[str] | None:
    found = module.definition(expression)
    if isinstance(found, ast.Call) and module.called(found) == "range" and not found.keywords:
        values = [module.fold(item) for item in found.args]
        numbers = [value.value for value in values if isinstance(value, Known) and isinstance(value.value, int)]
        if len(numbers) != len(values) or not 1 <= len(numbers) <= 3 or numbers[2:] == [0]:
            return None
        return [str(number) for number in itertools.islice(range(*numbers), _MAX_ITERATIONS)]
    value = module.fold(found)
    if isinstance(value, Known) and isinstance(value.value, tuple):
        return [str(item) for item in value.value[:_MAX_ITERATIONS]]
    return None


@dataclass(slots=True)
class TextBuilder:
    """Composes the words and texts of one call; `names` are the loop variables of this iteration."""

    module: Module
    file: FileText
    names: Mapping[str, str]
    call: ast.Call
    _depth: int = field(default=0)

    def place(self, node: ast.AST) -> Place:
        """Return the location of a node."""
        return Place(self.file, *self.module.positions.bounds(node))

    def hole(self, node: ast.AST, *, many: bool = False, why: str = "") -> Text:
        """Return text that is known only when the script runs, for the reason `why`."""
        shown = self.module.text(node)
        reason = why or f"{shown}: known only at run time"
        return (Hole(reason[:300], self.place(node), f"{{{shown}}}"[:300], many),)

    def text(self, expression: ast.expr) -> Text:
        """Return the string that an expression evaluates to."""
        self._depth += 1
        try:
            return self._text(expression) if self._depth <= _MAX_DEPTH else self.hole(expression)
        finally:
            self._depth -= 1

    def _text(self, node: ast.expr) -> Text:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.JoinedStr):
            return tuple(piece for item in node.values for piece in self.text(item))
        if isinstance(node, ast.FormattedValue):
            return self.text(node.value) if node.format_spec is None else self.hole(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (*self.text(node.left), *self.text(node.right))
        if isinstance(node, ast.Name):
            return self._text_of_name(node)
        if isinstance(node, ast.Attribute) and self.module.name(node) == "sys.executable":
            return (Lit("python", self.place(node), False, "sys.executable"),)
        if isinstance(node, ast.Call):
            return self._call_text(node)
        return self._fold(node)

    def _constant(self, node: ast.Constant) -> Text:
        value = str(node.value)
        place = self.place(node)
        source = self.file.text[place.start : place.end]
        at = source.find(value) if value and isinstance(node.value, str) else -1
        if at < 0:
            return (Lit(value, place, False),) if value else ()
        return (Lit(value, Place(self.file, place.start + at, place.start + at + len(value))),)

    def _fold(self, node: ast.expr) -> Text:
        value = self.module.fold(node)
        place, shown = self.place(node), f"{{{self.module.text(node)}}}"
        if isinstance(value, Known) and not isinstance(value.value, tuple):
            return (Lit(str(value.value), place, False, shown),)
        if isinstance(value, OneOf):
            return (Alt(tuple((Lit(str(item), place, False),) for item in value.values), place, shown),)
        return self.hole(node, why=value.why if isinstance(value, Unresolved) else "")

    def _text_of_name(self, node: ast.Name) -> Text:
        if node.id in self.names:
            return (Lit(self.names[node.id], self.place(node), False, f"{{{node.id}}}"),)
        pieces: Text | None = None
        for step in self._steps(node):
            if isinstance(step, ast.Assign):
                pieces = self.text(step.value)
            elif isinstance(step, ast.AugAssign) and pieces is not None:
                sure = not self.module.condition(step)
                pieces = (*pieces, *(self.text(step.value) if sure else self.hole(step.value, many=True)))
        return self._fold(node) if pieces is None else pieces

    def _call_text(self, node: ast.Call) -> Text:
        name = self.module.called(node)
        if name in ("str", "shlex.quote") and len(node.args) == 1:
            return self.text(node.args[0])
        method = node.func if isinstance(node.func, ast.Attribute) else None
        joined = name == "shlex.join" or (
            method is not None and method.attr == "join" and isinstance(method.value, ast.Constant)
        )
        if joined and len(node.args) == 1:
            words = self.words(node.args[0])
            if words is not None:
                between = method.value.value if method is not None and isinstance(method.value, ast.Constant) else " "
                blank = Lit(str(between), self.place(node), False)
                return tuple(piece for n, word in enumerate(words) for piece in ((blank, *word) if n else word))
        if method is not None and method.attr in ("strip", "lstrip", "rstrip") and not node.args:
            return self.text(method.value)
        if method is not None and method.attr == "format" and isinstance(method.value, ast.Constant):
            return self._format_text(method.value, node)
        return self._fold(node)

    def _format_text(self, template: ast.Constant, call: ast.Call) -> Text:
        """Return `"torchrun --nproc {} {script}".format(n, script=x)`."""
        place = self.place(template)
        named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        waiting = list(call.args)
        pieces: list[Piece] = []
        for number, part in enumerate(_FIELD.split(str(template.value))):
            if number % 2 == 0:
                pieces.extend([Lit(part, place, False)] if part else [])
                continue
            value = named.get(part) or (waiting.pop(0) if waiting and not part else None)
            pieces.extend(self.text(value) if value is not None else self.hole(template))
        return tuple(pieces)

    def words(self, expression: ast.expr) -> list[Text] | None:
        """Return the words of a list; None if the expression is not a list."""
        self._depth += 1
        try:
            return self._words(expression) if self._depth <= _MAX_DEPTH else None
        finally:
            self._depth -= 1

    def _words(self, node: ast.expr) -> list[Text] | None:
        if isinstance(node, (ast.List, ast.Tuple)):
            found: list[Text] = []
            for item in node.elts:
                found.extend(self._spread(item.value) if isinstance(item, ast.Starred) else [self.text(item)])
            return found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left = self.words(node.left)
            return None if left is None else [*left, *self._spread(node.right)]
        if isinstance(node, ast.Call):
            name = self.module.called(node)
            if name == "list" and len(node.args) == 1:
                return self.words(node.args[0])
            method = node.func if isinstance(node.func, ast.Attribute) else None
            if name == "shlex.split" and node.args:
                return self._cut(self.text(node.args[0]))
            if method is not None and method.attr == "split" and not node.args:
                return self._cut(self.text(method.value))
        if isinstance(node, ast.Name):
            return self._words_of_name(node)
        return None

    def _spread(self, node: ast.expr) -> list[Text]:
        found = self.words(node)
        return [self.hole(node, many=True)] if found is None else found

    def _words_of_name(self, node: ast.Name) -> list[Text] | None:
        words: list[Text] | None = None
        for step in self._steps(node):
            if isinstance(step, ast.Assign):
                words = self.words(step.value)
            elif words is None:
                continue
            elif self.module.condition(step):
                words = [*words, self.hole(step, many=True)]
            elif isinstance(step, ast.AugAssign):
                words = [*words, *self._spread(step.value)]
            elif isinstance(step, ast.Call) and step.args:
                single = isinstance(step.func, ast.Attribute) and step.func.attr == "append"
                words = [*words, *([self.text(step.args[0])] if single else self._spread(step.args[0]))]
        return words

    def _cut(self, text: Text) -> list[Text] | None:
        """Return the words of a line without quotes."""
        words: list[list[Piece]] = [[]]
        for piece in text:
            if not isinstance(piece, Lit):
                words[-1].append(piece)
                continue
            if any(sign in piece.text for sign in "\"'\\"):
                return None
            end = 0
            for match in _BLANKS.finditer(piece.text):
                if match.start() > end:
                    words[-1].append(piece.cut(end, match.start()))
                words.append([])
                end = match.end()
            if end < len(piece.text):
                words[-1].append(piece.cut(end, len(piece.text)))
        return [tuple(word) for word in words if word]

    def _steps(self, name: ast.Name) -> list[ast.AST]:
        """Return the assignments of a name and the additions to it, in the same function before the call, in order."""
        module = self.module
        scope = self._scope(name)
        steps: list[ast.AST] = []
        for node in module.nodes(ast.Assign):
            if any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets):
                steps.append(node)
        for added in module.nodes(ast.AugAssign):
            if isinstance(added.target, ast.Name) and added.target.id == name.id and isinstance(added.op, ast.Add):
                steps.append(added)
        for call in module.named("append", "extend"):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == name.id:
                steps.append(call)
        inside = [step for step in steps if self._scope(step) is scope] or [
            step for step in steps if self._scope(step) is None
        ]
        # `command = f"numactl {command}"` uses the value before it.
        around = set(map(id, self._around(name)))
        before = [
            step
            for step in inside
            if id(step) not in around and (getattr(step, "lineno", 0) < name.lineno or self._scope(step) is not scope)
        ]
        before.sort(key=lambda step: (getattr(step, "lineno", 0), getattr(step, "col_offset", 0)))
        return before

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        current = self.module.parent(node)
        while current is not None:
            yield current
            current = self.module.parent(current)

    def _scope(self, node: ast.AST) -> ast.AST | None:
        current = self.module.parent(node)
        while current is not None and not isinstance(current, _FUNCTIONS):
            current = self.module.parent(current)
        return current

    def table(self, expression: ast.expr) -> dict[str, Text]:
        """Return the variables of `{**os.environ, "RANK": str(r)}`, `dict(os.environ, RANK=r)` or of a name for one."""
        node = self.module.definition(expression)
        found: dict[str, Text] = {}
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = self.text(value)
        elif isinstance(node, ast.Call):
            found.update({item.arg: self.text(item.value) for item in node.keywords if item.arg})
        if isinstance(expression, ast.Name):
            for assign in self.module.nodes(ast.Assign):
                for target in assign.targets:
                    if (
                        isinstance(target, ast.Subscript)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == expression.id
                        and isinstance(target.slice, ast.Constant)
                        and assign.lineno < self.call.lineno
                    ):
                        found[str(target.slice.value)] = self.text(assign.value)
        return found


_FIELD = re.compile(r"\{(\w*)\}")
_BLANKS = re.compile(r"\s+")


class OwnLaunch(NamedTuple):
    """The launch that a call is, with the claims about its size."""

    launch: Launch
    claims: tuple[Claim, ...]


class _Size(NamedTuple):
    """The arguments of a call that state a size: the quantity, the name, and the position if it may have none."""

    quantity: str
    name: str
    position: int | None = None


_SPAWN = (_Size("processes_per_node", "nprocs", 2),)
_LIGHTNING = (_Size("nodes", "num_nodes"), _Size("processes_per_node", "devices"))
#: What Lightning before 2.0 calls the number of processes on a node, and what makes it start them:
#: `distributed_backend` up to 1.4, `accelerator` up to 1.6 (accelerators/accelerator_connector.py of 1.1, 1.4 and 1.6).
_EARLIER_DEVICES = ("gpus", "num_processes")
_EARLIER_STRATEGIES = ("strategy", "accelerator", "distributed_backend")
_NO_STRATEGIES = (None, "gpu", "auto", "cpu")
_STARTS_PROCESSES = re.compile(r"ddp|ddp_(?:spawn|cpu|sharded\w*|fully_sharded|find_unused\w*)|deepspeed\w*|fsdp\w*")
_CALLS: dict[str, tuple[_Size, ...]] = {
    "torch.multiprocessing.spawn": _SPAWN,
    "torch.multiprocessing.start_processes": _SPAWN,
    "paddle.distributed.spawn": _SPAWN,
    "detectron2.engine.launch": (
        _Size("nodes", "num_machines", 2),
        _Size("processes_per_node", "num_gpus_per_machine", 1),
    ),
    "accelerate.notebook_launcher": (_Size("nodes", "num_nodes"), _Size("processes_per_node", "num_processes", 2)),
    **{
        f"{root}.{name}": _LIGHTNING
        for root in (
            *("lightning", "lightning.pytorch", "lightning.fabric"),
            *("pytorch_lightning", "lightning_fabric", "nemo.lightning"),
        )
        for name in ("Trainer", "Fabric")
    },
}
_NAMES = tuple(dict.fromkeys(last(name) for name in _CALLS))
#: Calls that start several ranks only if one of these is given.
_ONLY_WITH = {"Trainer": ("devices", "num_nodes", "strategy"), "Fabric": ("devices", "num_nodes", "strategy")}
_SUBMITIT = (
    _Size("nodes", "nodes"),
    _Size("tasks_per_node", "tasks_per_node"),
    _Size("gpus_per_node", "gpus_per_node"),
)
_GROUP = re.compile(r"\binit_process_group\(|\binit_parallel_env\(")
_RELEVANT = re.compile(
    r"\bProcess\(|spawn|start_processes|detectron2|lightning|submitit|ScalingConfig|notebook_launcher"
)


def launches(module: Module) -> Iterator[OwnLaunch]:
    """Yield the calls of a program that start its ranks; nothing for a module that only defines things."""
    if _RELEVANT.search(module.file.text) is None or next(entry_claims(module), None) is None:
        return
    of_ray = list(_ray(module))
    for call in module.named(*_NAMES):
        sizes = _CALLS.get(module.called(call))
        needed = _ONLY_WITH.get(last(module.called(call)), ())
        if sizes is _LIGHTNING and argument(call, "devices") is None:
            sizes = _earlier_sizes(module, call) or sizes
        is_earlier = sizes is not None and any(size.name in _EARLIER_DEVICES for size in sizes)
        if sizes is None or (needed and not is_earlier and all(argument(call, name) is None for name in needed)):
            continue
        claims = list(_sizes(module, call, sizes))
        # Inside of a trainer of Ray, Lightning runs in the ranks that Ray started.
        if needed and (of_ray or _is_single(module, call, claims)):
            continue
        if sizes is _SPAWN:
            # Each of several nodes may spawn. Where one does, the number is stated with the group.
            stated = claims or _without_count(module, call)
            yield _launch(module, call, "python", [] if any(spawned_processes(module, call)) else stated)
        else:
            yield _launch(module, call, "python", _with_nodes(module, call, claims))
    yield from of_ray
    yield from _submitit(module)
    yield from _processes(module)


def _processes(module: Module) -> Iterator[OwnLaunch]:
    """Yield `for rank in range(4): Process(target=train, args=(rank,))` in a script that makes a process group."""
    if _GROUP.search(module.file.text) is None:
        return
    for call in module.named("Process"):
        given = argument(call, "args", 3)
        loop = next((outer for outer in module.outline.above(call) if isinstance(outer, ast.For)), None)
        if given is None or loop is None or last(module.called(call)) != "Process":
            continue
        counted = loop.iter
        passed = {node.id for node in ast.walk(value_of(given)) if isinstance(node, ast.Name)}
        is_range = isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1
        target = argument(call, "target", 1)
        functions = module.outline.functions(dotted(value_of(target))) if target is not None else []
        makes_group = any(_GROUP.search(module.source(function)) for function in functions)
        if is_range and makes_group and isinstance(counted, ast.Call) and dotted(loop.target) in passed:
            count = module.claim("processes_per_node", as_int(module.fold(counted.args[0])), counted)
            yield _launch(module, call, "python", [count])
            return


def _sizes(module: Module, call: ast.Call, sizes: tuple[_Size, ...]) -> Iterator[Claim]:
    for quantity, name, position in sizes:
        given = argument(call, name, position)
        if given is not None:
            expression = value_of(given)
            value = module.fold(expression)
            takes_all = any(item in ("auto", "-1", -1) for item in alternatives(value))
            value = Unresolved(Symbol.GPU_COUNT.value) if takes_all else as_int(value)
            value = _devices(module, expression) if name in _EARLIER_DEVICES else value
            yield module.claim(quantity, value, given)


def _earlier_sizes(module: Module, call: ast.Call) -> tuple[_Size, ...]:
    """Return the sizes of a Trainer of Lightning 1.x that certainly starts processes: `Trainer(gpus=4,
    accelerator="ddp")`; nothing for any other call.

    Without a strategy, several GPUs start as many processes, too.
    """
    given = [value_of(each) for name in _EARLIER_STRATEGIES if (each := argument(call, name)) is not None]
    strategies = [module.fold(each) for each in given]
    name = next((name for name in _EARLIER_DEVICES if argument(call, name) is not None), "")
    counted = argument(call, name) if name else None
    if counted is None or any(isinstance(each, Unresolved) for each in strategies):
        return ()
    named = [str(item) for each in strategies for item in alternatives(each) if item not in _NO_STRATEGIES]
    is_started = bool(named) and all(_STARTS_PROCESSES.fullmatch(each) for each in named)
    count = alternatives(_devices(module, value_of(counted)))
    is_several = not named and name == "gpus" and bool(count) and all(isinstance(n, int) and n > 1 for n in count)
    return (_LIGHTNING[0], _Size("processes_per_node", name)) if is_started or is_several else ()


def _devices(module: Module, given: ast.expr) -> Value:
    """Return the number of devices that a Trainer gets as a number, or as a list of their indices."""
    listed = module.definition(given)
    if isinstance(listed, (ast.List, ast.Tuple)) and not any(isinstance(each, ast.Starred) for each in listed.elts):
        return Known(len(listed.elts))
    value = module.fold(given)
    if any(item in ("auto", "-1", -1) for item in alternatives(value)):
        return Unresolved(Symbol.GPU_COUNT.value)
    if any(isinstance(item, str) for item in alternatives(value)):
        # Of some releases a text is the index of a device.
        return Unresolved(Symbol.LIBRARY_DEFAULT.value)
    return as_int(value)


def _without_count(module: Module, call: ast.Call) -> list[Claim]:
    """Return the processes of a spawn without `nprocs`: one with torch, one for each visible GPU with Paddle."""
    if module.called(call) == "paddle.distributed.spawn":
        value: Value = Unresolved(Symbol.GPU_COUNT.value)
        spelling = "spawn (without nprocs: one process for each visible GPU)"
    else:
        value, spelling = Known(1), f"{last(module.called(call))} (without nprocs: one process)"
    claim = module.claim("processes_per_node", value, call.func, strength=Strength.DEFAULT, spelling=spelling)
    return [claim]


def _is_single(module: Module, call: ast.Call, claims: list[Claim]) -> bool:
    """Return whether a trainer runs in one process: on one device of one node, or with a strategy that starts none."""
    strategy = argument(call, "strategy")
    if strategy is not None and module.fold(value_of(strategy)) == Known("dp"):
        return True
    per_node = [claim.value for claim in claims if claim.quantity == "processes_per_node"]
    nodes = [claim.value for claim in claims if claim.quantity == "nodes"]
    return per_node == [Known(1)] and nodes in ([], [Known(1)])


def _with_nodes(module: Module, call: ast.Call, claims: list[Claim]) -> list[Claim]:
    """Return the sizes with one node if the call does not set their number."""
    quantities = {claim.quantity for claim in claims}
    if "nodes" in quantities or "processes_per_node" not in quantities:
        return claims
    spelling = f"{last(module.called(call))} (without a number of nodes: one)"
    return [*claims, module.claim("nodes", Known(1), call.func, strength=Strength.DEFAULT, spelling=spelling)]


def _ray(module: Module) -> Iterator[OwnLaunch]:
    """Yield `TorchTrainer(..., scaling_config=ScalingConfig(num_workers=8))`; the claims of `ScalingConfig` say how
    many.
    """
    for call in module.calls:
        given = argument(call, "scaling_config") if last(module.called(call)).endswith("Trainer") else None
        if given is not None:
            scaling = module.definition(value_of(given))
            workers = argument(scaling, "num_workers") if isinstance(scaling, ast.Call) else None
            claims = []
            if workers is not None:
                claims.append(module.claim("world_size", as_int(module.fold(value_of(workers))), workers, source="ray"))
            yield _launch(module, call, "python", claims)


def _submitit(module: Module) -> Iterator[OwnLaunch]:
    """Yield `executor.update_parameters(nodes=2, tasks_per_node=8)`: every task calls the submitted function."""
    if "submitit" not in module.file.text:
        return
    for call in module.named("update_parameters"):
        claims = []
        for quantity, name, _ in _SUBMITIT:
            given = argument(call, name) or argument(call, f"slurm_{name}")
            given = given or (argument(call, "slurm_ntasks_per_node") if quantity == "tasks_per_node" else None)
            if given is not None:
                claims.append(module.claim(quantity, as_int(module.fold(value_of(given))), given, source="submitit"))
        if any(claim.quantity in ("nodes", "tasks_per_node") for claim in claims):
            tasks = [replace(c, quantity="processes_per_node") for c in claims if c.quantity == "tasks_per_node"]
            yield _launch(module, call, "submitit", _with_nodes(module, call, [*claims, *tasks]))


def _launch(module: Module, call: ast.Call, launcher: str, claims: list[Claim]) -> OwnLaunch:
    span = module.span(call.func)
    scope = Scope(launch=f"{span.path}:{span.line}")
    condition = module.condition(call)
    launch = Launch(id=scope.launch, launcher=launcher, span=span, program=module.file.path, condition=condition)
    stated = (replace(claim, scope=scope, condition=condition) for claim in claims)
    return OwnLaunch(launch, tuple(stated))


#: Calls with which modules set themselves up; they start nothing.
_SETUP_CALLS = WORDS["setup_calls"]
_EFFECTFUL_NODES = (ast.For, ast.While, ast.With, ast.AsyncFor)


def entry_claims(module: Module) -> Iterator[Claim]:
    """Yield the claim that the script is an entry point, at the statement that makes it one."""
    for statement in module.tree.body:
        if _has_effect(module, statement):
            claim = module.claim("entry_point", True, statement, condition="", spelling="runs by itself")
            # The line itself is not informative, and may contain a secret.
            yield replace(claim, span=replace(claim.span, snippet=""))
            return


def _has_effect(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        if "__name__" in module.text(statement.test):
            return True
        if any(_has_effect(module, each) for each in (*statement.body, *statement.orelse)):
            return True
        # `if rank == 0: saver = Saver(path)`: only a script queries its rank at import.
        made = any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in statement.body)
        return made and ranks_where_true(module, statement.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.IfExp):
        return ranks_where_true(module, statement.value.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, _EFFECTFUL_NODES):
        return True
    if isinstance(statement, ast.Try):
        return any(_has_effect(module, each) for each in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = dotted(statement.value.func) or getattr(statement.value.func, "attr", "")
        return not any(each in name.lower() for each in _SETUP_CALLS)
    return False

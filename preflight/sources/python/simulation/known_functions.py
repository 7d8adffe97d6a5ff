"""The results of functions of Python and of the frameworks in a simulated program."""

from __future__ import annotations

import ast
import builtins
import contextlib
import fnmatch
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from preflight.sources.base import assume_not_set
from preflight.sources.python.collectives import AGREEING, is_collective_event
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.simulation import argument_parser, dataclass_parser, open_texts
from preflight.sources.python.simulation.argument_parser import CONFIG_OPTIONS, Parser
from preflight.sources.python.simulation.data_origins import (
    ANY_ITEM,
    gives_own_data,
    is_list_of_layers,
    size_of,
    size_origin,
    wrapped_model,
)
from preflight.sources.python.simulation.divergence import SHARDED_MODEL
from preflight.sources.python.simulation.libraries import names, pattern, symbol_of
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
    Unknown,
    forget,
    merged,
    mixed,
    native,
    of_native,
    one_of,
    part_of,
    truth,
)

if TYPE_CHECKING:
    from preflight.sources.python.simulation.interpreter import Interpreter
    from preflight.sources.python.simulation.run_state import Event

_MAX_NAME = 200
_MAX_RANGE = 10_000
#: Functions of Python that are computed where all that they get is known.
_PURE: dict[str, Callable[..., Any]] = {
    **{f"builtins.{name}": getattr(builtins, name) for name in ("int", "float", "str", "bool", "abs", "min", "max")},
    **{f"builtins.{name}": getattr(builtins, name) for name in ("sum", "round", "repr", "divmod", "any", "all", "ord")},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "sqrt", "log2", "log", "gcd", "prod")},
    **{f"os.path.{name}": getattr(posixpath, name) for name in ("join", "basename", "dirname", "splitext", "normpath")},
    "json.loads": json.loads,
}
_TEXT = frozenset(name for name in dir(str) if not name.startswith("_")) - frozenset(
    ("format_map", "translate", "maketrans", "ljust", "rjust", "center", "zfill", "expandtabs", "replace", "format")
)
_WRAPS = names("attribute_dictionaries")
_CHANGES = pattern("changing")
#: What gives names of a module values that are computed.
_SETS_GLOBALS = re.compile(r"\bglobals\(\)(?:\[[^]]*\]\s*=(?!=)|\.(?:update|setdefault)\()")
#: Values of names that code from elsewhere hardly replaces.
_LASTING = (FunctionValue, ClassValue, ModuleValue, External)
_ERRORS = (
    *(TypeError, ValueError, ArithmeticError, LookupError, NotKnown, AttributeError, RecursionError, MemoryError),
)
#: Functions that add options of a library to a parser, and return it.
_ADDS_OPTIONS = ("deepspeed.add_config_arguments", ".add_argparse_args")
#: Methods after which some file has another text.
_WRITING = (".write_text", ".write_bytes", ".unlink", ".rename", ".symlink_to", ".save_to_disk")
_SPAWNS = names("spawning")
_RUNS_MAIN = tuple(names("running_main"))
_SAME_MODULE = names("methods_that_return_the_module")
_LOADED = "datasets.load_dataset()"
_SAME_DATASET = names("methods_that_return_the_dataset")
EQUAL = names("equal")
OWN_RESULTS = names("own_results")
LOSS = pattern("losses")
_LOADS = ("torch.load", "paddle.load", "numpy.load", "safetensors.torch.load_file")
#: A place in a text that may take long to fill in: with a width, an attribute or an item.
_FORMATTED = re.compile(r"\{[^{}]*[:.\[!]")
_PLACES = ("device", "map_location", "device_id", "device_ids")
_MOVES = ("to", "cuda", "cpu")
_CLOCKS = names("clocks")
_OWN_NAMES = names("own_names")
_STARTS_HOOKS = names("starting_hooks")
_ON_ONE_RANK = pattern("on_one_rank")
#: torch/distributed/fsdp of 2.13, paddle/distributed/sharding/group_sharded.py of 3.3.
_SHARDING = ("fully_shard", "group_sharded_parallel", "save_group_sharded_model")
_RANDOM = ("random", "numpy", "torch", "paddle")
_SEEDS = names("seeds")
_ADDING = names("adding_methods")
_DRAWS = pattern("draws")
_NEEDS_ALL = pattern("needing_all")
_SEARCHES = ("find_unused_parameters", "static_graph")
KEEPS = pattern("keepers")
OF_RANK_NAMES = pattern("of_rank")
#: What no rank waits in.
_SILENT = ("builtins.", "math.", "os.path.", "json.", "typing.", "functools.", "copy.", "re.", "logging.", "warnings.")


@dataclass(frozen=True, slots=True)
class World:
    """The launch of one rank; None for unknown values.

    Args:
        variables: the variables that the launch sets.
        role: `worker` or `server` of a job of Paddle; empty for any other.
        has_servers: whether the workers exchange their gradients with servers.
        rank: of the job, and on its node; None represents any rank.
        read: the text of a file that the program opens, by its path.
        names: the entries of a folder by its path; None if it does not exist.
        is_closed: whether a variable that the launch does not set counts as unset.
        is_several: whether a launcher is taken to start more than one rank.
    """

    rank: int | None = 0
    local_rank: int | None = 0
    world_size: int | None = None
    local_world_size: int | None = None
    arguments: tuple[str | None, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], str | None] = lambda path: None
    names: Callable[[str], Sequence[str] | None] = lambda path: None
    role: str = ""
    has_servers: bool = False
    is_closed: bool = False
    is_several: bool = False

    def symbol(self, name: str) -> Any:
        """Return the value of a name in `libraries.toml`."""
        if self.rank is None and name in ("rank", "local_rank", "is_first", "is_last_stage", "is_local_first"):
            return OF_RANK
        if name in ("is_first", "is_local_first"):
            return (self.rank if name == "is_first" else self.local_rank) == 0
        if name in ("is_server", "is_worker"):
            return self.role == name.removeprefix("is_") if self.role else UNKNOWN
        if name == "is_first_stage":
            return True if self.rank == 0 else UNKNOWN
        if name == "is_last_stage":
            # With one stage alone there is no pipeline.
            return False if not self.rank else self.rank + 1 == self.world_size or UNKNOWN
        value = True if name == "is_available" else getattr(self, name, None)
        if name == "world_size" and value is None and self.is_several:
            return SEVERAL
        # All ranks have the same numbers of ranks.
        unknown = AGREED if name in ("world_size", "is_initialized") else UNKNOWN
        return unknown if value is None else value


class Library:
    """The functions of libraries, for one rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._variables: dict[str, Any] = dict(world.variables)
        #: Whether the program asks for the number of its rank.
        self.is_asked = False
        #: The variables that the program sets.
        self.given: set[str] = set()
        #: The variables that are not set, and for which a default was taken.
        self.not_set: list[str] = []
        self._written: set[str] = set()
        words = world.arguments
        known = words is not None and None not in words
        #: Where the next random numbers come from, by the package.
        self._random: dict[str, Unknown] = {}
        self._line = ListValue([UNKNOWN, *(words or ())] if known else None)
        self._is_line_changed = False

    def _symbol(self, name: str) -> Any:
        found = self.world.symbol(name)
        self.is_asked |= found is OF_RANK
        return found

    def builtin(self, name: str) -> Any:
        """Return one of Python's own names."""
        return External(f"builtins.{name}") if hasattr(builtins, name) else UNKNOWN

    @contextlib.contextmanager
    def equal_draws(self) -> Iterator[None]:
        """Let all ranks draw the same random numbers meanwhile, unless a seed makes them differ."""
        own = {package: origin for package, origin in self._random.items() if isinstance(origin, Own)}
        before, self._random = self._random, {**dict.fromkeys(_RANDOM, AGREED), **own}
        try:
            yield
        finally:
            self._random = before

    @property
    def state(self) -> tuple[object, ...]:
        """Return everything besides its arguments that a function's result depends on: seeds, and files that may have
        been written.
        """
        return (*((package, id(origin)) for package, origin in sorted(self._random.items())), len(self._written))

    # --- variables of the environment ----------------------------------------------------------------------------

    def set_variable(self, run: Interpreter, name: Any, value: Any) -> None:
        """`os.environ[name] = value`."""
        if isinstance(name, str):
            self.given.add(name)
            self._variables[name] = value if run.region is None else UNKNOWN
        else:
            self._variables = dict.fromkeys(self._variables, UNKNOWN)

    def set_line(self, value: Any) -> None:
        """`sys.argv = value`."""
        self._line = value if isinstance(value, ListValue) else ListValue(None)
        self._is_line_changed = True

    def has_variable(self, run: Interpreter, name: Any) -> bool | None:
        """Return whether a variable is set; None if that is not known."""
        return True if isinstance(name, str) and self._variables.get(name, UNKNOWN) is not UNKNOWN else None

    def _variable(self, name: Any) -> Any:
        if not isinstance(name, str):
            return UNKNOWN
        of_rank = self.world.rank is None and not self.world.is_closed and OF_RANK_NAMES.search(name) is not None
        self.is_asked |= of_rank
        return self._variables.get(name, OF_RANK if of_rank else Unknown(text=f"{{{name}}}"))

    # --- attributes and items ------------------------------------------------------------------------------------

    def attribute(self, run: Interpreter, owner: External, name: str) -> Any:
        """Return an attribute of something of a library."""
        full = f"{owner.name}.{name}"
        symbol = symbol_of("attributes", full)
        if symbol:
            return self._symbol(symbol)
        if full == "sys.argv":
            return self._line
        if name in ("module", "_layers") and (model := wrapped_model(owner)) is not None:
            model.wrapped_by = owner.name
            return model
        return External(full, owner.region, owner=owner) if len(full) < _MAX_NAME else mixed(owner)

    def item(self, run: Interpreter, owner: External, key: Any) -> Any:
        """Return an item of something of a library."""
        if owner.name == "os.environ":
            return self._variable(key)
        if ANY_ITEM in owner.attributes:
            return owner.attributes[ANY_ITEM]
        if owner.last == "shape":
            return size_of(owner.arguments[0], key) if owner.arguments else UNKNOWN
        if is_list_of_layers(owner):
            return External(f"{owner.name}[]", owner.region, owner=owner)
        if owner.is_result and key == 0:
            return owner
        return part_of(owner, key)

    def joined(self, path: External, other: Any) -> Any:
        """Return `Path(...) / other`."""
        made = External("pathlib.Path()", path.region)
        before, more = path.attributes.get("(path)", UNKNOWN), _path_of(other)
        texts = [open_texts.text_of(each) for each in (before, more)]
        known = isinstance(before, str) and isinstance(more, str)
        found = posixpath.join(*texts) if all(texts) else ""
        made.attributes["(path)"] = found if known and found else open_texts.open_text(found, before, more)
        return made

    # --- decorators and fields -----------------------------------------------------------------------------------

    def decorated(self, run: Interpreter, function: Any, decorator: External) -> Any:
        """Return a function under a decorator of a library."""
        if decorator.last.startswith("rank_zero_only"):
            self.is_asked = True
            return function if not self.world.rank else External("preflight.nothing")
        if isinstance(function, FunctionValue) and not _PLAIN & {decorator.last.partition("(")[0]}:
            return replace(function, is_open=True)
        return function

    def field_default(self, run: Interpreter, value: Any, node: ast.expr, frame: Frame) -> Any:
        """Return the default of a field of a dataclass."""
        if not isinstance(value, External) or not value.name.startswith("dataclasses.field("):
            return value
        if "default" in value.attributes:
            return value.attributes["default"]
        factory = value.attributes.get("default_factory", UNKNOWN)
        return run.call(factory, (), {}, node, frame) if not isinstance(factory, Unknown) else UNKNOWN

    # --- calls ---------------------------------------------------------------------------------------------------

    def _is_of_launch(self, event: Event) -> bool:
        """Return whether a group is that of all ranks of the launch, so that their numbers are the same."""
        rank, size = event.keywords.get("rank", UNKNOWN), event.keywords["world_size"]
        if isinstance(rank, Own):
            return rank.of_rank
        return rank == self.world.rank if isinstance(rank, int) else size == self.world.world_size

    def called(
        self,
        run: Interpreter,
        function: External,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
        *,
        is_open: bool = False,
    ) -> Any:
        """Return the result of calling an object of a library."""
        name = function.name
        if name == "preflight.nothing":
            return None
        if name in ("builtins.eval", "builtins.compile"):
            return UNKNOWN
        symbol = symbol_of("calls", name)
        if symbol == "is_initialized":
            return (
                True if any(_STARTS.intersection((each.name.rpartition(".")[2],)) for each in run.events) else UNKNOWN
            )
        if symbol:
            run.record(name, node, frame, arguments, keywords, function)
            is_own = any("world_size" in each.keywords and not self._is_of_launch(each) for each in run.events)
            return self._symbol(symbol) if not (arguments or keywords or is_own) else UNKNOWN
        if name in ("sys.exit", "builtins.exit", "builtins.quit", "os._exit"):
            run.stop(node, frame, arguments[0] if arguments else None)
        if name.startswith("os.exec"):
            run.stop(node, frame, None)
        if name.endswith(_ADDS_OPTIONS) and arguments and isinstance(arguments[0], Parser):
            if name.startswith("deepspeed.") and isinstance(node, ast.Call):
                arguments[0].options += [(*option, node) for option in CONFIG_OPTIONS]
            else:
                arguments[0].is_open = True
            return arguments[0]
        if name.startswith("builtins.") and name != "builtins.isinstance":
            for given in (*arguments, *keywords.values()):
                run.operated(given, node, frame)
                if isinstance(given, (FunctionValue, Bound)) and name in _PURE:
                    run.maybe_called(given, node, frame)
        if not is_open and name in _PURE:
            found = self._computed(_PURE[name], arguments, keywords, run)
            is_open = isinstance(found, Unknown) and name == "os.path.join"
            return open_texts.joined(arguments, getattr(node, "args", ()), frame) if is_open else found
        handler = getattr(self, f"_call_{name.replace('.', '_')}", None) if not is_open else None
        if handler is not None:
            return handler(run, arguments, keywords, node, frame)
        if function.last in (*dataclass_parser.PARSING, *dataclass_parser.READING) and isinstance(node, ast.Call):
            made = self._dataclasses(run, function, arguments, keywords, node, frame)
            if made is not UNKNOWN:
                return made
        if name.endswith(_RUNS_MAIN) and is_foreign(name):
            main = arguments[0] if arguments else keywords.get("main", frame.module.frame.names.get("main", UNKNOWN))
            # absl leaves out the words that are flags.
            words = self._line.items or [UNKNOWN]
            has_flags = any(not isinstance(word, str) or word.startswith("-") for word in words[1:])
            given = () if has_flags or not name.endswith("app.run") else (self._line,)
            return run.call(main, given, {}, node, frame, is_open=not given)
        if name in _SPAWNS:
            run.record(name, node, frame, arguments, keywords, function)
            return self._spawned(run, name, arguments, keywords, node, frame)
        if name.rpartition(".")[2] in _WRAPS and not is_open:
            return _with_attributes(_dictionary(arguments, keywords, run.region))
        if not name.startswith(_SILENT):
            run.record(name, node, frame, arguments, keywords, function)
        is_known = is_foreign(name)
        for given in (*arguments, *keywords.values()):
            if isinstance(given, Parser):
                given.is_open = True
            elif not is_known or (_CHANGES.match(function.last) and not isinstance(given, ListValue)):
                forget(given)
            if isinstance(given, (FunctionValue, Bound)):
                run.maybe_called(given, node, frame)
        if function.last in _STARTS_HOOKS:
            run.call_hooks(function, arguments, keywords, node, frame)
        model = wrapped_model(function)
        if model is not None:
            # A search whose value is not known may be made.
            searches = [truth(function.keywords.get(each, False)) for each in _SEARCHES]
            needs_all = bool(_NEEDS_ALL.search(name)) and not any(each is not False for each in searches)
            run.unsearched += needs_all
            try:
                run.call(model, arguments, keywords, node, frame, is_open=is_open)
            finally:
                run.unsearched -= needs_all
        self._note_moved(name, arguments, keywords)
        origin = self._origin(run, function, arguments, keywords, node, frame)
        if len(name) >= _MAX_NAME:
            return origin
        call = node if isinstance(node, ast.Call) else None
        if function.last in _SAME_MODULE and (module := _module_of(function)) is not None:
            return module
        if function.last in _SAME_DATASET and function.owner is not None and function.owner.name == _LOADED:
            return function.owner
        places = (call, frame.module.file, arguments, keywords, function.owner, origin, function.of)
        made = External(f"{name}()", run.region, {}, *places)
        if name.startswith("dataclasses.field") or name == "builtins.SystemExit":
            made.attributes.update(keywords)
        if function.last in _SHARDING:
            self._note_sharded(run, made, frame)
        if name in ("pathlib.Path", "pathlib.PurePath"):
            made.attributes["(path)"] = _path_of(arguments[0]) if len(arguments) == 1 else UNKNOWN
        return made

    def _note_sharded(self, run: Interpreter, made: External, frame: Frame) -> None:
        """Remember the model whose parameters a call divides among the ranks; to save it gathers them."""
        model = made.arguments[0] if made.arguments else None
        short = made.last.removesuffix("()")
        if short == "fully_shard" and made.keywords.get("reshard_after_forward", True) is not False:
            run.sharded += model.items or () if isinstance(model, ListValue) else (model,)
        elif short == "group_sharded_parallel" and "p_g_os" in (*made.arguments, *made.keywords.values()):
            run.sharded.append(made)
        elif short == "save_group_sharded_model" and any(model is each for each in run.sharded) and made.call:
            run.record(SHARDED_MODEL, made.call, frame, made.arguments, dict(made.keywords))

    def _origin(
        self,
        run: Interpreter,
        function: External,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> Unknown:
        """Return an unknown value that records whether the call's result may differ between ranks."""
        name, short = function.name, function.last
        # The device on which something lies does not decide what it is.
        named = (value for keyword, value in keywords.items() if keyword not in _PLACES)
        given = () if short in _MOVES else (*arguments, *named)
        package = name.partition(".")[0]
        if short in _SEEDS:
            packages = (package,) if short in ("seed", "manual_seed", "manual_seed_all") else _RANDOM
            origin = mixed(*given) if any(isinstance(each, (Unknown, External)) for each in given) else AGREED
            self._random.update(dict.fromkeys(packages, OWN if isinstance(origin, Own) else origin))
            return UNKNOWN
        if _ON_ONE_RANK.search(name):
            run.change_on_one(node, frame, 0 if short == "reduce" else 1)
            return OWN
        if short == "size" and arguments:
            return size_of(function.owner, arguments[0])
        if AGREEING.search(short) or short in EQUAL:
            if isinstance(node, ast.Call) and is_collective_event(name, node):
                run.agree(node, frame)
            return AGREED
        if _DRAWS.search(name):
            return self._random.get(package, OWN)
        if name in _CLOCKS or short in _OWN_NAMES:
            return OWN
        # What is read from a file does not depend on where it is put.
        found = mixed(*(arguments[:1] if name in _LOADS else given))
        if found is not AGREED and function.owner is not None:
            # A model is the same on every rank: what it makes of the same data is so, too.
            found = mixed(found, function.owner) if given else mixed(function.owner)
        if short in ("isnan", "isinf", "isfinite") and found is UNKNOWN and package in ("torch", "paddle"):
            return OWN
        is_fetched = short in OWN_RESULTS or name.endswith("Executor().run")
        if is_fetched and found is UNKNOWN and LOSS.search(ast.unparse(node)):
            return OWN
        keeps = KEEPS.search(name) or short in _ADDING
        if keeps and function.owner is not None and isinstance(found, Own):
            function.owner.origin = found
        return found

    def _note_moved(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Remember the files that a call may change. A command whose output is read (`nvcc --version`) changes none."""
        is_asked = name.endswith(("output", "popen")) or bool({"stdout", "capture_output"} & keywords.keys())
        starts = name.startswith(("subprocess.", "os.system", "os.popen")) and not is_asked and "()" not in name
        if starts or name.startswith("os.chdir") or name.endswith(_WRITING):
            self._written.add("*")
        elif name.startswith(("shutil.", "os.rename", "os.replace", "os.remove", "os.unlink", "os.symlink", "os.link")):
            self._written.update(each if isinstance(each, str) else "*" for each in map(_path_of, arguments))

    def _computed(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], run: Interpreter
    ) -> Any:
        try:
            found = function(*map(native, arguments), **{name: native(value) for name, value in keywords.items()})
        except _ERRORS:
            return mixed(*arguments, *keywords.values())
        return of_native(found, run.region)

    def _spawned(
        self,
        run: Interpreter,
        name: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> Any:
        target = arguments[0] if arguments else keywords.get("fn", keywords.get("func", UNKNOWN))
        given = keywords.get("args", arguments[1] if len(arguments) > 1 else ())
        items = run.items(given) or []
        number = self._symbol("local_rank")
        first = () if name.startswith("paddle") else (number,)
        return run.call(target, (*first, *items), {}, node, frame, is_open=run.items(given) is None)

    def _call_collections_defaultdict(
        self, run: Interpreter, arguments: tuple[Any, ...], _: Any, node: ast.expr, frame: Frame
    ) -> Any:
        """A dictionary whose items, of a class of the user, are all taken for one."""
        made = External("collections.defaultdict()", run.region, arguments=arguments)
        if arguments and isinstance(arguments[0], (ClassValue, FunctionValue)):
            made.attributes[ANY_ITEM] = run.call(arguments[0], (), {}, node, frame)
        return made

    def _call_builtins_len(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        items = run.items(arguments[0]) if arguments else None
        return len(items) if items is not None else size_origin(arguments[0]) if arguments else UNKNOWN

    def _call_builtins_range(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        try:
            found = range(*map(native, arguments))
        except _ERRORS:
            size = mixed(*arguments)
            return ListValue(None, run.region, origin=size, size_origin=UNKNOWN if size is OWN_PART else size)
        # The length of a large range has no number in C.
        return tuple(found) if not found[_MAX_RANGE : _MAX_RANGE + 1] else UNKNOWN

    def _call_builtins_next(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if not arguments:
            return UNKNOWN
        run.exhausted = mixed(run.exhausted, size_origin(arguments[0]))
        return OWN if gives_own_data(arguments[0]) else mixed(arguments[0])

    def _call_builtins_isinstance(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if len(arguments) != 2:
            return UNKNOWN
        value, kind = arguments
        kinds = kind if isinstance(kind, tuple) else (kind,)
        found = [_is_of(value, each) for each in kinds]
        return True if True in found else UNKNOWN if None in found else False

    def _call_tempfile_gettempdir(self, run: Interpreter, *_: Any) -> Any:
        return "/tmp"

    def _call_inspect_isclass(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        kinds = [_kind(each) for each in arguments]
        return kinds[0] == "class" if len(kinds) == 1 and kinds[0] else UNKNOWN

    def _call_inspect_isfunction(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        kinds = [_kind(each) for each in arguments]
        return kinds[0] == "function" if len(kinds) == 1 and kinds[0] else UNKNOWN

    def _call_builtins_callable(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        kinds = [_kind(each) for each in arguments]
        return kinds[0] != "data" if len(kinds) == 1 and kinds[0] else UNKNOWN

    def _call_builtins_getattr(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: Any, node: ast.expr, frame: Frame
    ) -> Any:
        if len(arguments) < 2 or not isinstance(arguments[1], str):
            return UNKNOWN
        owner, name = arguments[0], arguments[1]
        if len(arguments) == 2:
            return run.attribute(owner, name, node, frame)
        is_there = self._has(owner, name)
        if is_there is False:
            return arguments[2]
        # A property may raise AttributeError, for which the default stands.
        found = run.attempt(lambda: run.attribute(owner, name, node, frame)) if is_there else UNKNOWN
        return UNKNOWN if isinstance(found, External) else found

    def _call_builtins_hasattr(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        known = len(arguments) == 2 and isinstance(arguments[1], str)
        found = self._has(arguments[0], arguments[1]) if known else None
        return UNKNOWN if found is None else found

    def _has(self, owner: Any, name: str) -> bool | None:
        if isinstance(owner, DictValue) and owner.has_attributes and owner.items is not None:
            return name in owner.items
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return True
            found = owner.owner.lookup(name)
            if found is not None:
                is_property = isinstance(found[0], FunctionValue) and bool(_PROPERTIES & found[0].decorators)
                return None if is_property else True
            is_open = owner.is_open or owner.owner.foreign is not None or owner.owner.lookup("__getattr__") is not None
            return None if is_open else False
        return None

    def _call_builtins_setattr(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if len(arguments) == 3 and isinstance(arguments[1], str):
            run.set_attribute(arguments[0], arguments[1], arguments[2])
        elif arguments and isinstance(arguments[0], DictValue):
            arguments[0].items = None
        elif arguments and isinstance(arguments[0], Instance):
            forget(arguments[0])

    def _call_importlib_import_module(
        self, run: Interpreter, arguments: tuple[Any, ...], _: Any, node: ast.expr, frame: Frame
    ) -> Any:
        name = arguments[0] if len(arguments) == 1 else UNKNOWN
        if not isinstance(name, str):
            return run.call(UNKNOWN, arguments, {}, node, frame)
        return run.module_named(name, frame) or External(name)

    def _call_builtins_exec(
        self, run: Interpreter, arguments: tuple[Any, ...], _: Any, node: ast.expr, frame: Frame
    ) -> Any:
        """Handle `exec`: it may change the values of a module's names, but hardly functions, classes and modules."""
        names = frame.module.frame.names
        if frame.names is names or len(arguments) > 1:
            changed = [name for name, value in names.items() if not isinstance(value, _LASTING)]
            names.update(dict.fromkeys(changed, UNKNOWN))
        return run.call(UNKNOWN, arguments, {}, node, frame)

    def _call_builtins_globals(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: Any, node: ast.expr, frame: Frame
    ) -> Any:
        if _SETS_GLOBALS.search(frame.module.file.text):
            self._call_builtins_exec(run, (UNKNOWN, UNKNOWN), keywords, node, frame)
        return DictValue(dict(frame.module.frame.names), run.region)

    def _call_builtins_locals(
        self, run: Interpreter, arguments: Any, keywords: Any, node: ast.expr, frame: Frame, *_: Any
    ) -> Any:
        return DictValue(dict(frame.names), run.region)

    def _call_builtins_vars(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if arguments and isinstance(arguments[0], Instance):
            # What is done with its attributes is not followed.
            return one_of((arguments[0],))
        return arguments[0] if arguments and isinstance(arguments[0], DictValue) else UNKNOWN

    def _call_builtins_type(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        known = len(arguments) == 1 and isinstance(arguments[0], Instance)
        return arguments[0].owner if known else External("builtins.type()")

    _call_builtins_object___setattr__ = _call_builtins_setattr

    def _call_builtins_list(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if not arguments:
            return ListValue([], run.region)
        given = arguments[0]
        return ListValue(run.items(given), run.region, origin=mixed(given), size_origin=size_origin(given))

    def _call_builtins_set(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        items = run.items(arguments[0]) if arguments else []
        try:
            return of_native(set(map(native, items or [])), run.region) if items is not None else UNKNOWN
        except _ERRORS:
            return UNKNOWN

    def _call_builtins_tuple(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        items = run.items(arguments[0]) if arguments else []
        return tuple(items) if items is not None else UNKNOWN

    def _call_builtins_sorted(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], node: ast.expr, frame: Frame
    ) -> Any:
        items = run.items(arguments[0]) if arguments and not keywords else None
        for given in keywords.values():
            if isinstance(given, (FunctionValue, Bound)):
                run.maybe_called(given, node, frame)
        try:
            return ListValue(sorted(map(native, items)), run.region) if items is not None else UNKNOWN
        except _ERRORS:
            return UNKNOWN

    def _call_builtins_enumerate(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        items = run.items(arguments[0]) if len(arguments) == 1 else None
        unknown = External("builtins.enumerate()", run.region, arguments=arguments)
        return tuple(enumerate(items)) if items is not None else unknown

    def _call_builtins_zip(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        groups = [run.items(each) for each in arguments]
        known = [each for each in groups if each is not None]
        unknown = External("builtins.zip()", run.region, arguments=arguments)
        return tuple(zip(*known, strict=False)) if len(known) == len(groups) else unknown

    def _call_builtins_dict(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any
    ) -> Any:
        return _dictionary(arguments, keywords, run.region)

    def _call_copy_deepcopy(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return _copied(arguments[0], run.region, {}) if arguments else UNKNOWN

    def _call_copy_copy(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return _shallow(arguments[0], run.region) if arguments else UNKNOWN

    def _call_functools_partial(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any
    ) -> Any:
        return Bound(arguments[0], arguments[1:], keywords) if arguments else UNKNOWN

    def _call_asyncio_run(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: Any, node: ast.expr, frame: Frame
    ) -> Any:
        return run.awaited(arguments[0], node, frame) if arguments else UNKNOWN

    def _call_os_getenv(self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any) -> Any:
        name, default = (*arguments, keywords.get("default", UNKNOWN), UNKNOWN)[:2]
        if not isinstance(name, str) or name in self._variables:
            return self._variable(name)
        if self.world.is_closed:
            self.not_set.append(name)
            return default
        is_plain = isinstance(default, (str, int, float)) and OF_RANK_NAMES.search(name) is None
        return default if is_plain and assume_not_set(name, str(default)) else self._variable(name)

    _call_os_environ_get = _call_os_getenv

    def _call_os_environ_setdefault(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        name = arguments[0] if arguments else UNKNOWN
        if self.has_variable(run, name) is not True:
            self.set_variable(run, name, UNKNOWN)
        return self._variable(name)

    def _call_os_environ_pop(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        before = self._variable(arguments[0]) if arguments else UNKNOWN
        self.set_variable(run, arguments[0] if arguments else UNKNOWN, UNKNOWN)
        return before

    def _call_os_environ_update(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        given = arguments[0] if arguments else UNKNOWN
        if isinstance(given, DictValue) and given.items is not None:
            for name, value in given.items.items():
                self.set_variable(run, name, value)
        else:
            self.set_variable(run, UNKNOWN, UNKNOWN)

    # --- files ---------------------------------------------------------------------------------------------------

    def _call_builtins_open(
        self,
        run: Interpreter,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> Any:
        run.record("builtins.open", node, frame, arguments, keywords)
        mode = keywords.get("mode", arguments[1] if len(arguments) > 1 else "r")
        path = _path_of(arguments[0] if arguments else keywords.get("file", UNKNOWN))
        if not isinstance(mode, str) or set(mode) & set("wax+"):
            self._written.add(path if isinstance(path, str) else "*")
        return OpenFile(path, mode if isinstance(mode, str) else "")

    _call_codecs_open = _call_io_open = _call_builtins_open

    def _text(self, source: Any) -> str | None:
        """Return the text of a file; None if it is not known, or may have been written by the program itself."""
        path = source.path if isinstance(source, OpenFile) else _path_of(source)
        if not isinstance(path, str) or self._written & {path, "*"}:
            return None
        return self.world.read(path)

    def _loaded(self, run: Interpreter, source: Any, load: Callable[[str], Any], *, is_path: bool = False) -> Any:
        text = source if isinstance(source, str) and not is_path else self._text(source)
        path = source.path if isinstance(source, OpenFile) else source if is_path else ""
        try:
            return of_native(load(text), run.region, str(path)) if text is not None else UNKNOWN
        except (ValueError, RecursionError):
            return UNKNOWN

    def _call_os_listdir(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        found = self._entries(_path_of(arguments[0]) if arguments else ".")
        return ListValue(found, run.region) if found is not None else UNKNOWN

    def _call_glob_glob(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        path = _path_of(arguments[0]) if len(arguments) == 1 else UNKNOWN
        folder, name = posixpath.split(path) if isinstance(path, str) else ("*", "")
        entries = self._entries(folder or ".")
        if entries is None or re.search(r"[*?\[]", folder):
            return UNKNOWN
        # Data are seldom part of what is submitted: what is not there now may be there then.
        found = [posixpath.join(folder, each) for each in fnmatch.filter(entries, name)]
        return ListValue(found, run.region) if found else UNKNOWN

    _call_glob_iglob = _call_glob_glob

    def _entries(self, folder: Any) -> list[str] | None:
        """Return the entries of a folder; None if it is not there, or the program may change it."""
        changed = "*" in self._written or any(
            isinstance(folder, str) and posixpath.dirname(each) == folder for each in self._written
        )
        found = self.world.names(folder) if isinstance(folder, str) and not changed else None
        # Data are seldom part of what is submitted: a folder with files of one kind is taken for what the ranks read.
        kinds = {posixpath.splitext(each)[1] for each in found or ()}
        return list(found) if found and len(kinds) == 1 and not any(each.endswith("/") for each in found) else None

    def _call_json_load(self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any) -> Any:
        stream = arguments[0] if arguments else keywords.get("fp", UNKNOWN)
        return UNKNOWN if keywords.keys() - {"fp"} else self._loaded(run, stream, json.loads)

    def _call_yaml_load(self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any) -> Any:
        loader = keywords.get("Loader", arguments[1] if len(arguments) > 1 else External("yaml.SafeLoader"))
        is_plain = isinstance(loader, External) and loader.name in _LOADERS
        changed = any(each.name.startswith("yaml.") and ".add_" in each.name for each in run.events)
        stream = arguments[0] if arguments else keywords.get("stream", UNKNOWN)
        return self._loaded(run, stream, _yaml) if is_plain and not changed else UNKNOWN

    _call_yaml_safe_load = _call_yaml_load
    _call_yaml_full_load = _call_yaml_load

    def _call_omegaconf_OmegaConf_load(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        text = self._text(arguments[0]) if arguments else None
        # Its reader takes `1e-4` for a number.
        if text is None or "${" in text or re.search(r"\d[eE][-+]?\d", text):
            return UNKNOWN
        return _with_attributes(self._loaded(run, _path_of(arguments[0]), _yaml, is_path=True))

    def _call_omegaconf_OmegaConf_create(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return _with_attributes(arguments[0]) if arguments and isinstance(arguments[0], DictValue) else UNKNOWN

    def _call_os_path_abspath(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        path = _path_of(arguments[0]) if arguments else UNKNOWN
        if isinstance(path, str) and not path.startswith("/"):
            # The folder is not known, but the file may be read.
            return External("os.path.abspath()", run.region, {"(path)": path})
        return posixpath.normpath(path) if isinstance(path, str) else UNKNOWN

    _call_os_path_realpath = _call_os_path_abspath

    # --- argparse ------------------------------------------------------------------------------------------------

    def _call_argparse_ArgumentParser(
        self, run: Interpreter, arguments: tuple[Any, ...], keywords: dict[str, Any], *_: Any
    ) -> Any:
        strange = {"argument_default", "fromfile_prefix_chars", "prefix_chars", "conflict_handler"}
        abbreviates = keywords.get("allow_abbrev", True)
        parents = run.items(keywords.get("parents", ()))
        known = [each for each in parents or () if isinstance(each, Parser)]
        is_open = bool(strange & keywords.keys()) or parents is None or len(known) < len(parents)
        return Parser(
            options=[option for each in known for option in each.options],
            defaults={name: value for each in known for name, value in each.defaults.items()},
            is_open=is_open or any(each.is_open for each in known),
            abbreviates=abbreviates is not False,
            has_help=keywords.get("add_help", True) is not False,
        )

    def _method_of_parser(
        self,
        run: Interpreter,
        parser: Parser,
        name: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> Any:
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if name == "add_argument" and isinstance(node, ast.Call):
            if arguments and all(isinstance(each, str) for each in arguments) and run.region is None:
                parser.options.append((arguments, keywords, node))
            else:
                parser.is_open = True
            # An attribute that is set of what it returns may change the option.
            return parser
        if name == "set_defaults":
            parser.defaults.update(keywords)
            return None
        if name == "__init__":
            return None
        if name == "error":
            run.stop(node, frame, 2)
        if name not in ("parse_args", "parse_known_args"):
            parser.is_open = parser.is_open or name != "print_help"
            return UNKNOWN
        given = arguments[0] if arguments else keywords.get("args")
        is_line = given is None and not arguments[1:] and "namespace" not in keywords and not self._is_line_changed
        is_strict = name == "parse_args" and is_line and not parser.is_open and not parser.takes_rest
        run.note_parser(node, frame, parser.spellings() if is_strict else ())
        words = self._words(run, given)
        if "namespace" in keywords or len(arguments) > 1:
            words = None
            forget(keywords.get("namespace", arguments[-1] if arguments else None))
        found, refusal, option = argument_parser.parse(parser, words, self._convert(run, node, frame), run.region)
        if refusal:
            run.refuse(option or node, frame, refusal)
        if parser.options and (found.items is not None or None in (words or ())):
            run.checks.add(found.items is not None)
        return (found, UNKNOWN) if name == "parse_known_args" else found

    def _words(self, run: Interpreter, given: Any) -> Sequence[str | None] | None:
        """Return the words for a parser: its arguments, or those of the line; None if they are unknown."""
        words: Sequence[str | None] | None = self.world.arguments
        if words is None or (given is None and None in words):
            return words
        # The program may have changed the line.
        items = run.items(given) if given is not None else run.items(self._line)
        if items is None:
            return None
        return [each if isinstance(each, str) else None for each in (items if given is not None else items[1:])]

    def _dataclasses(
        self,
        run: Interpreter,
        function: External,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.Call,
        frame: Frame,
    ) -> Any:
        """Return the result of a parser of dataclasses: an object for each; UNKNOWN for any other parser."""
        owners = dataclass_parser.classes_of(function.owner)

        def default_of(value: Any) -> Any:
            return self.field_default(run, value, node, frame)

        values: Mapping[str, Any] | None = None
        if function.last in dataclass_parser.READING:
            read = next(iter((*arguments, *keywords.values())), UNKNOWN)
            if function.last != "parse_dict":
                read = self._loaded(run, _path_of(read), _yaml, is_path=True)
            values = read.items if isinstance(read, DictValue) else None
        found: list[Any] = []
        for number, owner in enumerate(owners):
            if isinstance(owner, External):
                name = f"{function.name}()" + f"[{number}]" * bool(number)
                found.append(External(name, run.region, owner=function.owner))
                continue
            if function.last in dataclass_parser.PARSING:
                given = arguments[0] if arguments else keywords.get("args")
                parser = dataclass_parser.options_of(owner, default_of, node)
                words = self._words(run, given)
                parsed, refusal, _ = argument_parser.parse(parser, words, self._convert(run, node, frame), run.region)
                if refusal:
                    run.refuse(node, frame, refusal)
                values = parsed.items
            found.append(dataclass_parser.make_instance(owner, values, default_of, run.region))
        return tuple(found) if found else UNKNOWN

    def _convert(self, run: Interpreter, node: ast.expr, frame: Frame) -> Callable[[Any, str], Any]:
        def convert(kind: Any, word: str) -> Any:
            if not isinstance(kind, (FunctionValue, External)) or (
                isinstance(kind, External) and kind.name not in _PURE
            ):
                return UNKNOWN
            return run.attempt(lambda: run.call(kind, (word,), {}, node, frame))

        return convert

    # --- methods of known values ---------------------------------------------------------------------------------

    def forget_receiver(self, method: Method) -> None:
        """Take the value of a method for changed, which is called with something unknown."""
        if isinstance(method.receiver, Parser):
            method.receiver.is_open = True
        else:
            forget(method.receiver)

    def method(
        self,
        run: Interpreter,
        method: Method,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        node: ast.expr,
        frame: Frame,
    ) -> Any:
        """Return the result of a method of a known value."""
        receiver, name = method.receiver, method.name
        if isinstance(receiver, ListValue) and name in _ADDING:
            is_same = name == "append" and bool(arguments) and (receiver.origin is None or receiver.item is not None)
            before = arguments[0] if receiver.origin is None and is_same else receiver.item
            receiver.item = merged(before, arguments[0]) if is_same else None
            receiver.origin = mixed(*arguments) if receiver.origin is None else mixed(receiver.origin, *arguments)
            receiver.size_origin = mixed(receiver.size_origin, run.own)
        if isinstance(receiver, Parser):
            return self._method_of_parser(run, receiver, name, arguments, keywords, node, frame)
        if isinstance(receiver, OpenFile):
            if name == "write":
                self._written.add(receiver.path if isinstance(receiver.path, str) else "*")
            text = self._text(receiver) if name == "read" and not arguments else None
            return text if text is not None else UNKNOWN
        if isinstance(receiver, DictValue):
            return self._method_of_dictionary(run, receiver, name, arguments, keywords)
        if isinstance(receiver, ListValue):
            return self._method_of_list(run, receiver, name, arguments)
        if isinstance(receiver, str) and name in _TEXT:
            return self._computed(getattr(receiver, name), arguments, keywords, run)
        if isinstance(receiver, str) and name == "format":
            is_plain = all(isinstance(each, (str, int)) for each in (*arguments, *keywords.values()))
            if is_plain and not _FORMATTED.search(receiver):
                return self._computed(receiver.format, arguments, keywords, run)
            return mixed(*arguments, *keywords.values())
        return UNKNOWN

    def _method_of_dictionary(
        self, run: Interpreter, receiver: DictValue, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        items = receiver.items
        if name in ("__setattr__", "__setitem__", "__delattr__", "__delitem__", "__ior__"):
            receiver.items = None
            return UNKNOWN
        if name == "update":
            more = _dictionary(arguments, keywords, None).items
            run.change(receiver, lambda before: {**before, **more} if more is not None else None)
            return None
        if name in ("clear", "popitem", "pop", "setdefault"):
            known = items is not None and bool(arguments) and isinstance(arguments[0], (str, int))
            found = (
                items.get(arguments[0], arguments[1] if len(arguments) > 1 else UNKNOWN) if known and items else UNKNOWN
            )
            if name == "setdefault" and known and items is not None and arguments[0] in items:
                return found
            if name == "setdefault" and known:
                run.change(receiver, lambda before: {**before, arguments[0]: found})
                return found
            run.change(
                receiver, lambda before: {k: v for k, v in before.items() if k != arguments[0]} if known else None
            )
            return found
        if items is None:
            return UNKNOWN
        if name == "get" and arguments:
            try:
                return items.get(native(arguments[0]), arguments[1] if len(arguments) > 1 else None)
            except _ERRORS:
                return UNKNOWN
        if name in ("keys", "values", "items"):
            return tuple(getattr(items, name)())
        return _shallow(receiver, run.region) if name == "copy" else UNKNOWN

    def _method_of_list(self, run: Interpreter, receiver: ListValue, name: str, arguments: tuple[Any, ...]) -> Any:
        if receiver.is_set and name in ("add", "discard", "remove", "update"):
            run.change(receiver, lambda items: _changed_set(items, name, arguments))
        elif name == "append" and len(arguments) == 1:
            run.change(receiver, lambda items: [*items, arguments[0]])
        elif name == "extend" and len(arguments) == 1:
            run.change(receiver, lambda items: [*items, *(run.items(arguments[0], strict=True) or ())])
        elif name == "copy":
            return _shallow(receiver, run.region)
        elif name in ("index", "count"):
            return UNKNOWN
        else:
            taken = one_of(receiver.items or ())
            if name == "pop" and receiver.items and receiver.region is run.region and not arguments:
                return receiver.items.pop()
            receiver.items = None
            return taken
        return None


_PLAIN = names("plain_decorators")
_PROPERTIES = frozenset(("property", "cached_property"))
_LOADERS = names("yaml_loaders")
_STARTS = names("group_starts")


def _module_of(method: External) -> Instance | External | None:
    """Return the module of torch, or layer of Paddle, that something is a method of; None for other methods."""
    if method.of is not None:
        return method.of
    owner = method.owner
    return owner if owner is not None and owner.is_result and owner.last[:1].isupper() else None


def _yaml(text: str) -> Any:
    """Parse YAML. Raises ValueError for invalid text."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _changed_set(items: list[Any], how: str, arguments: Sequence[Any]) -> list[Any]:
    """Return the items of a set after a method. Raises NotKnown, TypeError or AttributeError if they are not known."""
    changed = set(map(native, items))
    getattr(changed, how)(*map(native, arguments))
    return list(changed)


def _path_of(value: Any) -> Any:
    if isinstance(value, External):
        return value.attributes.get("(path)", UNKNOWN)
    return value if isinstance(value, str) or (isinstance(value, Unknown) and value.text) else UNKNOWN


def _dictionary(arguments: Sequence[Any], keywords: Mapping[str, Any], region: object) -> DictValue:
    first = arguments[0] if arguments else DictValue({})
    if not isinstance(first, DictValue) or first.items is None:
        return DictValue(None, region)
    return DictValue({**first.items, **keywords}, region, file=first.file)


def _with_attributes(value: Any) -> Any:
    """Return a dictionary whose keys, and those of the ones in it, are its attributes."""
    if isinstance(value, DictValue):
        value.has_attributes = True
        # It may give keys that are not there.
        value.file = ""
        for item in (value.items or {}).values():
            _with_attributes(item)
    elif isinstance(value, ListValue):
        for item in value.items or ():
            _with_attributes(item)
    return value


def _shallow(value: Any, region: object) -> Any:
    """Return a copy that shares its items."""
    if isinstance(value, DictValue):
        return replace(value, items=dict(value.items) if value.items is not None else None, region=region)
    if isinstance(value, ListValue):
        return replace(value, items=list(value.items) if value.items is not None else None, region=region)
    return replace(value, attributes=dict(value.attributes), region=region) if isinstance(value, Instance) else value


def _copied(value: Any, region: object, made: dict[int, Any]) -> Any:
    """Return a copy of a value and of what is in it; what it contains twice, the copy contains twice."""
    if id(value) not in made and isinstance(value, External) and value.is_result:
        made[id(value)] = replace(value)
    if id(value) in made or not isinstance(value, (DictValue, ListValue, Instance)):
        return made.get(id(value), value)
    copy = made[id(value)] = _shallow(value, region)
    if isinstance(copy, ListValue) and copy.items is not None:
        copy.items = [_copied(item, region, made) for item in copy.items]
    elif isinstance(copy, (DictValue, Instance)):
        items: dict[Any, Any] = (copy.items or {}) if isinstance(copy, DictValue) else copy.attributes
        for name, item in items.items():
            items[name] = _copied(item, region, made)
    return copy


#: Values of Python's own types.
_DATA = (ListValue, DictValue, tuple, str, bytes, bool, int, float, type(None))
_SEQUENCES = frozenset(("collections.abc.Sequence", "typing.Sequence", "collections.Sequence"))


def _kind(value: Any) -> str:
    """Whether a value is a `class`, a `function` or `data`; empty if it may be something else."""
    if isinstance(value, ClassValue) or (isinstance(value, External) and value.name in PLAIN_TYPES):
        return "class"
    return "function" if isinstance(value, FunctionValue) else "data" if isinstance(value, _DATA) else ""


def _is_of(value: Any, kind: Any) -> bool | None:
    """Return whether a value is of a class; None if that is not known."""
    if isinstance(value, (ClassValue, FunctionValue)) and getattr(kind, "name", "") in PLAIN_TYPES | _SEQUENCES:
        return False
    if isinstance(kind, External) and kind.name in _SEQUENCES and isinstance(value, _DATA):
        return isinstance(value, (tuple, str, bytes)) or (isinstance(value, ListValue) and not value.is_set)
    if isinstance(value, Instance) and isinstance(kind, ClassValue):
        return True if kind in value.owner.order() else None if value.owner.foreign is not None else False
    if isinstance(value, ClassValue) and isinstance(kind, External) and kind.name == "builtins.type":
        return True
    if not isinstance(kind, External) or not isinstance(value, _DATA):
        return None
    real = getattr(builtins, kind.last, None)
    if isinstance(value, DictValue) and value.has_attributes:
        # A namespace is not a dictionary, an EasyDict is one.
        return None
    python = {ListValue: list, DictValue: dict}.get(type(value), type(value))
    if isinstance(value, ListValue) and value.is_set:
        python = set
    return issubclass(python, real) if kind.name.startswith("builtins.") and isinstance(real, type) else None

"""The results of functions of Python and of the frameworks in a simulated program."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight.sources.python.collectives import AGREEING, is_collective_event
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.simulation import argument_parser, dataclass_parser, open_texts
from preflight.sources.python.simulation.argument_parser import CONFIG_OPTIONS, Parser
from preflight.sources.python.simulation.data_origins import (
    ANY_ITEM,
    is_list_of_layers,
    size_of,
    wrapped_model,
)
from preflight.sources.python.simulation.divergence import SHARDED_MODEL
from preflight.sources.python.simulation.libraries import names, pattern, symbol_of
from preflight.sources.python.simulation.standard_library import (
    ERRORS,
    StandardLibrary,
    changed_set,
    dictionary_of,
    path_of,
    shallow_copy,
    with_attributes,
    yaml_value,
)
from preflight.sources.python.simulation.values import (
    AGREED,
    OWN,
    UNKNOWN,
    Bound,
    DictValue,
    External,
    Frame,
    FunctionValue,
    Instance,
    ListValue,
    Method,
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
#: What no rank waits in.
_SILENT = ("builtins.", "math.", "os.path.", "json.", "typing.", "functools.", "copy.", "re.", "logging.", "warnings.")


class Library(StandardLibrary):
    """The functions of libraries, for one rank."""

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
        before, more = path.attributes.get("(path)", UNKNOWN), path_of(other)
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
            return with_attributes(dictionary_of(arguments, keywords, run.region))
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
            made.attributes["(path)"] = path_of(arguments[0]) if len(arguments) == 1 else UNKNOWN
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
            self._written.update(each if isinstance(each, str) else "*" for each in map(path_of, arguments))

    def _computed(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], run: Interpreter
    ) -> Any:
        try:
            found = function(*map(native, arguments), **{name: native(value) for name, value in keywords.items()})
        except ERRORS:
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
                read = self._loaded(run, path_of(read), yaml_value, is_path=True)
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
            more = dictionary_of(arguments, keywords, None).items
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
            except ERRORS:
                return UNKNOWN
        if name in ("keys", "values", "items"):
            return tuple(getattr(items, name)())
        return shallow_copy(receiver, run.region) if name == "copy" else UNKNOWN

    def _method_of_list(self, run: Interpreter, receiver: ListValue, name: str, arguments: tuple[Any, ...]) -> Any:
        if receiver.is_set and name in ("add", "discard", "remove", "update"):
            run.change(receiver, lambda items: changed_set(items, name, arguments))
        elif name == "append" and len(arguments) == 1:
            run.change(receiver, lambda items: [*items, arguments[0]])
        elif name == "extend" and len(arguments) == 1:
            run.change(receiver, lambda items: [*items, *(run.items(arguments[0], strict=True) or ())])
        elif name == "copy":
            return shallow_copy(receiver, run.region)
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
_STARTS = names("group_starts")


def _module_of(method: External) -> Instance | External | None:
    """Return the module of torch, or layer of Paddle, that something is a method of; None for other methods."""
    if method.of is not None:
        return method.of
    owner = method.owner
    return owner if owner is not None and owner.is_result and owner.last[:1].isupper() else None

"""The results of functions of Python and its standard library in a simulated program."""

from __future__ import annotations

import ast
import builtins
import fnmatch
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight.sources.base import assume_not_set
from preflight.sources.python.simulation.data_origins import (
    ANY_ITEM,
    gives_own_data,
    size_origin,
)
from preflight.sources.python.simulation.libraries import names
from preflight.sources.python.simulation.values import (
    OF_RANK,
    OWN,
    OWN_PART,
    PLAIN_TYPES,
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
    NotKnown,
    OpenFile,
    Unknown,
    forget,
    mixed,
    native,
    of_native,
    one_of,
)
from preflight.sources.python.simulation.world import OF_RANK_NAMES, World

if TYPE_CHECKING:
    from preflight.sources.python.simulation.interpreter import Interpreter

ERRORS = (
    *(TypeError, ValueError, ArithmeticError, LookupError, NotKnown, AttributeError, RecursionError, MemoryError),
)
PROPERTIES = frozenset(("property", "cached_property"))
_MAX_RANGE = 10_000

#: What gives names of a module values that are computed.
_SETS_GLOBALS = re.compile(r"\bglobals\(\)(?:\[[^]]*\]\s*=(?!=)|\.(?:update|setdefault)\()")

#: Values of names that code from elsewhere hardly replaces.
_LASTING = (FunctionValue, ClassValue, ModuleValue, External)


_LOADERS = names("yaml_loaders")

#: Values of Python's own types.
_DATA = (ListValue, DictValue, tuple, str, bytes, bool, int, float, type(None))

_SEQUENCES = frozenset(("collections.abc.Sequence", "typing.Sequence", "collections.Sequence"))


class StandardLibrary:
    """The functions of Python, for one rank."""

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
        except ERRORS:
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
                is_property = isinstance(found[0], FunctionValue) and bool(PROPERTIES & found[0].decorators)
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

    _call_builtins_object___setattr__ = _call_builtins_setattr

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

    def _call_builtins_list(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        if not arguments:
            return ListValue([], run.region)
        given = arguments[0]
        return ListValue(run.items(given), run.region, origin=mixed(given), size_origin=size_origin(given))

    def _call_builtins_set(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        items = run.items(arguments[0]) if arguments else []
        try:
            return of_native(set(map(native, items or [])), run.region) if items is not None else UNKNOWN
        except ERRORS:
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
        except ERRORS:
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
        return dictionary_of(arguments, keywords, run.region)

    def _call_copy_deepcopy(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return _copied(arguments[0], run.region, {}) if arguments else UNKNOWN

    def _call_copy_copy(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return shallow_copy(arguments[0], run.region) if arguments else UNKNOWN

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
        path = path_of(arguments[0] if arguments else keywords.get("file", UNKNOWN))
        if not isinstance(mode, str) or set(mode) & set("wax+"):
            self._written.add(path if isinstance(path, str) else "*")
        return OpenFile(path, mode if isinstance(mode, str) else "")

    _call_codecs_open = _call_io_open = _call_builtins_open

    def _text(self, source: Any) -> str | None:
        """Return the text of a file; None if it is not known, or may have been written by the program itself."""
        path = source.path if isinstance(source, OpenFile) else path_of(source)
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
        found = self._entries(path_of(arguments[0]) if arguments else ".")
        return ListValue(found, run.region) if found is not None else UNKNOWN

    def _call_glob_glob(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        path = path_of(arguments[0]) if len(arguments) == 1 else UNKNOWN
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
        return self._loaded(run, stream, yaml_value) if is_plain and not changed else UNKNOWN

    _call_yaml_safe_load = _call_yaml_load

    _call_yaml_full_load = _call_yaml_load

    def _call_omegaconf_OmegaConf_load(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        text = self._text(arguments[0]) if arguments else None
        # Its reader takes `1e-4` for a number.
        if text is None or "${" in text or re.search(r"\d[eE][-+]?\d", text):
            return UNKNOWN
        return with_attributes(self._loaded(run, path_of(arguments[0]), yaml_value, is_path=True))

    def _call_omegaconf_OmegaConf_create(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        return with_attributes(arguments[0]) if arguments and isinstance(arguments[0], DictValue) else UNKNOWN

    def _call_os_path_abspath(self, run: Interpreter, arguments: tuple[Any, ...], *_: Any) -> Any:
        path = path_of(arguments[0]) if arguments else UNKNOWN
        if isinstance(path, str) and not path.startswith("/"):
            # The folder is not known, but the file may be read.
            return External("os.path.abspath()", run.region, {"(path)": path})
        return posixpath.normpath(path) if isinstance(path, str) else UNKNOWN

    _call_os_path_realpath = _call_os_path_abspath


def yaml_value(text: str) -> Any:
    """Parse YAML. Raises ValueError for invalid text."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def changed_set(items: list[Any], how: str, arguments: Sequence[Any]) -> list[Any]:
    """Return the items of a set after a method. Raises NotKnown, TypeError or AttributeError if they are not known."""
    changed = set(map(native, items))
    getattr(changed, how)(*map(native, arguments))
    return list(changed)


def path_of(value: Any) -> Any:
    if isinstance(value, External):
        return value.attributes.get("(path)", UNKNOWN)
    return value if isinstance(value, str) or (isinstance(value, Unknown) and value.text) else UNKNOWN


def dictionary_of(arguments: Sequence[Any], keywords: Mapping[str, Any], region: object) -> DictValue:
    first = arguments[0] if arguments else DictValue({})
    if not isinstance(first, DictValue) or first.items is None:
        return DictValue(None, region)
    return DictValue({**first.items, **keywords}, region, file=first.file)


def with_attributes(value: Any) -> Any:
    """Return a dictionary whose keys, and those of the ones in it, are its attributes."""
    if isinstance(value, DictValue):
        value.has_attributes = True
        # It may give keys that are not there.
        value.file = ""
        for item in (value.items or {}).values():
            with_attributes(item)
    elif isinstance(value, ListValue):
        for item in value.items or ():
            with_attributes(item)
    return value


def shallow_copy(value: Any, region: object) -> Any:
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
    copy = made[id(value)] = shallow_copy(value, region)
    if isinstance(copy, ListValue) and copy.items is not None:
        copy.items = [_copied(item, region, made) for item in copy.items]
    elif isinstance(copy, (DictValue, Instance)):
        items: dict[Any, Any] = (copy.items or {}) if isinstance(copy, DictValue) else copy.attributes
        for name, item in items.items():
            items[name] = _copied(item, region, made)
    return copy


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

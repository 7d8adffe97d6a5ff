"""Parsers of transformers and TRL in a simulated program, which make dataclasses of the words of the launch line.

Source: transformers/hf_argparser.py of 4.57, trl/scripts/utils.py of 0.24.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from preflight.sources.python.simulation.argument_parser import Parser
from preflight.sources.python.simulation.values import UNKNOWN, ClassValue, External, Instance

#: The methods that return an object for each class, and those of them that read a file.
PARSING = ("parse_args_into_dataclasses", "parse_args_and_config")
READING = ("parse_json_file", "parse_yaml_file", "parse_dict")
_PARSERS = ("HfArgumentParser()", "TrlParser()", "H4ArgumentParser()", "PdArgumentParser()")
#: What stands around a type that may be absent.
_OPTIONAL = re.compile(r"(?:typing\.)?Optional\[(.*)\]|(?:typing\.)?Union\[(.*), None\]|(.*?) ?\| ?None")
_LIST = re.compile(r"(?:typing\.)?(?:List|list)\[(int|float|str)\]")


def classes_of(parser: External | None) -> list[Any]:
    """Return the classes that a parser was made for; nothing if they are not known, or it is another one."""
    if parser is None or not parser.name.endswith(_PARSERS):
        return []
    given = parser.arguments[0] if parser.arguments else parser.keywords.get("dataclass_types", UNKNOWN)
    listed = getattr(given, "items", given)
    found = list(listed) if isinstance(listed, (list, tuple)) else [listed]
    return found if all(isinstance(each, (ClassValue, External)) for each in found) else []


def options_of(owner: ClassValue, default_of: Callable[[Any], Any], call: ast.Call) -> Parser:
    """Return a parser with the options of a class's user-defined fields, by their dataclass."""
    parser = Parser(abbreviates=False, has_help=False)
    for name, annotation, default in _fields(owner, default_of):
        spelled = (f"--{name}", f"--{name.replace('_', '-')}") if "_" in name else (f"--{name}",)
        given: dict[str, Any] = {"default": default, "dest": name}
        optional = _OPTIONAL.fullmatch(annotation)
        kind = next(filter(None, optional.groups()), "") if optional is not None else annotation
        listed = _LIST.fullmatch(kind)
        if kind == "bool":
            given |= {"type": External("transformers.string_to_bool"), "nargs": "?", "const": True}
            if default is True:
                parser.options.append(((f"--no_{name}",), {"action": "store_false", "dest": name}, call))
        elif listed is not None:
            given |= {"type": External(f"builtins.{listed[1]}"), "nargs": "+"}
        else:
            given["type"] = External(f"builtins.{kind}") if kind in ("int", "float", "str") else UNKNOWN
        parser.options.append((spelled, given, call))
    return parser


def make_instance(
    owner: ClassValue, values: Mapping[str, Any] | None, default_of: Callable[[Any], Any], region: object
) -> Instance:
    """Return the object of a class with the values of a line or a file; with unknown ones where these are not known."""
    instance = Instance(owner, region, is_open=owner.foreign is not None)
    for name, _, default in _fields(owner, default_of):
        instance.attributes[name] = UNKNOWN if values is None else values.get(name, default)
    return instance


def _fields(owner: ClassValue, default_of: Callable[[Any], Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the fields that user-defined classes declare, each once, with its type and default."""
    found: dict[str, str] = {}
    for each in reversed(owner.order()):
        for statement in each.node.body if isinstance(each, ClassValue) else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = ast.unparse(statement.annotation).strip("'\"")
    for name, annotation in found.items():
        default = owner.lookup(name)
        yield name, annotation, default_of(default[0]) if default is not None else UNKNOWN

"""Files of a data set: how many of them the ranks divide, and the program through which they are read."""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from preflight.model.job import Claim, Known
from preflight.sources.base import SourceFile
from preflight.sources.formats.structured import Kind
from preflight.sources.python.listed_items import items_of, setting_of
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import is_rank
from preflight.sources.python.shards import UNSYNCHRONIZED_WORK

#: Functions of fleet that give a trainer its share.
_SHARES = ("get_file_shard", "split_files")


def divided_claims(module: Module) -> Iterator[Claim]:
    """The lists that ranks divide, with the number of their items.

    Of the lists that a function of fleet divides, those that are written in its call are settings of the call.
    """
    text = module.file.text
    lists: list[tuple[ast.expr, ast.AST]] = []
    if "::" in text:
        for node in module.nodes(ast.Subscript):
            part = node.slice
            lower = part.lower if isinstance(part, ast.Slice) and part.step is not None else None
            if lower is not None and is_rank(module, lower):
                lists.append((node.value, node))
    if "//" in text:
        lists += _chunks(module)
    for call in module.named(*_SHARES):
        given = argument(call, "files", 0)
        if given is not None and "fleet" in module.called(call):
            lists.append((value_of(given), call))
    for listed, place in lists:
        function = module.outline.function_of(place)
        names = (module.text(listed), module.file.path, function.name if function is not None else "")
        found = None if any(map(UNSYNCHRONIZED_WORK.search, names)) else items_of(module, listed)
        if found is not None and not (found.certain and isinstance(place, ast.Call)):
            written = replace(module.claim("divided_items", found.number, place, condition=""), span=found.span)
            yield module.claim("divided_items", found.number, place, condition="", because=(written,))


#: Other names for the number of a rank.
_NUMBER = re.compile(r"(?:\w+\.)?(?:worker|trainer|node|shard|part)_?(?:id|idx|index|no)", re.IGNORECASE)


def _chunks(module: Module) -> Iterator[tuple[ast.expr, ast.AST]]:
    """`per = len(files) // ranks` and `files[rank * per : (rank + 1) * per]`."""
    for node in module.nodes(ast.Assign):
        value, name = node.value, dotted(node.targets[0])
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv):
            continue
        counted = value.left.args if isinstance(value.left, ast.Call) and dotted(value.left.func) == "len" else []
        function = module.outline.function_of(node)
        for part in module.nodes(ast.Subscript) if counted and name else ():
            lower = part.slice.lower if isinstance(part.slice, ast.Slice) else None
            same = module.outline.function_of(part) is function and dotted(part.value) == dotted(counted[0])
            terms = [term for term in ast.walk(lower) if isinstance(term, ast.expr)] if lower is not None else []
            of_rank = any(is_rank(module, term) or _NUMBER.fullmatch(dotted(term)) for term in terms)
            if same and of_rank and any(dotted(term) == name for term in terms):
                yield counted[0], part


#: What runs a program that is named next.
_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh)")


def pipe_programs(module: Module) -> Iterator[Claim]:
    """Data sets of Paddle whose `pipe_command` names a program that is nowhere near the script."""
    if "paddle" not in module.file.text:
        return
    for call in module.named("init", "set_pipe_command", "_set_pipe_command", "_init_distributed_settings"):
        given = argument(call, "pipe_command", None if last(module.called(call)) == "init" else 0)
        if given is None:
            continue
        known, because = module.fold(value_of(given)), None
        setting = setting_of(module, value_of(given)) if not isinstance(known, Known) else None
        if setting is not None and setting.node.kind is Kind.SCALAR:
            known = Known(setting.node.value)
            because = replace(module.claim("script_feature", "pipe_command", given, condition=""), span=setting.span)
        command = known.value if isinstance(known, Known) else None
        program = _program(command) if isinstance(command, str) else ""
        if program and not _exists(module, program):
            feature = module.feature(f"pipe_program_missing:{program}", given)
            yield replace(feature, because=(because,)) if because is not None else feature


def _program(command: str) -> str:
    """The script that a command runs, as far as it is a file of the job."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    runs = [word for word in words[1:2] if _INTERPRETER.fullmatch(words[0])] or [
        word for word in words[:1] if "/" in word
    ]
    plain = (word for word in runs if re.fullmatch(r"[\w./-]+\.(?:py|sh)", word) and not word.startswith(("/", "-")))
    return next(plain, "")


def _exists(module: Module, path: str) -> bool:
    """Whether a relative path is a file, seen from the folder of the script, or from one above it."""
    folder = posixpath.dirname(module.file.path)
    folders = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        folders.append(folder)
    paths = (posixpath.normpath(posixpath.join(each, path)) for each in folders)
    return any(isinstance(module.files.read(each), SourceFile) for each in paths if not each.startswith(".."))

"""What a launch line gives for the options of its program, in claims that were read from the program."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight.model.job import Claim, Known, Launch, Note, Plain, Unresolved, Value
from preflight.model.job.claim import BranchClaim
from preflight.model.job.value import OfOptions, Part, ProgramOption
from preflight.sources import conditions
from preflight.sources.base import SourceFile
from preflight.sources.formats import lenient_json, lenient_yaml
from preflight.sources.formats.structured import Document, Node, value_of

#: Short options with a value, or several of them, in one word.
_SHORT = re.compile(r"-[A-Za-z]\S")


#: The file that a launch reads at a path, or why it cannot.
ReadFile = Callable[[str, Launch], "SourceFile | Note"]


def with_option_values(claims: Iterable[Claim], launches: Mapping[str, Launch], read: ReadFile) -> Iterator[Claim]:
    """The claims; a value that a launch determines is that of its launch, if all of its parts are known."""
    for claim in claims:
        launch = launches.get(claim.scope.launch)
        if isinstance(claim, BranchClaim):
            is_taken = _is_taken(claim.when, launch, read) if claim.when is not None and launch is not None else None
            if is_taken is False:
                continue
            claim = claim.decided(is_taken=is_taken)
        if any(isinstance(each.value, OfOptions) for each in claim.because):
            claim = replace(claim, because=tuple(with_option_values(claim.because, launches, read)))
        if not isinstance(claim.value, OfOptions):
            yield claim
            continue
        value: Value = Unresolved(claim.value.why)
        origin = claim.origin
        if launch is not None:
            parts = [_part(part, launch, read) for part in claim.value.made_of]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                value = known[0].value if len(known) == 1 else Known("".join(str(part.value.value) for part in known))
                if claim.value.is_expression:
                    value = Known("".join(map(_as_literal, claim.value.made_of, known)))
                origin = launch.span if any(part.on_line for part in known) else origin
        yield replace(claim, value=value, origin=origin)


def _is_taken(branch: OfOptions, launch: Launch, read: ReadFile) -> bool | None:
    """Whether a launch takes a branch; None if that is not known."""
    given = [_part(part, launch, read) for part in branch.made_of]
    parts = zip(branch.made_of, given, strict=True)
    text = "".join("unknown" if each is None else _as_literal(part, each) for part, each in parts)
    try:
        return conditions.holds(text, _unknown)
    except (conditions.UnknownValue, SyntaxError, ValueError):
        return None


def _unknown(name: str) -> Plain:
    raise conditions.UnknownValue(name)


def _part(part: Part, launch: Launch, read: ReadFile) -> _Given | None:
    if isinstance(part, str):
        return _Given(Known(part), False)
    if isinstance(part, ProgramOption):
        return option_value(part, launch.arguments)
    path = _Given(Known(part.path), False) if isinstance(part.path, str) else option_value(part.path, launch.arguments)
    file = read(str(path.value.value), launch) if path is not None else None
    if not isinstance(file, SourceFile) or file.path.rpartition(".")[2] not in _PARSERS or _COMPOSED.search(file.text):
        return None
    node = _root(file.path.rpartition(".")[2], file.text)
    for key in part.keys:
        if node is not None:
            node = node.at(key) if isinstance(key, str) else next(iter(node.items[key:][:1]), None)
    value = value_of(node) if node is not None else None
    if not isinstance(value, Known):
        return None
    return _converted(str(value.value), part.kind) if part.kind else _Given(value, False)


@functools.lru_cache(maxsize=8)
def _root(suffix: str, text: str) -> Node | None:
    return _PARSERS[suffix](text).root


#: Merge keys, tags and templates, which the reader of a program replaces.
_COMPOSED = re.compile(r"<<\s*:|!!?\w|\$\{|\{\{")
_PARSERS: dict[str, Callable[[str], Document]] = {
    "json": lenient_json.parse,
    "yaml": lenient_yaml.parse,
    "yml": lenient_yaml.parse,
}


def _as_literal(part: Part, given: _Given) -> str:
    return part if isinstance(part, str) else repr(given.value.value)


class _Given(NamedTuple):
    """The value of an option, and whether the line gives it."""

    value: Known
    on_line: bool


def option_value(option: ProgramOption, arguments: Sequence[str | None]) -> _Given | None:
    """The value of an option of a program that is started with these words; None if that is not known."""
    found: list[str | None] = []
    for before, word, following in zip(("", *arguments), arguments, (*arguments[1:], None), strict=False):
        if word is None and before not in option.valued:
            # `"$@"` may give the option, or give it again.
            return None
        name, separator, value = (word or "").partition("=")
        if word in option.names:
            found.append(following)
        elif separator and name in option.names:
            found.append(value)
        elif name.startswith("--") and len(name) > 2 and any(each.startswith(name) for each in option.names):
            # argparse takes the beginning of an option for the option.
            return None
        elif _SHORT.match(name) and any(len(each) == 2 and each[1] in name for each in option.names):
            # `-b8`, or `-vb 8`
            return None
    if found:
        is_switch = option.kind.startswith("store_")
        return _Given(Known(option.kind == "store_true"), True) if is_switch else _converted(found[-1], option.kind)
    if not option.has_default:
        return None
    text = _converted(option.default, option.kind) if isinstance(option.default, str) else None
    return _Given(text.value if text is not None else Known(option.default), False)


def _converted(text: str | None, kind: str) -> _Given | None:
    if text is None:
        return None
    try:
        return _Given(Known(int(text) if kind == "int" else float(text) if kind == "float" else text), True)
    except ValueError:
        return None

"""Rules that a site writes down in a TOML file: conditions over what the files say, and no code.

The file may do no more than find fault: it names nothing to run, to read or to write. It is taken only where the user
names it, because a stranger's rules would be a stranger's findings.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from preflight import catalog
from preflight.configuration import Condition, SiteRule, Test
from preflight.errors import UsageError
from preflight.job.quantities import QUANTITIES
from preflight.settings import SPELLED, Problem, described, problem_of
from preflight.toml_places import Places, TomlError, loads

#: What of a launch can be asked for.
LAUNCH = ("launcher", "program", "wrappers", "arguments")
#: Those that say there is something, or nothing; the others say what it is.
PRESENCE = ("required", "forbidden")
TESTS = ("equals", "one-of", "none-of", "at-most", "at-least", "matches", "includes", *PRESENCE)
_ID = re.compile(r"[A-Z]{3}[0-9]{3}")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class When:
    """A value, and what it has to be for the rule to speak."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    quantity: Annotated[str | None, "A quantity that the files state; `preflight quantities` lists them."] = None
    env: Annotated[str | None, "An environment variable of the ranks."] = None
    launch: Annotated[
        Literal["launcher", "program", "wrappers", "arguments"] | None, "A part of the line that starts ranks."
    ] = None
    equals: Annotated[Plain | None, "It is this."] = None
    one_of: Annotated[list[Plain] | None, "It is one of these."] = None
    none_of: Annotated[list[Plain] | None, "It is none of these; of several values, none is."] = None
    at_most: Annotated[float | None, "It is a number, and at most this."] = None
    at_least: Annotated[float | None, "It is a number, and at least this."] = None
    matches: Annotated[str | None, "The whole of it matches this regular expression."] = None
    includes: Annotated[list[Plain] | None, "Of its several values, these are there."] = None
    required: Annotated[bool | None, "It is said at all."] = None
    forbidden: Annotated[bool | None, "It is not said at all."] = None


@dataclass(frozen=True, slots=True)
class Rule(When):
    """A rule of a site."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM001."] = ""
    name: Annotated[str, "The fault in lower-case words: too-many-nodes."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "Where that is laid down: an address."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "How bad it is; without it, warning."] = "warning"
    when: Annotated[list[When], "The rule speaks only where all of these hold."] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    """A file of site rules."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    rule: Annotated[list[Rule], "The rules."] = field(default_factory=list)


def load(paths: Iterable[Path], *, taken: tuple[SiteRule, ...] = ()) -> tuple[SiteRule, ...]:
    """The rules in these files, behind those that are `taken` already.

    Raises:
        UsageError: a file cannot be read, or holds mistakes; all of them are named with their places.
    """
    found = list(taken)
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"the site rules {path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise UsageError(f"the site rules {path} are not UTF-8") from None
        found.extend(parse(text, str(path), taken=found))
    return tuple(found)


def parse(text: str, name: str, *, taken: Iterable[SiteRule] = ()) -> tuple[SiteRule, ...]:
    """The rules in the text of a file called `name`; `taken` are those whose ids and names are in use.

    Raises:
        UsageError: it holds mistakes.
    """
    try:
        document = loads(text)
    except TomlError as error:
        raise UsageError(f"{name}:{error}") from None
    read = _validated(document)
    problems = read if isinstance(read, list) else list(_problems(read, document, taken))
    if problems or isinstance(read, list):
        places = Places(text)
        placed = sorted((places.of(p.path, value=p.at_value), p.message) for p in problems)
        raise UsageError("\n".join(f"{name}:{line}:{column}: {message}" for (line, column), message in placed[:10]))
    return tuple(_rule(item, name) for item in read.rule)


def _validated(document: Mapping[str, Any]) -> Document | list[Problem]:
    from pydantic import ValidationError

    try:
        read = _adapter().validate_python(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=True)
        return list(dict.fromkeys(problem_of(_outside_union(one), Document, document) for one in errors))
    assert isinstance(read, Document)
    return read


def _outside_union(error: Any) -> Any:
    """A complaint about one of the types a value may have names that type last; the value is what is meant."""
    location = tuple(step for step in error["loc"] if step not in ("str", "int", "float", "bool"))
    if location == error["loc"]:
        return error
    return {**error, "loc": location, "type": "plain", "msg": "a text, a number, true or false is expected"}


def _problems(read: Document, document: Mapping[str, Any], taken: Iterable[SiteRule]) -> Iterator[Problem]:
    """What the types alone do not tell."""
    names = {word for item in catalog.rules() for word in (item.meta.id, item.meta.name)}
    names.update(word for item in taken for word in (item.id, item.name))
    if not read.rule:
        yield Problem((), "there is no [[rule]] in it", at_value=False)
    for n, item in enumerate(read.rule):
        for key in ("id", "name", "message", "remedy", "evidence"):
            if not getattr(item, key).strip():
                yield Problem(("rule", n), f"`{key}` is missing in [[rule]]", at_value=False)
        if item.id and not _ID.fullmatch(item.id):
            yield Problem(("rule", n, "id"), f"{item.id!r} is no id: three capital letters and three digits, as ACM001")
        if item.name and not _NAME.fullmatch(item.name):
            yield Problem(("rule", n, "name"), f"{item.name!r} is no name: lower-case words joined by hyphens")
        for key, word in (("id", item.id), ("name", item.name)):
            if word in names:
                yield Problem(("rule", n, key), f"{word} is taken")
            names.add(word)
        yield from _problems_of(item, ("rule", n))
        for m, when in enumerate(item.when):
            yield from _problems_of(when, ("rule", n, "when", m))


def _problems_of(item: When, path: tuple[str | int, ...]) -> Iterator[Problem]:
    about = [key for key in ("quantity", "env", "launch") if getattr(item, key) is not None]
    if len(about) != 1:
        said = " and ".join(about) if about else "none"
        yield Problem(path, f"one of quantity, env and launch says what it is about; here it is {said}", at_value=False)
    tests = _tests(item)
    if not tests:
        yield Problem(path, f"nothing is asked of it; one of {', '.join(TESTS)} is expected", at_value=False)
    for test in tests:
        if test.kind in PRESENCE and test.values != (True,):
            yield Problem((*path, test.kind), f"`{test.kind}` is true or left out")
        if test.kind in PRESENCE and len(tests) > 1:
            yield Problem((*path, test.kind), f"`{test.kind}` stands alone; what it has to be is a rule of its own")
    if item.quantity is not None and item.quantity not in QUANTITIES:
        near = get_close_matches(item.quantity, QUANTITIES, n=1)
        hint = f"did you mean {near[0]}?" if near else "`preflight quantities` lists them"
        yield Problem((*path, "quantity"), f"there is no quantity {item.quantity!r}; {hint}")
    if item.matches is not None:
        try:
            re.compile(item.matches)
        except (re.error, OverflowError, RecursionError) as error:
            yield Problem((*path, "matches"), f"that is no regular expression: {error}")


def _rule(item: Rule, file: str) -> SiteRule:
    return SiteRule(
        item.id,
        item.name,
        item.severity,
        item.message.strip(),
        item.remedy.strip(),
        item.evidence.strip(),
        _condition(item),
        tuple(_condition(when) for when in item.when),
        file,
    )


def _condition(item: When) -> Condition:
    about = next(key for key in ("quantity", "env", "launch") if getattr(item, key) is not None)
    return Condition(about, str(getattr(item, about)), _tests(item))


def _tests(item: When) -> tuple[Test, ...]:
    found: list[Test] = []
    for kind in TESTS:
        said = getattr(item, kind.replace("-", "_"))
        if said is not None:
            found.append(Test(kind, tuple(said) if isinstance(said, list) else (said,)))
    return tuple(found)


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Document)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a file of site rules."""
    return described(_adapter(), "preflight site rules", Document, Rule, When)

"""A site's own rules and checks in a TOML file.

Its rules may do no more than find fault. Its checks name commands, which run on nodes during a check and never for
lint. The file is taken only where the user names it, because a stranger's rules would be a stranger's findings, and a
stranger's commands a stranger's program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from preflight import catalog, site_checks, site_rules
from preflight.configuration import Site
from preflight.errors import UsageError
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.settings import SPELLED, Problem, described, problem_of
from preflight.site_checks import Check, Value
from preflight.site_rules import Rule, When
from preflight.toml_places import Places, TomlError, loads

_ID = lazy_pattern(r"[A-Z]{3}[0-9]{3}")
_NAME = lazy_pattern(r"[a-z0-9]+(-[a-z0-9]+)*")
NOTHING = Site()


@dataclass(frozen=True, slots=True)
class Document:
    """A file of site rules and checks."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    rule: Annotated[list[Rule], "The rules."] = field(default_factory=list)
    check: Annotated[list[Check], "The checks."] = field(default_factory=list)


def load(paths: Iterable[Path], *, taken: Site = NOTHING) -> Site:
    """What these files declare, behind what is `taken` already.

    Raises:
        UsageError: a file cannot be read, or holds mistakes; all of them are named with their places.
    """
    found = taken
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"the site rules {path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise UsageError(f"the site rules {path} are not UTF-8") from None
        more = parse(text, str(path), taken=found)
        found = Site((*found.rules, *more.rules), (*found.checks, *more.checks))
    return found


def parse(text: str, name: str, *, taken: Site = NOTHING) -> Site:
    """What the text of a file called `name` declares; the ids and names of what is `taken` are in use.

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
    rules = tuple(site_rules.made(item, name) for item in read.rule)
    return Site(rules, tuple(site_checks.made(item, name) for item in read.check))


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


def _problems(read: Document, document: Mapping[str, Any], taken: Site) -> Iterator[Problem]:
    """What the types alone do not tell."""
    names = catalog.names_of(catalog.rules()) | taken.words
    if read.check:
        names |= catalog.names_of(catalog.checks())
    if not read.rule and not read.check:
        yield Problem((), "there is no [[rule]] and no [[check]] in it", at_value=False)
    entries: list[tuple[str, int, Rule | Check]] = [("rule", n, item) for n, item in enumerate(read.rule)]
    entries.extend(("check", n, item) for n, item in enumerate(read.check))
    for table, n, item in entries:
        for key in ("id", "name", "message", "remedy", "evidence"):
            if not getattr(item, key).strip():
                yield Problem((table, n), f"`{key}` is missing in [[{table}]]", at_value=False)
        if item.id and not _ID.fullmatch(item.id):
            yield Problem((table, n, "id"), f"{item.id!r} is no id: three capital letters and three digits, as ACM001")
        if item.name and not _NAME.fullmatch(item.name):
            yield Problem((table, n, "name"), f"{item.name!r} is no name: lower-case words joined by hyphens")
        for key, word in (("id", item.id), ("name", item.name)):
            if word in names:
                yield Problem((table, n, key), f"{word} is taken")
            names.add(word)
        if isinstance(item, Rule):
            yield from site_rules.problems(item, (table, n))
        else:
            yield from site_checks.problems(item, (table, n))


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Document)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a file of site rules and checks."""
    return described(_adapter(), "preflight site rules", Document, Rule, When, Check, Value)

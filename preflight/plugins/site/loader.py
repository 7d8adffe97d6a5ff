"""Loads a site's own rules and checks from a TOML file.

Its rules can only report faults. Its checks name commands, which run on nodes during a check and never for lint. The
file is used only if the user names it, because an unknown author's rules could report anything, and the commands could
be any program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from preflight._util import regular_file
from preflight._util.toml import TomlError
from preflight._util.toml import parse as loads
from preflight._util.usage_error import UsageError
from preflight._util.validation import HYPHENATED, Problem, describe_schema, problem_of, type_adapter
from preflight.model.configuration import Site
from preflight.plugins import registry
from preflight.plugins.site import checks
from preflight.plugins.site import rules as site_rules
from preflight.plugins.site.checks import Check, Value
from preflight.plugins.site.rules import Rule, When
from preflight.sources.formats.lenient_toml import Positions

_ID = re.compile(r"[A-Z]{3}[0-9]{3}")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
NO_DECLARATIONS = Site()
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A file of site rules and checks."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    rule: Annotated[list[Rule], "The rules."] = field(default_factory=list)
    check: Annotated[list[Check], "The checks."] = field(default_factory=list)


def load(paths: Iterable[Path], *, taken: Site = NO_DECLARATIONS) -> Site:
    """Return the declarations of these files with those in `taken`. Raises UsageError with all errors."""
    site = taken
    for path in paths:
        try:
            text = regular_file.read_text(path, _MAX_BYTES)
        except OSError as error:
            raise UsageError(f"the site rules {path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise UsageError(f"the site rules {path} are not UTF-8") from None
        declarations = parse(text, str(path), taken=site)
        site = Site((*site.rules, *declarations.rules), (*site.checks, *declarations.checks))
    return site


def parse(text: str, name: str, *, taken: Site = NO_DECLARATIONS) -> Site:
    """Return the declarations in the text of file `name`; ids in `taken` are in use. Raises UsageError."""
    try:
        document = loads(text)
    except TomlError as error:
        raise UsageError(f"{name}:{error}") from None
    declarations = _validate(document)
    problems = declarations if isinstance(declarations, list) else list(_problems(declarations, taken))
    if problems or isinstance(declarations, list):
        positions = Positions(text)
        located_messages = sorted((positions.of(p.path, value=p.at_value), p.message) for p in problems)
        raise UsageError(
            "\n".join(f"{name}:{line}:{column}: {message}" for (line, column), message in located_messages[:10])
        )
    rules = tuple(site_rules.to_configuration(item, name) for item in declarations.rule)
    return Site(rules, tuple(checks.to_configuration(item, name) for item in declarations.check))


def _validate(document: Mapping[str, Any]) -> Document | list[Problem]:
    from pydantic import ValidationError

    try:
        declarations = type_adapter(Document).validate_python(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=True)
        return list(
            dict.fromkeys(problem_of(_outside_union(error_details), Document, document) for error_details in errors)
        )
    assert isinstance(declarations, Document)
    return declarations


def _outside_union(error: Any) -> Any:
    """Return the error without the union's type name at the end of its path."""
    location = tuple(step for step in error["loc"] if step not in ("str", "int", "float", "bool"))
    if location == error["loc"]:
        return error
    return {**error, "loc": location, "type": "plain", "msg": "expected a string, a number, true or false"}


def _problems(declarations: Document, taken: Site) -> Iterator[Problem]:
    """Yield errors that types cannot express."""
    names = registry.names_of(registry.rules()) | taken.words
    if declarations.check:
        names |= registry.names_of(registry.checks())
    if not declarations.rule and not declarations.check:
        yield Problem((), "it has neither a [[rule]] nor a [[check]]", at_value=False)
    entries: list[tuple[str, int, Rule | Check]] = [
        ("rule", index, item) for index, item in enumerate(declarations.rule)
    ]
    entries.extend(("check", index, item) for index, item in enumerate(declarations.check))
    for table, index, item in entries:
        for key in ("id", "name", "message", "remedy", "evidence"):
            if not getattr(item, key).strip():
                yield Problem((table, index), f"`{key}` is missing in [[{table}]]", at_value=False)
        if item.id and not _ID.fullmatch(item.id):
            yield Problem(
                (table, index, "id"),
                f"{item.id!r} is not an id; expected three capital letters and three digits, as in ACM001",
            )
        if item.name and not _NAME.fullmatch(item.name):
            yield Problem(
                (table, index, "name"), f"{item.name!r} is not a name; expected lower-case words joined by hyphens"
            )
        for key, word in (("id", item.id), ("name", item.name)):
            if word in names:
                yield Problem((table, index, key), f"{word} is already used; choose another")
            names.add(word)
        if isinstance(item, Rule):
            yield from site_rules.problems(item, (table, index))
        else:
            yield from checks.problems(item, (table, index))


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a file of site rules and checks."""
    return describe_schema(type_adapter(Document), "preflight site rules", Document, Rule, When, Check, Value)

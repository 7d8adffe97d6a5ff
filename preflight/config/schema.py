"""The schema of a configuration file: its keys, their types and meanings, and error messages for all others."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from preflight._util.schema_problems import HYPHENATED, Problem, describe_schema, kind_of, problem_of

#: At most this many mistakes of one document are reported.
_MAX_PROBLEMS = 100

SeverityName = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Waive:
    """A rule or check that this site accepts, for a reason."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    rule: Annotated[str, "Id or name of the rule or check."]
    reason: Annotated[str, "Why it is accepted; shown in every report."]
    paths: Annotated[list[str], "Patterns, as in .gitignore, of the files it applies to. Default: all files."] = field(
        default_factory=list
    )
    hosts: Annotated[list[str], "Nodes it applies to, by name or range (node[1-4]). Default: all nodes."] = field(
        default_factory=list
    )
    owner: Annotated[str | None, "Who is responsible for it."] = None
    expires: Annotated[datetime.date | None, "The last day on which it applies: 2026-12-31."] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of preflight.toml, and of [tool.preflight] in pyproject.toml."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    select: Annotated[list[str], "Only these rules and checks, by id, name or area."] = field(default_factory=list)
    ignore: Annotated[list[str], "Not these rules and checks, by id, name or area."] = field(default_factory=list)
    profile: Annotated[Literal["gate", "default", "pedantic"] | None, "How strict."] = None
    severity: Annotated[
        dict[str, SeverityName],
        "Severity of findings, by id, name or area. Only findings of high confidence can be errors.",
    ] = field(default_factory=dict)
    fail_on: Annotated[SeverityName | None, "The lowest severity that makes the verdict no-go."] = None
    allow_incomplete: Annotated[bool | None, "Exit 0 instead of 3 if a required check could not be decided."] = None
    exclude: Annotated[list[str], "Patterns, as in .gitignore, of files that are skipped in folders."] = field(
        default_factory=list
    )
    per_file_ignores: Annotated[dict[str, list[str]], "Rules that are ignored in files, by pattern."] = field(
        default_factory=dict
    )
    mandatory: Annotated[
        list[str], "Rules and checks that cannot be ignored, and whose findings cannot be suppressed."
    ] = field(default_factory=list)
    baseline: Annotated[str | None, "File of accepted findings, relative to this one."] = None
    site_rules: Annotated[
        list[str], "Files of site rules, relative to this one; only in a configuration named with --config."
    ] = field(default_factory=list)
    output: Annotated[str | None, "Format of the report on standard output."] = None
    price_per_gpu_hour: Annotated[float | None, "Price of one GPU-hour, to show the cost that a no-go avoided."] = None
    history: Annotated[
        str | None,
        "Database that remembers each run of nodes: sqlite:///FILE or postgresql://...; only in a configuration named "
        "with --config.",
    ] = None
    history_keep: Annotated[str | None, "How long it does: 180d, or the newest 500runs. Default: keep all."] = None
    waive: Annotated[list[Waive], "Rules and checks that this site accepts, each with a reason."] = field(
        default_factory=list
    )


def validated(document: Mapping[str, Any]) -> Settings | list[Problem]:
    """The settings of a document, or all its errors."""
    from pydantic import ValidationError

    try:
        settings = _adapter().validate_python(document)
    except ValidationError as error:
        return [
            problem_of(problem, Settings, document)
            for problem in error.errors(include_url=False, include_context=True)[:_MAX_PROBLEMS]
        ]
    assert isinstance(settings, Settings)
    # Values that pydantic would also accept as true or false: "yes", 1.
    value = document.get("allow-incomplete", False)
    if not isinstance(value, bool):
        return [Problem(("allow-incomplete",), f"`allow-incomplete` must be true or false, not {kind_of(value)}")]
    return settings


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Settings)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    return describe_schema(_adapter(), "preflight configuration", Settings, Waive)

"""Caches lint reports, and reuses them if nothing that they depend on has changed.

The key covers the tool, its packs and their code, the configuration, the paths and the date (waivers expire). The entry
covers the content of the files, so that a changed, added or removed file is noticed. The claims of jobs make up most of
a report and few readers need them, so they are loaded on demand.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType
from typing import Any

from preflight._util.cache import Cache
from preflight._util.json_output import plain
from preflight._util.validation import type_adapter
from preflight.engine.report import AvoidedCost, Coverage, Input, Report, Run, Tool, Understood, unknown_outcomes_first
from preflight.model.findings import Finding, Location, Outcome, Status, VerdictKind
from preflight.model.job import InputFile, Job, Launch
from preflight.sources.discovery.readings import TreeSnapshot

_FORMAT = 3
#: The fields of a job that are loaded at once; the rest is loaded on demand.
_EAGER_FIELDS = ("name", "files", "launches", "probable")


def key_of(inputs: Sequence[Any], modules: Iterable[str]) -> str:
    """Return the key for inputs (with complete `repr`) and the code in the packages of these modules."""
    identity = [_FORMAT, sys.version, inputs, _code_fingerprint(frozenset(name.partition(".")[0] for name in modules))]
    return hashlib.sha256(repr(identity).encode("utf-8", "surrogatepass")).hexdigest()


def load_report(cache: Cache, key: str, snapshot: TreeSnapshot, created: str) -> Report | None:
    """Return the report stored under `key`; None if the entry is missing, invalid or older than the tree."""
    content = cache.get(key)
    if content is None:
        return None
    try:
        head, jobs_json = content.split(b"\n", 1)
        entry = json.loads(head)
        return _parse_report(entry, jobs_json, created) if snapshot.is_unchanged(entry["seen"]) else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def store_report(cache: Cache, key: str, snapshot: TreeSnapshot, report: Report) -> None:
    """Store a report and the files it depends on under `key`, unless it cannot be written as JSON."""
    entry = {
        "seen": snapshot.reads(),
        "tool": plain(report.tool),
        "run": plain(report.run),
        "inputs": plain(report.inputs),
        "jobs": [{name: plain(getattr(job, name)) for name in _EAGER_FIELDS} for job in report.jobs],
        "outcomes": _outcome_rows(report.outcomes),
        "findings": plain(report.findings),
        "suppressed": plain(report.suppressed),
        "coverage": plain(replace(report.coverage, unknown_outcomes=())),
        "verdict": report.verdict.value,
        "exit_code": int(report.exit_code),
        "avoided_cost": plain(report.avoided_cost),
        "understood": plain(report.understood),
    }
    try:
        jobs_json = json.dumps(plain(report.jobs), separators=(",", ":")).encode()
        cache.put(key, json.dumps(entry, separators=(",", ":")).encode() + b"\n" + jobs_json)
    except (ValueError, TypeError, RecursionError):
        return


def _parse_report(entry: dict[str, Any], jobs_json: bytes, created: str) -> Report:
    lazy_jobs = _LazyJobs(jobs_json)
    jobs = tuple(_CachedJob.of(outline, lazy_jobs, index) for index, outline in enumerate(entry["jobs"]))
    outcomes = _parse_outcomes(entry["outcomes"])
    return Report(
        tool=_parser_of(Tool)(entry["tool"]),
        run=replace(_parser_of(Run)(entry["run"]), created=created),
        inputs=tuple(map(_parser_of(Input), entry["inputs"])),
        jobs=jobs,
        nodes=(),
        outcomes=outcomes,
        findings=tuple(map(_parser_of(Finding), entry["findings"])),
        suppressed=tuple(map(_parser_of(Finding), entry["suppressed"])),
        coverage=replace(_parser_of(Coverage)(entry["coverage"]), unknown_outcomes=unknown_outcomes_first(outcomes)),
        verdict=VerdictKind(entry["verdict"]),
        exit_code=entry["exit_code"],
        avoided_cost=_parser_of(AvoidedCost | None)(entry["avoided_cost"]),
        understood=_parser_of(Understood)(entry["understood"]),
    )


class _LazyJobs:
    """The stored jobs, which are parsed once, and only if more than their outline is needed."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @functools.cached_property
    def jobs(self) -> tuple[Job, ...]:
        jobs: tuple[Job, ...] = type_adapter(tuple[Job, ...]).validate_json(self._content)
        return jobs


class _CachedJob(Job):
    """A job whose claims, notes and references are loaded on demand."""

    @classmethod
    def of(cls, outline: dict[str, Any], lazy_jobs: _LazyJobs, index: int) -> _CachedJob:
        """Return the job with this outline; its other fields are loaded from job number `index` of `lazy_jobs`."""
        job = object.__new__(cls)
        job.__dict__.update(
            name=outline["name"],
            files=tuple(map(_parser_of(InputFile), outline["files"])),
            launches=tuple(map(_parser_of(Launch), outline["launches"])),
            probable=outline["probable"],
            _rest=(lazy_jobs, index),
        )
        return job

    def __getattribute__(self, name: str) -> Any:
        # The omitted fields have defaults on the class, which must not be mistaken for stored values.
        if name in _LAZY_FIELDS:
            attributes = object.__getattribute__(self, "__dict__")
            if name not in attributes:
                lazy_jobs, index = attributes["_rest"]
                attributes.update({field: getattr(lazy_jobs.jobs[index], field) for field in _LAZY_FIELDS})
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and all(getattr(self, f.name) == getattr(other, f.name) for f in fields(Job))

    def __hash__(self) -> int:
        return hash(self.name)


_LAZY_FIELDS = frozenset(field.name for field in fields(Job)) - frozenset(_EAGER_FIELDS)


def _outcome_rows(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return outcomes as rows of numbers, with adjacent equal ones merged: there are tens of thousands of them."""
    text_numbers: dict[str, int] = {}

    def text_number(text: str) -> int:
        return text_numbers.setdefault(text, len(text_numbers))

    rows: list[list[Any]] = []
    for o in outcomes:
        shared_columns = [*map(text_number, (o.id, o.name, o.status.value, o.reason, o.stage)), o.required]
        finding_columns = [plain(o.finding), plain(o.locations)] if o.finding or o.locations else []
        if rows and not finding_columns and rows[-1][:6] == shared_columns and len(rows[-1]) == 7:
            rows[-1][6].append(text_number(o.subject))
        else:
            rows.append([*shared_columns, [text_number(o.subject)], *finding_columns])
    return {"texts": list(text_numbers), "rows": rows}


def _parse_outcomes(table: dict[str, Any]) -> tuple[Outcome, ...]:
    texts: list[str] = table["texts"]
    statuses = {status.value: status for status in Status}
    parse_finding, parse_location = _parser_of(Finding | None), _parser_of(Location)
    outcomes: list[Outcome] = []
    for id, name, status, reason, stage, required, subjects, *finding_columns in table["rows"]:
        locations = tuple(map(parse_location, finding_columns[1])) if finding_columns else ()
        parsed_finding = parse_finding(finding_columns[0]) if finding_columns else None
        parsed_status, rule_name, reason_text, stage_name = (
            statuses[texts[status]],
            texts[name],
            texts[reason],
            texts[stage],
        )
        outcomes.extend(
            [
                Outcome(
                    texts[id],
                    rule_name,
                    parsed_status,
                    texts[row],
                    reason_text,
                    required,
                    parsed_finding,
                    locations,
                    stage_name,
                )
                for row in subjects
            ]
        )
    return tuple(outcomes)


@functools.cache
def _parser_of(kind: Any) -> Callable[[Any], Any]:
    """Return a function that rebuilds a value of `kind` from the output of `plain`, for classes of a report."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if NoneType in arguments:
        parse_value = _parser_of(next(argument for argument in arguments if argument is not NoneType))
        return lambda data: None if data is None else parse_value(data)
    if origin is tuple:
        parse_item = _parser_of(arguments[0])
        return lambda data: tuple(map(parse_item, data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        field_parsers = [(field.name, _parser_of(hints[field.name])) for field in fields(kind)]
        kind_class: Any = kind
        return lambda data: kind_class(**{name: parse_field(data[name]) for name, parse_field in field_parsers})
    return lambda data: data


@functools.cache
def _code_fingerprint(packages: frozenset[str]) -> str:
    """Return a hash of sizes and times of these packages' files, so that changed code invalidates the cache."""
    file_states: list[tuple[str, int, int]] = []
    folders = [str(path) for name in packages for path in getattr(sys.modules.get(name), "__path__", ())]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            folders.append(entry.path)
                    elif not entry.name.endswith(".pyc"):
                        status = entry.stat()
                        file_states.append((entry.path, status.st_size, status.st_mtime_ns))
        except OSError:
            file_states.append((folder, -1, -1))
    return hashlib.sha256(repr(sorted(file_states)).encode("utf-8", "surrogatepass")).hexdigest()

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
from preflight.engine.report import AvoidedCost, Coverage, Input, Report, Run, Tool, Understood, undecided
from preflight.model.findings import Finding, Location, Outcome, Status, VerdictKind
from preflight.model.job import InputFile, Job, Launch
from preflight.sources.discovery.readings import TreeSnapshot

_FORMAT = 3
#: The fields of a job that are loaded at once; the rest is loaded on demand.
_EAGER_FIELDS = ("name", "files", "launches", "probable")


def key_of(inputs: Sequence[Any], modules: Iterable[str]) -> str:
    """Return the key for these inputs (any value whose `repr` is complete) and for the code in these modules'
    packages.
    """
    identity = [_FORMAT, sys.version, inputs, _code_fingerprint(frozenset(name.partition(".")[0] for name in modules))]
    return hashlib.sha256(repr(identity).encode("utf-8", "surrogatepass")).hexdigest()


def load_report(cache: Cache, key: str, snapshot: TreeSnapshot, created: str) -> Report | None:
    """Return the report stored under `key`, if the tree has not changed since; None otherwise, and for an invalid
    entry.
    """
    content = cache.get(key)
    if content is None:
        return None
    try:
        first, second = content.split(b"\n", 1)
        entry = json.loads(first)
        return _report(entry, second, created) if snapshot.is_unchanged(entry["seen"]) else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def store_report(cache: Cache, key: str, snapshot: TreeSnapshot, report: Report) -> None:
    """Store a report."""
    entry = {
        "seen": snapshot.reads(),
        "tool": plain(report.tool),
        "run": plain(report.run),
        "inputs": plain(report.inputs),
        "jobs": [{name: plain(getattr(job, name)) for name in _EAGER_FIELDS} for job in report.jobs],
        "outcomes": _rows(report.outcomes),
        "findings": plain(report.findings),
        "suppressed": plain(report.suppressed),
        "coverage": plain(replace(report.coverage, unknown_outcomes=())),
        "verdict": report.verdict.value,
        "exit_code": int(report.exit_code),
        "avoided_cost": plain(report.avoided_cost),
        "understood": plain(report.understood),
    }
    try:
        whole = json.dumps(plain(report.jobs), separators=(",", ":")).encode()
        cache.put(key, json.dumps(entry, separators=(",", ":")).encode() + b"\n" + whole)
    except (ValueError, TypeError, RecursionError):
        return


def _report(entry: dict[str, Any], whole: bytes, created: str) -> Report:
    later = _LazyJobs(whole)
    jobs = tuple(_CachedJob.of(outline, later, index) for index, outline in enumerate(entry["jobs"]))
    outcomes = _outcomes(entry["outcomes"])
    return Report(
        tool=_reader(Tool)(entry["tool"]),
        run=replace(_reader(Run)(entry["run"]), created=created),
        inputs=tuple(map(_reader(Input), entry["inputs"])),
        jobs=jobs,
        nodes=(),
        outcomes=outcomes,
        findings=tuple(map(_reader(Finding), entry["findings"])),
        suppressed=tuple(map(_reader(Finding), entry["suppressed"])),
        coverage=replace(_reader(Coverage)(entry["coverage"]), unknown_outcomes=undecided(outcomes)),
        verdict=VerdictKind(entry["verdict"]),
        exit_code=entry["exit_code"],
        avoided_cost=_reader(AvoidedCost | None)(entry["avoided_cost"]),
        understood=_reader(Understood)(entry["understood"]),
    )


class _LazyJobs:
    """The stored jobs, parsed once and only if more than their outline is needed."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @functools.cached_property
    def jobs(self) -> tuple[Job, ...]:
        found: tuple[Job, ...] = type_adapter(tuple[Job, ...]).validate_json(self._content)
        return found


class _CachedJob(Job):
    """A job whose claims, notes and references are loaded on demand."""

    @classmethod
    def of(cls, outline: dict[str, Any], later: _LazyJobs, index: int) -> _CachedJob:
        """Return the job with this outline; its other fields are those of job number `index` of `later`."""
        job = object.__new__(cls)
        job.__dict__.update(
            name=outline["name"],
            files=tuple(map(_reader(InputFile), outline["files"])),
            launches=tuple(map(_reader(Launch), outline["launches"])),
            probable=outline["probable"],
            _rest=(later, index),
        )
        return job

    def __getattribute__(self, name: str) -> Any:
        # The omitted fields have defaults on the class, which must not be mistaken for stored values.
        if name in _LAZY_FIELDS:
            own = object.__getattribute__(self, "__dict__")
            if name not in own:
                later, index = own["_rest"]
                own.update({field: getattr(later.jobs[index], field) for field in _LAZY_FIELDS})
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and all(getattr(self, f.name) == getattr(other, f.name) for f in fields(Job))

    def __hash__(self) -> int:
        return hash(self.name)


_LAZY_FIELDS = frozenset(field.name for field in fields(Job)) - frozenset(_EAGER_FIELDS)


def _rows(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return outcomes as rows of numbers with equal neighbours merged: there are tens of thousands of outcomes, with a
    few hundred distinct strings.
    """
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    rows: list[list[Any]] = []
    for o in outcomes:
        alike = [*map(number, (o.id, o.name, o.status.value, o.reason, o.stage)), o.required]
        more = [plain(o.finding), plain(o.locations)] if o.finding or o.locations else []
        if rows and not more and rows[-1][:6] == alike and len(rows[-1]) == 7:
            rows[-1][6].append(number(o.subject))
        else:
            rows.append([*alike, [number(o.subject)], *more])
    return {"texts": list(texts), "rows": rows}


def _outcomes(written: dict[str, Any]) -> tuple[Outcome, ...]:
    texts: list[str] = written["texts"]
    statuses = {status.value: status for status in Status}
    finding, location = _reader(Finding | None), _reader(Location)
    found: list[Outcome] = []
    for id, name, status, reason, stage, required, subjects, *more in written["rows"]:
        places = tuple(map(location, more[1])) if more else ()
        fault = finding(more[0]) if more else None
        identity, named, why, when = statuses[texts[status]], texts[name], texts[reason], texts[stage]
        found.extend(
            [Outcome(texts[id], named, identity, texts[row], why, required, fault, places, when) for row in subjects]
        )
    return tuple(found)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function that rebuilds a value of `kind` from the output of `plain`. Supports only the classes of a
    report.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if NoneType in arguments:
        inner = _reader(next(argument for argument in arguments if argument is not NoneType))
        return lambda data: None if data is None else inner(data)
    if origin is tuple:
        member = _reader(arguments[0])
        return lambda data: tuple(map(member, data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        readers = [(field.name, _reader(hints[field.name])) for field in fields(kind)]
        make: Any = kind
        return lambda data: make(**{name: read(data[name]) for name, read in readers})
    return lambda data: data


@functools.cache
def _code_fingerprint(packages: frozenset[str]) -> str:
    """Return sizes and modification times of these packages' files, so that changed code invalidates the cache."""
    found: list[tuple[str, int, int]] = []
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
                        found.append((entry.path, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((folder, -1, -1))
    return hashlib.sha256(repr(sorted(found)).encode("utf-8", "surrogatepass")).hexdigest()

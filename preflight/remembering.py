"""Reports of lint kept in the cache, and taken from it where nothing that they depend on has changed.

The key holds what was asked: the tool, its packs and their code, the configuration, the paths and the day (waivers
expire). The entry holds what was looked at, so that a changed, added or removed file is noticed by its content. The
claims of jobs are the bulk of a report and few readers want them: they are read when somebody asks.
"""

from __future__ import annotations

import functools
import gc
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

from preflight.cache import Cache
from preflight.document import plain
from preflight.job import InputFile, Job, Launch
from preflight.lazy.validators import validator
from preflight.looking import Look
from preflight.outcome import Finding, Location, Outcome, Status, VerdictKind
from preflight.report import Coverage, Input, Report, Run, Tool
from preflight.stakes import Saved

_FORMAT = 2
#: What of a job is loaded at once; the rest is read when it is asked for.
_OUTLINE = ("name", "files", "launches", "probable")


def key_of(asked: Sequence[Any], modules: Iterable[str]) -> str:
    """The key of what is asked (anything with a faithful `repr`) of the code in these modules' packages."""
    said = [_FORMAT, sys.version, asked, _code(frozenset(name.partition(".")[0] for name in modules))]
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()


def recall(cache: Cache, key: str, look: Look, created: str) -> Report | None:
    """The report kept under `key`, if the tree is as it was then; None otherwise, and for any entry that is odd."""
    content = cache.get(key)
    if content is None:
        return None
    collects = gc.isenabled()
    gc.disable()  # Everything that is made here stays; looking through it again and again takes as long as making it.
    try:
        first, second = content.split(b"\n", 1)
        entry = json.loads(first)
        return _report(entry, second, created) if look.sees(entry["seen"]) else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    finally:
        if collects:
            gc.enable()


def remember(cache: Cache, key: str, look: Look, report: Report) -> None:
    """Keep a report."""
    entry = {
        "seen": look.seen(),
        "tool": plain(report.tool),
        "run": plain(report.run),
        "inputs": plain(report.inputs),
        "jobs": [{name: plain(getattr(job, name)) for name in _OUTLINE} for job in report.jobs],
        "outcomes": _rows(report.outcomes),
        "findings": plain(report.findings),
        "suppressed": plain(report.suppressed),
        "coverage": plain(replace(report.coverage, not_told=())),
        "verdict": report.verdict.value,
        "exit_code": int(report.exit_code),
        "saved": plain(report.saved),
    }
    try:
        whole = json.dumps(plain(report.jobs), separators=(",", ":")).encode()
        cache.put(key, json.dumps(entry, separators=(",", ":")).encode() + b"\n" + whole)
    except (ValueError, TypeError, RecursionError):
        return


def _report(entry: dict[str, Any], whole: bytes, created: str) -> Report:
    later = _Later(whole)
    jobs = tuple(_RememberedJob.of(outline, later, index) for index, outline in enumerate(entry["jobs"]))
    outcomes = _outcomes(entry["outcomes"])
    not_told = sorted(
        (o for o in outcomes if o.status is Status.UNKNOWN), key=lambda o: (not o.required, o.id, o.subject)
    )
    return Report(
        tool=_reader(Tool)(entry["tool"]),
        run=replace(_reader(Run)(entry["run"]), created=created),
        inputs=tuple(map(_reader(Input), entry["inputs"])),
        jobs=jobs,
        nodes=(),
        outcomes=outcomes,
        findings=tuple(map(_reader(Finding), entry["findings"])),
        suppressed=tuple(map(_reader(Finding), entry["suppressed"])),
        coverage=replace(_reader(Coverage)(entry["coverage"]), not_told=tuple(not_told)),
        verdict=VerdictKind(entry["verdict"]),
        exit_code=entry["exit_code"],
        saved=_reader(Saved | None)(entry["saved"]),
    )


class _Later:
    """The jobs as they were written, read once and only when somebody wants more than their outline."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @functools.cached_property
    def jobs(self) -> tuple[Job, ...]:
        found: tuple[Job, ...] = validator(tuple[Job, ...]).validate_json(self._content)
        return found


class _RememberedJob(Job):
    """A job whose claims, notes and references are read when they are asked for."""

    @classmethod
    def of(cls, outline: dict[str, Any], later: _Later, index: int) -> _RememberedJob:
        """The job with this outline; the rest is the `index`-th of `later`."""
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
        # The fields that are left out have defaults on the class, which must not be taken for what was said.
        if name in _LATER:
            own = object.__getattribute__(self, "__dict__")
            if name not in own:
                later, index = own["_rest"]
                own.update({field: getattr(later.jobs[index], field) for field in _LATER})
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and all(getattr(self, f.name) == getattr(other, f.name) for f in fields(Job))

    def __hash__(self) -> int:
        return hash(self.name)


_LATER = frozenset(field.name for field in fields(Job)) - frozenset(_OUTLINE)


def _rows(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Outcomes as rows of numbers, equal neighbours as one: there are tens of thousands, of a few hundred texts."""
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
        said, named, why, when = statuses[texts[status]], texts[name], texts[reason], texts[stage]
        found.extend(
            [Outcome(texts[id], named, said, texts[one], why, required, fault, places, when) for one in subjects]
        )
    return tuple(found)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of `kind` of what `plain` made of it. Only for the classes of a report."""
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
def _code(packages: frozenset[str]) -> str:
    """Sizes and times of all files of these packages: who works on a rule must not get the answer of yesterday's."""
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

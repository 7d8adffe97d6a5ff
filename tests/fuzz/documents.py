"""Targets: documents that preflight reads: recordings, reports, logs, and configuration files."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from preflight import api
from preflight._util.json_output import to_bytes
from preflight._util.usage_error import UsageError
from preflight.commands.diagnose import flight_recorder, hangs
from preflight.commands.diagnose import scan as symptoms
from preflight.commands.diagnose.diagnosis import Diagnosis
from preflight.commands.diagnose.pipeline import diagnose
from preflight.config import baseline
from preflight.config.resolve import Choices
from preflight.engine.report import Report, to_json
from preflight.model.recording import Recording
from preflight.model.recording_io import load, save
from preflight.plugins import registry
from preflight.plugins.site.loader import parse
from preflight.reporters.base import Style
from preflight.sources.discovery.walk import Excluded, walk
from preflight.sources.discovery.walk import problem as pattern_problem
from tests.fuzz import folder, mutation, seeds, words
from tests.fuzz.jobs import place_named, well_judged
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.shown import no_control_characters
from tests.fuzz.target import Fault, Target, sometimes
from tests.reporters import generated

_LOGS = seeds.ROOT / "tests" / "commands" / "diagnose" / "logs"
_RECORDING = seeds.FIXED / "recording.json"
_CODES = (0, 1, 3, 4, 130, 143)


def targets() -> Iterator[Target]:
    """Targets for saved documents, logs of failed runs, and configuration."""
    large = Limits(6.0, 256 * MIB)
    yield Target("judge", _judge, _recordings, words.quantities, mutation.document, 128 * 1024, large)
    yield Target("diff", _diff, _reports, words.quantities, mutation.document, 128 * 1024, large)
    yield Target(
        "diagnose", _diagnose, _logs, mutate=mutation.files, max_file_bytes=64 * 1024, limits=large, prepare=_table
    )
    yield Target("collective-dumps", _collective_dumps, _dumps, max_file_bytes=64 * 1024)
    yield Target("config", _config, _configurations, _names, mutation.files, 32 * 1024, prepare=_all_names)
    yield Target(
        "site-rules", _site_rules, lambda: seeds.below(seeds.FIXED / "site-rules"), _names, max_file_bytes=32 * 1024
    )
    yield Target("symptoms", _symptoms, _tables, max_file_bytes=16 * 1024)
    yield Target("baseline", _baseline, _baselines, mutate=mutation.document)
    yield Target("ignore-file", _ignored, _ignore_files, mutate=mutation.files, max_file_bytes=32 * 1024)


def _all_names() -> None:
    """Import every rule, check and source: a configuration that names an unknown one is compared with all of them."""
    registry.rules()
    registry.checks()
    registry.sources()


def _names() -> tuple[str, ...]:
    return (*words.quantities(), "BAT001", "batch", "NET", "torchrun", "nodes", "equals", "at-most", "error", "warning")


def _judge(data: bytes) -> None:
    """A readable recording is judged, and gives the same verdict after it was saved."""
    try:
        recording = load(data, to_judge=True)
        entirely = load(data)
    except ValueError as error:
        if not str(error).strip():
            raise Fault("an error without words") from None
        return
    report = api.judge(recording)
    well_judged(report, _CODES)
    if sometimes(data, every=4):
        again = api.judge(load(save(entirely)))
        if to_json(again) != to_json(report):
            raise Fault("a recording judged after it was saved again gives another report")


def _recordings() -> Iterator[bytes]:
    yield _RECORDING.read_bytes()
    yield gzip.compress(_RECORDING.read_bytes(), mtime=0)
    for report in _some_reports():
        yield save(Recording(report.jobs, report.run.created, "0.1.0", nodes=report.nodes, verb=report.run.verb))


@functools.cache
def _some_reports() -> list[Report]:
    return [generated.report(seed) for seed in range(0, 24, 3)]


def _reports() -> Iterator[bytes]:
    yield to_json(api.judge(load(_RECORDING.read_bytes())))
    yield from map(to_json, _some_reports())


def _diff(data: bytes) -> None:
    """Compare a document with its seed, in both directions."""
    with folder.temporary_folder({"new.json": data}) as root:
        for sides in ((_RECORDING, root / "new.json"), (root / "new.json", _RECORDING)):
            try:
                found = api.diff(*sides)
            except UsageError as error:
                place_named(error)
                return
            to_bytes(found, indent=2)


def _diagnose(data: bytes) -> None:
    files = folder.unpacked(data)
    with folder.temporary_folder(files) as root:
        found = _diagnosed(root)
        if found is None:
            return
        if sometimes(data):
            again = _diagnosed(root)
            if again is None or to_bytes(again, indent=2) != to_bytes(found, indent=2):
                raise Fault("logs read twice give two diagnoses")
        from preflight.commands.diagnose.diagnosis_text import page

        for verbosity in (0, 2):
            no_control_characters(page(found, Style(verbosity=verbosity)))


def _diagnosed(root: Path) -> Diagnosis | None:
    try:
        return diagnose([root], _table(), api._pointers, version="0")
    except UsageError as error:
        place_named(error)
        return None


def _collective_dumps(data: bytes) -> None:
    """A dump is read or refused with a reason, and a hang with itself as another rank can be described."""
    try:
        dumps = [flight_recorder.read_dump(data, rank, f"rank_{rank}") for rank in (0, 1)]
    except ValueError as error:
        if not str(error).strip():
            raise Fault("an error without words") from None
        return
    hangs.find_hang([dump for dump in dumps if dump is not None])


def _dumps() -> Iterator[bytes]:
    for path in sorted(_LOGS.parent.joinpath("dumps").rglob("nccl_trace_rank_*")):
        yield path.read_bytes()


@functools.cache
def _table() -> symptoms.Table:
    """The built-in symptoms, read once."""
    return symptoms.known()


def _logs() -> Iterator[bytes]:
    """The logs of each run together, the longest of them cut."""
    for place in sorted(_LOGS.glob("*/*")):
        if place.is_dir():
            files = [path for path in sorted(place.rglob("*")) if path.is_file()][:6]
            yield folder.packed({path.relative_to(place).as_posix(): path.read_bytes()[-5000:] for path in files})


def _config(data: bytes) -> None:
    """A valid configuration can be used to judge; an invalid one is rejected with a reason."""
    files = folder.unpacked(data)
    with folder.temporary_folder({"run.sh": b"torchrun --nnodes=2 train.py\n", **files}) as root:
        try:
            chosen = api.configure(Choices(), [root], root=root)
        except UsageError as error:
            place_named(error)
            return
        if sometimes(data):
            well_judged(api.lint([root / "run.sh"], root=root, configuration=chosen.configuration), (0, 1, 2, 3, 4))


def _configurations() -> Iterator[bytes]:
    kept = json.dumps({"schema_version": 1, "findings": []}).encode()
    for path in sorted((seeds.FIXED / "config").glob("*.toml")):
        name = path.name if path.name == "pyproject.toml" else "preflight.toml"
        yield folder.packed({name: path.read_bytes(), "baseline.json": kept})


def _site_rules(data: bytes) -> None:
    try:
        parse(data.decode("utf-8", "replace"), "site.toml")
    except UsageError as error:
        place_named(error)


def _symptoms(data: bytes) -> None:
    try:
        symptoms.parse(data.decode("utf-8", "replace"), "symptoms.toml")
    except ValueError as error:
        if "symptoms.toml" not in str(error):
            raise Fault("an error does not name its file", str(error)) from None


def _tables() -> Iterator[bytes]:
    for path in sorted((seeds.ROOT / "checks" / "preflight_checks" / "data" / "symptoms").glob("*.toml")):
        yield path.read_bytes()[:6000].rpartition(b"[[symptom]]")[0]


def _baseline(data: bytes) -> None:
    with folder.temporary_folder({"baseline.json": data}) as root:
        try:
            found = baseline.load(root / "baseline.json")
        except UsageError as error:
            place_named(error)
            return
        (root / "again.json").write_bytes(baseline.dump(found))
        if set(baseline.load(root / "again.json").entries) != set(found.entries):
            raise Fault("a baseline is another one after it was written")


def _baselines() -> Iterator[bytes]:
    for report in _some_reports():
        yield baseline.dump(baseline.of_findings(report.findings))


def _ignored(data: bytes) -> None:
    """Ignore files anywhere in a tree, and their lines as patterns of a configuration."""
    files = folder.unpacked(data)
    with folder.temporary_folder(files) as root:
        walk(root, "")
    patterns = [
        p for p in files.get(".gitignore", b"").decode("utf-8", "replace").split("\n") if not pattern_problem(p)
    ]
    excluded = Excluded(patterns[:100])
    for path in files:
        excluded.has(path, is_folder=False)


def _ignore_files() -> Iterator[bytes]:
    yield folder.packed({".gitignore": b"*.sh\n!keep.sh\nbuild/\n/a/**/b\n", "keep.sh": b"x\n", "a/c/b/run.sh": b"x\n"})
    yield folder.packed({".gitignore": b"**/x*y*\n[a-z]?\n\\#a\n", "sub/.gitignore": b"!*\n", "sub/xy.sh": b"x\n"})

"""Judge a recording by the rules and checks that its configuration selects."""

from __future__ import annotations

from pathlib import Path

from preflight import __version__
from preflight._util import regular_file
from preflight._util.usage_error import UsageError, nearest_path
from preflight.engine.report import Report, report_on
from preflight.model.configuration import NODES, SMOKE
from preflight.model.progress import Progress, Step, ignore
from preflight.model.recording import Recording
from preflight.plugins import registry
from preflight.plugins.installed import broken_for, checks_for, plugins, rules_for


def judge(recording: Recording | str | Path, *, progress: Progress = ignore) -> Report:
    """Judge a recording, or the file of one, without a cluster, as in the run. Raises UsageError."""
    if not isinstance(recording, Recording):
        progress(Step("recording"))
        recording = _load(Path(recording))
    rules = rules_for(recording.configuration) if recording.verb not in (NODES, SMOKE) else ()
    # A check that could not be planned is reported even if its stage was not reached.
    stages = None if recording.unplanned else frozenset(stage.name for stage in recording.stages)
    checks = checks_for(recording.configuration, stages) if recording.verb != "lint" else ()
    if recording.verb == SMOKE:
        # A smoke run reads only the files and requests only the facts that it needs.
        checks = tuple(check for check in checks if check.when == "smoke")
    chart_makers, missing_charts = registry.chart_makers(stages) if recording.verb != "lint" else ((), ())
    readers, missing_readers = registry.measurement_readers(stages) if recording.verb != "lint" else ((), ())
    return report_on(
        recording,
        rules,
        checks,
        plugins=plugins(),
        broken=broken_for(recording.verb, stages),
        progress=progress,
        chart_makers=chart_makers,
        missing_charts=(*missing_charts, *missing_readers),
        measurement_readers=readers,
        property_readers=registry.property_readers()[0] if recording.verb != "lint" else (),
    )


def _load(path: Path) -> Recording:
    # Lint reads no recording.
    from preflight.model.recording_io import MAX_BYTES, load

    try:
        data = regular_file.read(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}{nearest_path(path)}") from None
    try:
        return load(data, to_judge=True)
    except ValueError as error:
        if b'"exit_code"' in data and b'"coverage"' in data:
            raise UsageError(
                f"{path} is a report, not a recording; `preflight check --save recording.json` writes recordings"
            ) from None
        if data.lstrip()[:1] not in (b"{", b"\x1f"):
            hint = "`preflight check --save FILE` writes one"
            raise UsageError(f"{path} is not a recording, because it is not valid JSON: {error}; {hint}") from None
        raise UsageError(f"{path} is not a recording that preflight {__version__} can read: {error}") from None

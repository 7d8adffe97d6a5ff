"""Where reports go: each format to its file or to standard output, whole or not at all."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from preflight import catalog, last_page, terminal
from preflight.errors import UsageError
from preflight.lazy.dataclasses import dataclass
from preflight.report import Report
from preflight.reporters.base import Reporter, Style
from preflight.reporters.clean import clean

#: Formats by what else they are called.
_ALSO_CALLED = {
    "prometheus": "openmetrics",
    "prom": "openmetrics",
    "xunit": "junit",
    "xml": "junit",
    "codequality": "gitlab",
    "code-quality": "gitlab",
    "codeclimate": "gitlab",
    "annotations": "github",
    "actions": "github",
    "txt": "text",
}


@dataclass(frozen=True, slots=True)
class Output:
    """One `FORMAT[:FILE]`; without a path it is for standard output."""

    reporter: Reporter
    path: Path | None


def outputs(wanted: Sequence[str]) -> tuple[Output, ...]:
    """What the user asked for with `--output`, text to standard output when nothing.

    Told apart from writing, so that a mistake shows before a run of minutes and not behind it.

    Raises:
        UsageError: an unknown format, two formats for standard output, or a folder that is not there.
    """
    found = tuple(_parsed(one) for one in wanted or ("text",))
    _refuse_two([output.path for output in found])
    return found


def targets(wanted: Sequence[str], formats: Sequence[str]) -> tuple[tuple[str, Path | None], ...]:
    """The same for what is no report: each `FORMAT[:FILE]` as one of these formats, and a file or standard output.

    Raises:
        UsageError: as `outputs`.
    """
    found: list[tuple[str, Path | None]] = []
    for one in wanted:
        name, path = _taken_apart(one)
        if name not in formats:
            near = get_close_matches(name.lower(), formats, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"--output {one}: there is no {name!r}; {hint}known are {', '.join(formats)}")
        found.append((name, path))
    _refuse_two([path for _, path in found])
    return tuple(found)


def style_of(path: Path | None, color: bool | None, verbosity: int) -> Style:
    """How text looks that goes to a file, or to standard output."""
    if path is None:
        return _for_stdout(Style(verbosity=verbosity), color)
    return Style(color=bool(color), verbosity=verbosity)


def _refuse_two(paths: Sequence[Path | None]) -> None:
    if sum(path is None for path in paths) > 1:
        raise UsageError("only one format can go to standard output; give the others a file: --output json:report.json")


def deliver(report: Report, to: Sequence[Output], *, color: bool | None, style: Style | None = None) -> None:
    """Render `report` once for each output. One that fails does not keep the others from being written.

    `style` says how much is wanted; width, colours and letters are those of where each output goes.

    Raises:
        UsageError: a file that cannot be written.
    """
    asked = style or Style()
    failure: Exception | None = None
    for output in to:
        try:
            if output.path is None:
                data = _for_screen(report, output.reporter, _for_stdout(asked, color))
                print_bytes(_without_commands(data) if output.reporter.name == "text" else data)
            else:
                write(output.path, output.reporter.render(report, replace(asked, color=bool(color))))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    if to and all(output.path is not None for output in to):
        # Somebody at a terminal would otherwise see nothing at all.
        files = ", ".join(str(output.path) for output in to)
        count = len(report.findings)
        said = f"{report.verdict.value.upper()}, {count} finding{'' if count == 1 else 's'}"
        print(f"preflight: {said}; see {clean(files)}", file=sys.stderr)


def print_bytes(data: bytes) -> None:
    """Write to standard output; that its reader went away (`| head`) changes nothing."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(wanted: str) -> Output:
    name, path = _taken_apart(wanted)
    try:
        reporter = catalog.named(catalog.REPORTERS, name)
    except KeyError as error:
        meant = _ALSO_CALLED.get(name.lower())
        said = f"there is no {name!r}; that is called {meant!r} here" if meant else error.args[0]
        if name.lower() in ("jsonl", "ndjson", "events"):
            said = f"{name} is written while a run goes on: --events {path or 'FILE'}"
        raise UsageError(f"--output {wanted}: {said}") from None
    return Output(reporter, path)


def _taken_apart(wanted: str) -> tuple[str, Path | None]:
    name, separator, path = wanted.partition(":")
    if separator and not path:
        raise UsageError(f"--output {wanted}: a file name is expected behind the colon")
    if path and not Path(path).parent.is_dir():
        raise UsageError(f"--output {wanted}: there is no folder {Path(path).parent}")
    if path and Path(path).is_dir():
        raise UsageError(f"--output {wanted}: {path} is a folder; a file name is expected")
    return name, Path(path) if path else None


def _for_stdout(asked: Style, color: bool | None) -> Style:
    return replace(
        asked,
        width=terminal.width_of(sys.stdout),
        color=terminal.wants_color(sys.stdout, color),
        encoding=terminal.encoding_of(sys.stdout),
    )


def _for_screen(report: Report, reporter: Reporter, style: Style) -> bytes:
    """What goes to standard output: all of it, or what fits on a screen and where the rest is.

    Only what a person looks at is told in short, and only where more was not asked for: whoever reads a pipe, or says
    -v, gets everything.
    """
    whole = reporter.render(report, style)
    height = terminal.height_of(sys.stdout)
    if height is None or not getattr(reporter, "shortens", False) or style.verbosity > 0:
        return whole
    if style.concise or style.statistics:
        return whole
    short = reporter.render(report, replace(style, height=height))
    if short == whole:
        return whole
    rest = last_page.keep(report.run.verb, reporter.render(report, Style(verbosity=1)))
    return reporter.render(report, replace(style, height=height, rest=rest))


def _without_commands(data: bytes) -> bytes:
    """Text that quotes files of a stranger, with nothing in it that a runner of GitHub Actions takes for a command.

    It obeys lines that begin with `::`, whatever blanks stand before, and `##[` anywhere.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return data
    text = data.decode("utf-8", "surrogateescape").replace("##[", "## [")
    return re.sub(r"(?m)^([^\S\n]*):(?=:)", r"\1: ", text).encode("utf-8", "surrogateescape")


def write(path: Path, data: bytes) -> None:
    """Write beside the target and move over it, so that a reader never sees half of it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe: there is nothing to move over.
            path.write_bytes(data)
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Where reports go: each format to its file or to standard output, whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from preflight import catalog
from preflight.errors import UsageError
from preflight.report import Report
from preflight.reporters.base import Style


def deliver(report: Report, outputs: Sequence[str], *, color: bool | None, verbose: bool) -> None:
    """Render `report` once for each `FORMAT[:FILE]` of `outputs` (text to standard output without any).

    Raises:
        UsageError: an unknown format, two formats for standard output, or a file that cannot be written.
    """
    wanted = [_parse(output) for output in outputs] or [("text", None)]
    if sum(path is None for _, path in wanted) > 1:
        raise UsageError("only one format can go to standard output; give the others a file: --output json:report.json")
    for name, path in wanted:
        try:
            reporter = catalog.named(catalog.REPORTERS, name)
        except KeyError as error:
            raise UsageError(f"--output {name}: {error.args[0]}") from None
        if path is None:
            data = reporter.render(report, _terminal_style(color, verbose))
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _write(path, reporter.render(report, Style(color=bool(color), verbose=verbose)))


def _parse(output: str) -> tuple[str, Path | None]:
    name, separator, path = output.partition(":")
    if separator and not path:
        raise UsageError(f"--output {output}: a file name is expected behind the colon")
    return name, Path(path) if path else None


def _terminal_style(color: bool | None, verbose: bool) -> Style:
    terminal = sys.stdout.isatty()
    if color is None:
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((100, 40)).columns if terminal else 100
    return Style(width=max(40, min(width, 140)), color=color, verbose=verbose)


def _write(path: Path, data: bytes) -> None:
    """Write beside the target and move over it, so that a reader never sees half a report."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

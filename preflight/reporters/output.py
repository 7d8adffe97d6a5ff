"""Writes reports, each completely or not at all, and keeps the full text of the last one."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from preflight._util import regular_file, terminal, toml
from preflight._util.cache import user_folder
from preflight._util.sanitize import INLINE_COMMAND, LINE_START_COMMAND, clean, neutralize_commands, printable
from preflight._util.usage_error import UsageError, similar_names
from preflight.engine.report import Report
from preflight.plugins import registry
from preflight.reporters import FORMATS
from preflight.reporters.base import Reporter, Style, word

#: Formats in which `\\\\u0023` is `#`.
_JSON = ("json", "sarif", "gitlab")


@dataclass(frozen=True, slots=True)
class Output:
    """One `FORMAT[:FILE]`; without a path it goes to standard output."""

    reporter: Reporter
    path: Path | None


def outputs(texts: Sequence[str]) -> tuple[Output, ...]:
    """Parse `--output` (default: text) before a long run, so that mistakes show at once. Raises UsageError."""
    parsed_outputs = tuple(_parse_output(item) for item in texts or ("text",))
    _require_single_stdout([output.path for output in parsed_outputs])
    return parsed_outputs


def targets(texts: Sequence[str], formats: Sequence[str]) -> tuple[tuple[str, Path | None], ...]:
    """Parse `--output` of a command without a report: formats with file or None. Raises UsageError."""
    targets_and_paths: list[tuple[str, Path | None]] = []
    for item in texts:
        name, path = _split(item)
        if name not in formats:
            near = similar_names(name.lower(), formats)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"--output {item}: unknown format {name!r}; {hint}choose from {', '.join(formats)}")
        targets_and_paths.append((name, path))
    _require_single_stdout([path for _, path in targets_and_paths])
    return tuple(targets_and_paths)


def style_of(path: Path | None, color: bool | None, verbosity: int) -> Style:
    """Return the style of text for a file or for standard output."""
    if path is None:
        return _for_stdout(Style(verbosity=verbosity), color)
    return Style(color=bool(color), verbosity=verbosity)


def _require_single_stdout(paths: Sequence[Path | None]) -> None:
    if sum(path is None for path in paths) > 1:
        raise UsageError(
            "only one format can go to standard output; write the others to files: --output json:report.json"
        )


def deliver(report: Report, to: Sequence[Output], *, color: bool | None, style: Style | None = None) -> None:
    """Render `report` for each output in `style`; if one fails, the others are written. Raises UsageError."""
    chosen_style = style or Style()
    failure: Exception | None = None
    for output in to:
        try:
            if output.path is None:
                data = _for_screen(report, output.reporter, _for_stdout(chosen_style, color))
            else:
                data = output.reporter.render(report, replace(chosen_style, color=bool(color)))
            put(data, output.reporter.name, output.path)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    if to and all(output.path is not None for output in to):
        # Otherwise the terminal would show nothing at all.
        files = ", ".join(str(output.path) for output in to)
        count = len(report.findings)
        summary = f"{word(report.verdict)}, {count} finding{'' if count == 1 else 's'}"
        print(neutralize_commands(f"preflight: {summary}; see {clean(files)}"), file=sys.stderr)


def put(data: bytes, format_name: str, path: Path | None) -> None:
    """Write a document to its file or to standard output, without CI commands. Raises UsageError."""
    content = neutralize(data, format_name)
    print_bytes(content) if path is None else write(path, content)


def print_bytes(data: bytes) -> None:
    """Write to standard output. A closed pipe (`| head`) is not an error."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit and would report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_text(text: str) -> None:
    """Print to standard output, without control characters or CI commands that a hostile file may contain."""
    print_bytes(printable(text).encode("utf-8", "replace"))


def _parse_output(text: str) -> Output:
    name, path = _split(text)
    try:
        reporter = registry.load_named(registry.REPORTERS, name)
    except KeyError as error:
        meant = toml.beside(__file__, "other_names.toml").get(name.lower())
        summary = f"unknown format {name!r}; use {meant!r}" if meant else error.args[0]
        if name.lower() in ("jsonl", "ndjson", "events"):
            summary = f"{name} are written during a run; use --events {path or 'FILE'}"
        raise UsageError(f"--output {text}: {summary}") from None
    return Output(reporter, path)


def _split(text: str) -> tuple[str, Path | None]:
    # The name of a format may itself have a colon.
    long = next((name for name in FORMATS if ":" in name and f"{text}:".startswith(f"{name}:")), "")
    name, separator, path = (long, *text[len(long) :].partition(":")[1:]) if long else text.partition(":")
    if separator and not path:
        raise UsageError(f"--output {text}: expected a file name after the colon")
    if path and not Path(path).parent.is_dir():
        raise UsageError(f"--output {text}: the folder {Path(path).parent} does not exist")
    if path and Path(path).is_dir():
        raise UsageError(f"--output {text}: {path} is a folder; expected a file name")
    return name, Path(path) if path else None


def _for_stdout(chosen_style: Style, color: bool | None) -> Style:
    return replace(
        chosen_style,
        width=terminal.width_of(sys.stdout),
        color=terminal.wants_color(sys.stdout, color),
        encoding=terminal.encoding_of(sys.stdout),
    )


def _for_screen(report: Report, reporter: Reporter, style: Style) -> bytes:
    """Return the whole report, or on a terminal without -v a summary that fits, naming the command for the rest."""
    whole = reporter.render(report, style)
    height = terminal.height_of(sys.stdout)
    if height is None or not getattr(reporter, "shortens", False) or style.verbosity > 0:
        return whole
    if style.concise or style.statistics:
        return whole
    short = reporter.render(report, replace(style, height=height))
    if short == whole:
        return whole
    rest = keep(report.run.verb, reporter.render(report, Style(verbosity=1)))
    return reporter.render(report, replace(style, height=height, rest=rest))


def neutralize(data: bytes, format_name: str) -> bytes:
    """Neutralize commands to a CI runner in a rendered document, which may quote hostile files.

    CI logs hold whatever goes to standard output, and files that a later step prints. Formats that can write a
    character in another way keep their meaning. GitHub's workflow commands are left unchanged; they are escaped where
    they are created.
    """
    if format_name == "github" or (b"::" not in data and b"##" not in data):
        return data
    text = data.decode("utf-8", "surrogateescape")
    if format_name in _JSON:
        text = INLINE_COMMAND.sub(r"\\u0023", text)
    elif format_name in ("junit", "html"):
        # These elements contain our own text, and character references are not read in them.
        pieces = re.split(r"(?s)(<style.*?</style>|<script.*?</script>)", text)
        pieces[::2] = (LINE_START_COMMAND.sub(r"\1&#58;", INLINE_COMMAND.sub("&#35;", piece)) for piece in pieces[::2])
        text = "".join(pieces)
    else:
        text = neutralize_commands(text)
    return text.encode("utf-8", "surrogateescape")


def write(path: Path, data: bytes) -> None:
    """Write to a temporary file and move it over the target, so that a reader never sees half of it.

    A link of that name is replaced, not followed, because it may come from the examined tree. A folder of the path
    that is a link out of the working directory is refused.

    Raises:
        UsageError: the file cannot be written.
    """
    refuse_outside_link(path)
    try:
        if is_stream(path):
            with path.open("ab") as stream:
                stream.write(data)
            return
        regular_file.replace(path, data, mode=0o666 & ~_umask())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def refuse_outside_link(path: Path) -> None:
    """Raise UsageError if a relative `path` leads through a link out of the working directory."""
    here = Path.cwd()
    wanted = Path(os.path.normpath(here / path.parent))
    if wanted != here and here not in wanted.parents:
        return  # The path itself is outside, so that was intended.
    real = Path(os.path.realpath(path.parent))
    held = here.resolve()
    if real != held and held not in real.parents:
        raise UsageError(
            f"{path} cannot be written: it is a link to {real}, outside the working directory; name that folder "
            "directly"
        )


def is_stream(path: Path) -> bool:
    """Return whether `path` is a device or pipe, which no file can replace; only system links are followed."""
    folder = path.absolute().parent.resolve()
    if folder == Path("/dev") or folder.parts[:2] == ("/", "proc"):
        return path.exists()
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return `$XDG_STATE_HOME/preflight`, else `~/.local/state/preflight`; None if neither variable is set."""
    return user_folder(environ, "XDG_STATE_HOME", ".local/state")


def keep(verb: str, text: bytes, *, at: Path | None = None) -> str:
    """Save `text`, for this user only, in place of the last; return the command that shows it, else empty."""
    place = at or folder()
    if place is None or not re.fullmatch(r"[a-z-]{1,32}", verb):
        return ""
    path = place / f"last-{verb}.txt"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        regular_file.replace(path, text, mode=0o600)
    except OSError:
        return ""
    return f"less {shlex.quote(str(path))}"

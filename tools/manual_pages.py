"""Manual pages made from the commands' own help: one for preflight, one for each command. The wheel installs them.

Hatchling runs this while it builds a wheel, so the build needs click and nothing else that preflight needs.
`python tools/manual_pages.py FOLDER` writes the pages into a folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
#: Where manual pages lie below the prefix of an installation.
TARGET = "share/man/man1"
_EXIT_STATUS = (
    ("0", "go: nothing that stops the job"),
    ("1", "no-go: the job would fail, hang or train incorrectly"),
    ("2", "wrong usage or configuration"),
    ("3", "incomplete: something required could not be decided"),
    ("4", "nothing to judge"),
    ("5", "a bug in preflight"),
)


class ManualPages(BuildHookInterface[Any]):
    """Adds the pages to the data files of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages; an editable installation has none."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="preflight-man-")
        for path in write(Path(self._folder.name)):
            build_data["shared_data"][str(path)] = f"{TARGET}/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def write(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, text in pages():
        path = folder / f"{name}.1"
        path.write_text(text)
        found.append(path)
    return found


def pages() -> Iterator[tuple[str, str]]:
    sys.path.insert(0, str(ROOT))
    try:
        from preflight.cli.main import cli
    finally:
        sys.path.remove(str(ROOT))
    yield from _pages(cli, ("preflight",))


def _pages(command: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    yield "-".join(names), _page(command, names)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield from _pages(inner, (*names, name))


def _page(command: Any, names: tuple[str, ...]) -> str:
    import click

    from preflight import __version__

    context = click.Context(command, info_name=" ".join(names))
    first, _, rest = (command.help or "").replace("\f", "").partition("\n\n")
    title = "-".join(names)
    lines = [
        f'.TH "{title.upper()}" "1" "" "preflight {__version__}" "preflight"',
        ".SH NAME",
        f"{_escaped(title)} \\- {_escaped(' '.join(first.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_escaped(' '.join(names))}",
        _escaped(" ".join(command.collect_usage_pieces(context))),
    ]
    if rest.strip():
        lines += [".SH DESCRIPTION", *_paragraphs(rest)]
    options = [record for each in command.get_params(context) if (record := each.get_help_record(context)) is not None]
    if options:
        lines.append(".SH OPTIONS")
    for written, meaning in options:
        lines += [".TP", f"\\fB{_escaped(written)}\\fP", _escaped(" ".join(meaning.split()))]
    inner = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    if inner:
        lines.append(".SH COMMANDS")
    for name, each in sorted(inner.items()):
        lines += [".TP", f"\\fB{_escaped('-'.join((*names, name)))}\\fP(1)", _escaped(each.get_short_help_str(200))]
    if len(names) == 1:
        lines.append(".SH EXIT STATUS")
        for code, meaning in _EXIT_STATUS:
            lines += [".TP", f"\\fB{code}\\fP", _escaped(meaning)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a help text; a paragraph after `\b` keeps its lines."""
    for block in text.split("\n\n"):
        plain = [line.rstrip() for line in block.strip("\n").splitlines()]
        yield ".PP"
        if plain and plain[0].strip() == "\b":
            yield from (".nf", *map(_escaped, plain[1:]), ".fi")
        else:
            yield _escaped(" ".join(" ".join(plain).split()))


def _escaped(text: str) -> str:
    """Return the text so that troff sees no command in it: no line begins with one, and hyphens can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""The choices of the command line, and the settings that result for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from preflight.model.configuration import Configuration, SeverityChoice

#: Names of configuration files; at most one of them in a folder may configure preflight.
NAMES = ("preflight.toml", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the command line; None or empty for choices that were not made.

    `file` is a configuration file to use instead of searching for one; with `use_file` false there is none.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    profile: str | None = None
    fail_on: str | None = None
    allow_incomplete: bool = False
    severities: tuple[SeverityChoice, ...] = ()
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    baseline: Path | None = None
    site_rules: tuple[Path, ...] = ()
    file: Path | None = None
    use_file: bool = True


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings of a run, and the format of its report, the file of its baseline and the price, if given.

    `history` is the address of the database that remembers runs, and `history_keep` how long it does.
    """

    configuration: Configuration = field(default_factory=Configuration)
    output: str = ""
    baseline: Path | None = None
    price_per_gpu_hour: float | None = None
    history: str = ""
    history_keep: str = ""

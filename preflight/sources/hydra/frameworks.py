"""The frameworks whose configuration Hydra composes or a file gives: one row of `frameworks.toml` each."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import toml
from preflight.model.job import Plain, as_int
from preflight.sources.value_readers import READERS, Reader


class Style(enum.Enum):
    """How a program builds its configuration."""

    #: `@hydra.main`, or Hydra's `compose`.
    HYDRA = "hydra"
    #: A file named on the line, merged with overrides; files may inherit from others.
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Key:
    """One quantity, and the keys that give it; the first one that is set counts.

    Args:
        default: the value that the framework uses if no key is set; None if it has none.
        when: a key whose value must be true for this one to count.
        role: the part of the job that it describes; empty for the trained ranks.
    """

    quantity: str
    keys: tuple[str, ...]
    default: Plain = None
    read: Reader = as_int
    when: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    Args:
        modules: regular expression for the modules and scripts that start it; empty if it has none.
        recognised_by: sets of keys; its configuration has all keys of at least one set.
        starts_ranks: whether one process starts all ranks, over Ray; otherwise something else starts them.
        option: the word before the configuration file on a line.
        parents: key whose values are further files to be merged first; empty if there is none.
        below: sections that hold the settings, as `modules.pre_trainer.overrides`; empty for the top.
        own: regular expression of the programs that run its own validator; empty if none has one.
        files_only: whether keys on the command line are read elsewhere.
        packages: prefixes of its modules' names that identify it by themselves.
        has_settings: whether rules judge its keys, so that each is stated as `setting.NAME.KEY`.
    """

    name: str
    keys: tuple[Key, ...]
    recognised_by: tuple[tuple[str, ...], ...]
    modules: str = ""
    style: Style = Style.HYDRA
    starts_ranks: bool = True
    option: str = ""
    parents: str = ""
    below: tuple[str, ...] = ("",)
    own: str = ""
    files_only: bool = False
    packages: tuple[str, ...] = ("verl.", "skyrl", "areal.", "primus.", "nemo_rl.")
    has_settings: bool = False


def _framework(row: dict[str, Any]) -> Framework:
    return Framework(
        keys=tuple(_key(key) for key in row.pop("keys")),
        recognised_by=tuple(tuple(keys) for keys in row.pop("recognised_by")),
        style=Style(row.pop("style", Style.HYDRA)),
        **toml.with_tuples(row),
    )


def _key(row: dict[str, Any]) -> Key:
    return Key(read=READERS[row.pop("read", "int")], **toml.with_tuples(row))


#: In the order in which they are tried.
FRAMEWORKS = tuple(_framework(row) for row in toml.load(Path(__file__).with_name("frameworks.toml"))["framework"])

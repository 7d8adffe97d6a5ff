"""Every table that is generated, each with its source, from `targets.yaml`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class Declaration(enum.Enum):
    """How a file declares its options."""

    #: `parser.add_argument("--nnodes", type=str, default="1:1")`
    ARGPARSE = "argparse"
    #: `@click.option("--head", is_flag=True)` above a function
    CLICK = "click"
    #: `learning_rate: float = field(default=5e-5)` in a class: dataclasses, pydantic models, named tuples
    FIELDS = "fields"
    #: `def __init__(self, *, devices: int = 1)` in a class: the named arguments of its constructor
    ARGUMENTS = "arguments"
    #: `TRAIN_BATCH_SIZE = "train_batch_size"` at the top of a module
    CONSTANTS = "constants"
    #: `_no_split_modules = ["BertLayer"]` in a class: one row for each member of the list
    LISTS = "lists"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a distribution, and which of its declarations count.

    Args:
        path: inside the wheel (`torch/distributed/run.py`); a version may lack it.
        names: functions (argparse, click), classes (fields), prefixes of names (constants) or attributes of classes
            (lists); empty means all.
        flags: custom argparse actions, or functions that create one, whose options take no value.
        both_dashes: the program accepts `--a_b` and `--a-b` wherever one of them is declared.
        kind: for lists: the kind of their members.
        option: for fields: the option for a field, `--{}`; empty for keys of a file.
    """

    path: str
    declaration: Declaration
    names: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    both_dashes: bool = False
    option: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """One table.

    Args:
        name: of the table and its file.
        program: the name of the described program.
        distribution: as on the package index.
        versions: oldest first.
        date: the day these versions were chosen (ISO).
        parts: the files that declare the options; if an option is declared twice, the first declaration counts.
        installed: read the installed distribution, because it is too large to fetch.
    """

    name: str
    program: str
    distribution: str
    versions: tuple[str, ...]
    date: str
    parts: tuple[Part, ...]
    installed: bool = False


def _parts(row: dict[str, Any]) -> Iterator[Part]:
    """Yield the part of a row, or one part for each name in `of`, which replaces `{}` and is the kind of a list."""
    listed = {name: tuple(row[name]) for name in ("names", "flags") if name in row}
    given = {name: value for name, value in row.items() if name != "of"} | listed
    given["declaration"] = declaration = Declaration(row["declaration"])
    if "of" not in row:
        yield Part(**given)
    for name in row.get("of", ()):
        kind = name if declaration is Declaration.LISTS else ""
        yield Part(**{**given, "path": row["path"].replace("{}", name), "kind": kind})


def _targets() -> Iterator[Target]:
    for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")):
        parts = tuple(part for given in row["parts"] for part in _parts(given))
        yield Target(**{**row, "versions": tuple(row["versions"]), "parts": parts})


TARGETS = tuple(_targets())

"""Whatever gives settings, as `data/frameworks.toml` lists it: frameworks, launchers, calls, objects of controllers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from preflight_rules.data_tables import table

#: Stands for the variables of a launch, by their names.
ENVIRONMENT = "environment"
#: Stands for the options of a batch header.
SBATCH = "sbatch"


class Keys(NamedTuple):
    """What is known of the keys of a framework whose table has every one.

    Args:
        title: what has the keys, as a message gives it.
        extended: whether programs add options of their own, so that a job has to pin the release of the table.
        extended_by: keys that name a module of the job's own, which adds keys.
        flat: whether options have dots in their names, which separate no sections.
        stopped: what happens at an unknown key.
        dashed: the options that have an underscore, where all others have dashes alone; None where it is not known.
        usual: for keys of earlier releases and of other frameworks, what is meant.
    """

    title: str
    extended: bool = False
    extended_by: tuple[str, ...] = ()
    flat: bool = False
    stopped: str = "every rank stops"
    dashed: frozenset[str] | None = None
    usual: Mapping[str, str] = {}


class Framework(NamedTuple):
    """One row of the table, whose head describes the fields.

    Args:
        name: the name that was looked up.
        keys: what is known of its keys; None where the table does not have every one.
    """

    name: str
    title: str
    refusals: tuple[str, ...] = ()
    settings: str = ""
    distributions: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    named: str = ""
    program: str = ""
    keys: Keys | None = None


@functools.cache
def framework(name: str) -> Framework | None:
    """The row of a name; None for one that the table does not have."""
    for row in table("frameworks")["framework"]:
        if any(fnmatchcase(name, pattern) for pattern in row["names"]):
            return _read(name, row)
    return None


def reads(name: str, how: str) -> bool:
    """Whether a framework gets its settings in this way, as the head of the table lists them."""
    row = framework(name)
    return row is not None and how in row.reads


def distributions(name: str) -> tuple[str, ...]:
    """The names of a framework in the package index; of anything else the name itself."""
    row = framework(name)
    return row.distributions if row is not None else (name,)


@functools.cache
def named_as(name: str) -> tuple[str, ...]:
    """The frameworks whose settings have the name of another."""
    rows = table("frameworks")["framework"]
    return tuple(each for row in rows if row.get("named") == name for each in row["names"])


@functools.cache
def with_all_keys() -> tuple[str, ...]:
    """The frameworks whose table has every key."""
    return tuple(row["names"][0] for row in table("frameworks")["framework"] if "keys" in row)


def _read(name: str, row: dict[str, Any]) -> Framework:
    keys = row.get("keys")
    return Framework(
        name,
        row["title"],
        tuple(row.get("refusals", ())),
        row.get("settings", ""),
        tuple(row.get("distributions", (name,))),
        frozenset(row.get("reads", ())),
        row.get("named", ""),
        row.get("program", ""),
        _keys({"title": row["title"], **keys}) if keys is not None else None,
    )


def _keys(row: dict[str, Any]) -> Keys:
    dashed = row.pop("dashed", None)
    return Keys(
        **{**row, "extended_by": tuple(row.get("extended_by", ()))},
        dashed=frozenset(dashed) if dashed is not None else None,
    )

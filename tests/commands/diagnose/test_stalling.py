"""Recorded dumps of four ranks that stall: who is to blame is known, because `stalling.py` made them stall.

A third of the programs is sealed: a hash of the name chooses it, and nothing may be changed because of it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from tests.commands.diagnose.stalling import PROGRAMS

SETS: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "dumps" / "stalling.json.gz").read_bytes())
)


def is_sealed(name: str) -> bool:
    """Whether a program is only measured."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


SEEN = [name for name in PROGRAMS if not is_sealed(name)]
SEALED = [name for name in PROGRAMS if is_sealed(name)]


def blamed(name: str, folder: Path) -> tuple[int, ...]:
    """The ranks that a diagnosis of the dumps blames."""
    for rank, dump in SETS[name].items():
        for entry in dump["entries"]:
            entry["process_group"] = tuple(entry["process_group"])
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    cause = api.diagnose([folder]).cause
    return tuple(member.rank for member in cause.members if member.rank is not None) if cause is not None else ()


@pytest.mark.parametrize("name", SEEN)
def test_the_ranks_that_stall_the_others_are_named_and_no_other(name: str, tmp_path: Path) -> None:
    assert blamed(name, tmp_path) == PROGRAMS[name][1]


def test_sealed_programs_name_nobody_who_is_not_to_blame(tmp_path: Path) -> None:
    right = wrong = 0
    for name in SEALED:
        (folder := tmp_path / name).mkdir()
        found = blamed(name, folder)
        right += found == PROGRAMS[name][1]
        wrong += not set(found) <= set(PROGRAMS[name][1])
    print(f"sealed programs: {right} of {len(SEALED)} right, {wrong} blame somebody else")
    assert (right >= 0.75 * len(SEALED), wrong <= 0.125 * len(SEALED)) == (True, True)

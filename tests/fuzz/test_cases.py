"""Replays every input that once had a fault, and runs a few seconds of mutations without coverage.

The long search is `make fuzz` (docs/fuzzing.md).
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import folder, mutation, words
from tests.fuzz.cases import CASES, cases, minimised
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.shown import elements, no_commands, no_control_characters
from tests.fuzz.target import Fault, Target
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.thorough

#: The number of inputs of each target; fewer for expensive targets.
_MANY, _FEW = 30, 4
_EXPENSIVE_S = 2.0


@pytest.mark.parametrize(("name", "path"), [pytest.param(n, p, id=f"{n}-{p.name}") for n, p in cases()])
def test_cases_give_no_fault(name: str, path: Path) -> None:
    target = TARGETS[name]
    target.warm()
    finding = target.tried(path.read_bytes())
    assert finding is None, finding.story


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_mutations_give_no_fault(name: str) -> None:
    target = TARGETS[name]
    target.warm()
    seeds = sorted(set(islice(target.seeds(), _MANY)), key=len)
    assert seeds, "a target without seeds starts from nothing"
    dice = random.Random(zlib.crc32(name.encode()))
    known = (*target.words(), *words.ODD)
    for number in range(_FEW if target.limits.cpu_s > _EXPENSIVE_S else _MANY):
        data = dice.choice(seeds)
        finding = target.tried(target.mutate(data, dice, known) if number else data)
        assert finding is None, f"{finding.story}\n{finding.data!r:.2000}"


def _target(run: Callable[[bytes], None], **more: Any) -> Target:
    return Target("x", run, lambda: (b"a",), **more)


def test_slow_input_is_interrupted() -> None:
    def endless(data: bytes) -> None:
        while data:
            sum(range(1000))

    began = time.process_time()
    finding = _target(endless, limits=Limits(0.2)).tried(b"x")
    assert finding is not None and finding.signature.startswith("time") and "in endless" in finding.story
    assert time.process_time() - began < 2.0


def test_excessive_memory_is_found() -> None:
    finding = _target(lambda data: bytearray(len(data) * 64 * MIB).count(1), limits=Limits(5.0, 32 * MIB)).tried(b"xx")
    assert finding is not None and finding.signature.startswith("memory")
    assert _target(lambda data: None, limits=Limits(5.0, 32 * MIB)).tried(b"x") is None


def test_a_rule_that_isolates_exceptions_does_not_hide_the_limit() -> None:
    def isolated(data: bytes) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                pass

    finding = _target(isolated, limits=Limits(0.2)).tried(b"x")
    assert finding is not None and finding.signature.startswith("time")


def test_findings_are_grouped_and_minimised() -> None:
    def run(data: bytes) -> None:
        if b"bad" in data:
            raise Fault("a promise is broken", repr(data))

    finding = _target(run).tried(b"one\ntwo bad three\nfour\n")
    assert finding is not None
    other = _target(run).tried(b"bad")
    assert other is not None and other.slug == finding.slug
    assert minimised(_target(run), finding).data == b"bad"


def test_folder_round_trip_stays_inside_its_root(tmp_path: Path) -> None:
    files = {"run.sh": b"torchrun train.py\n", "conf/ds.json": b"{}\n"}
    assert folder.unpacked(folder.packed(files)) == files
    hostile = b">>> ../out\nx\n>>> /etc/x\nx\n>>> a\nx\n>>> a/b\nx\n>>> .\nx"
    assert list(folder.unpacked(hostile)) == ["a"]


def test_mutations_are_deterministic() -> None:
    for mutate in (mutation.text, mutation.files, mutation.document, mutation.lines):
        data = b'{"a": [1, "x", {"b": null}]}\n{"c": 2}\n'
        made = {mutate(data, random.Random(7), ("w",)) for _ in range(3)}
        assert len(made) == 1
        assert any(mutate(data, random.Random(seed), ("w",)) != data for seed in range(5))


def test_forbidden_output_is_found() -> None:
    no_control_characters("plain\n\x1b[1mbold\x1b[0m\n")
    for text in ("\x1b[2J", "\u202e", "a\rb", "\x07"):
        with pytest.raises(Fault):
            no_control_characters(text)
    for text in ("::error::x", "  ::warning file=a::x", "x\n##[error]x"):
        with pytest.raises(Fault):
            no_commands(text)
    no_commands("see a::error:: in the middle")
    assert ("script", "") in elements("<p>a<script>b</script>").names


def test_every_case_belongs_to_a_target() -> None:
    assert {name for name, _ in cases()} <= set(TARGETS)
    assert {path.name for path in CASES.iterdir()} <= set(TARGETS)

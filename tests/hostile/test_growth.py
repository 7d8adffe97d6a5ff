"""Readers on shapes that grow: four times the size must not take much more than four times the work.

Work is counted in calls of functions and operations of C (`sys.setprofile`), which no other load on the machine
changes. Work below a floor does not count; work that a budget ends is bounded.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from preflight._util.budget import Budget, Limits
from preflight.plugins.registry import sources
from preflight.sources.base import SourceFile
from preflight.sources.discovery.readings import RecognisedFiles, read_source
from preflight.sources.formats.tree import MemoryTree
from tests.hostile.shapes import SHAPES, Shape

pytestmark = pytest.mark.thorough

SMALL = 150
#: Four times as much, with half as much again for logarithmic growth.
MAX_GROWTH = 6.0
#: Fewer calls take less than about two seconds; quadratic growth below it may be ended by a limit of the reader.
FLOOR = 1_500_000
#: Without a clock: only counted limits may end a reading here.
BUDGET = Limits(seconds_each=1e6, seconds_pool=1e6, seconds_run=1e6)


def _id(shape: Shape) -> str:
    return f"{shape.name}-{shape.id}"


def _calls(shape: Shape, n: int) -> int:
    tree = MemoryTree({shape.name: shape.text(n)})
    file = tree.read(shape.name)
    assert isinstance(file, SourceFile)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    with Budget(BUDGET).watched():
        source = RecognisedFiles(tree, tuple(sources())).source_of(file, "")
        if source is None:
            return 0
        # An imported module is no work.
        read_source(source, file, tree, role="script" if source.name == "python" else "")
        fresh = next(type(one)() for one in sources() if one.name == source.name)
        sys.setprofile(count)
        try:
            read_source(fresh, file, tree, role="script" if source.name == "python" else "")
        finally:
            sys.setprofile(None)
    return calls


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.parametrize("shape", SHAPES, ids=_id)
def test_work_grows_with_the_size(shape: Shape) -> None:
    large = _calls(shape, 4 * SMALL)
    assert large < FLOOR or large / max(1, _calls(shape, SMALL)) < MAX_GROWTH

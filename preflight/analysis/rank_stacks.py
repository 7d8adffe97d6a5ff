"""The stacks of members that were taken after a hang, and the member whose stack differs from all others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from preflight.analysis.culprit_model import Culprit, Views, make_culprit, names_text

#: A frame, and the header of a thread, in a dump of Python's faulthandler (most recent call first).
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
#: The functions that members run, as named in a stack.
_ENTRIES = ("rank", "server", "worker")
#: Folders of the frameworks, inside which a call to all other ranks waits.
_FRAMEWORKS = ("/torch/", "/paddle/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    function: str
    path: str
    line: str

    @property
    def text(self) -> str:
        """`all_reduce (distributed_c10d.py:3252)`."""
        return f"{self.function} ({self.path.rsplit('/', 1)[-1]}:{self.line})"

    @property
    def in_framework(self) -> bool:
        """Whether it is in the framework's own code."""
        return any(folder in self.path for folder in _FRAMEWORKS)


def frames_of(text: str) -> list[Frame]:
    """The frames of the member's own thread, innermost first, from faulthandler's dump of all threads."""
    threads = [[Frame(name, path, line) for path, line, name in _FRAME.findall(block)] for block in _THREAD.split(text)]
    own = [frames for frames in threads if any("reference_trainer" in frame.path for frame in frames)]
    main = [frames for frames in own if any(frame.function in _ENTRIES for frame in frames)]
    return next(iter(main or own or [frames for frames in threads if frames]), [])


def find_outside(views: Views, found: Culprit) -> Culprit | None:
    """The few members that are in code outside the framework, while most wait in the call that all have entered.

    `found` is the result without stacks: all members hang together, and none is named.
    """
    if found.kind != "stuck" or found.rank is not None:
        return None
    innermost = {number: frames[0] for number, view in views.items() if (frames := frames_of(view.stacks))}
    waiting = [number for number, frame in innermost.items() if frame.in_framework]
    # The trainer's own code may wait for a GPU, which is no difference.
    outside = [n for n, frame in innermost.items() if not frame.in_framework and "reference_trainer" not in frame.path]
    if not outside or len(outside) >= len(waiting) or len(innermost) < len(views):
        return None
    return _named(views, found, innermost, waiting, outside)


def _named(
    views: Views, found: Culprit, innermost: Mapping[int, Frame], waiting: Sequence[int], outside: Sequence[int]
) -> Culprit:
    first = views[outside[0]]
    frame = innermost[first.rank]
    where = f"{frame.function} ({frame.path}:{frame.line})"
    text = (
        f"is in {where}, outside the framework, while {names_text([views[number] for number in waiting])} wait for it"
        f" in {innermost[waiting[0]].text} during {found.doing}"
    )
    named = make_culprit(views, first, "stuck", found.since_s, text, also=outside[1:])
    return replace(named, phase=found.phase, doing=found.doing, waiting=tuple(waiting))

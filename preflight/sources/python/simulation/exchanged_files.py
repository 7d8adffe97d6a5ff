"""Files that rank 0 of a simulated program writes and other ranks read."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from preflight.sources.python.module import last
from preflight.sources.python.simulation.open_texts import text_of
from preflight.sources.python.simulation.run_state import Event, Run
from preflight.sources.python.written_files import OWN_DISKS

#: Calls that write a file and that read one, by the last part of their names.
_WRITES = frozenset(
    (
        *("save", "savez", "savez_compressed", "save_file", "save_pretrained", "to_csv", "to_pickle", "save_to_disk"),
        *("urlretrieve", "copy", "copyfile", "move", "tofile"),
    )
)
_READS = frozenset(
    (
        *("load", "memmap", "load_file", "from_pretrained", "from_file", "read_csv", "read_pickle", "load_from_disk"),
        *("fromfile", "loadtxt"),
    )
)
_COMMANDS = ("os.system", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output")
#: What makes a rank wait for a file or for another rank, beside collectives.
_WAITS = re.compile(r"sleep|lock|barrier|wait|sync|_first$|\.join$|poll", re.IGNORECASE)
#: Keywords that get a path.
_PATHS = ("f", "file", "path", "filename", "name")
_MODES = re.compile(r"[wax+]")


class Exchange(NamedTuple):
    """A file that rank 0 writes and another rank reads, with the calls."""

    path: str
    written: Event
    read: Event


def not_there(runs: Sequence[Run]) -> Iterator[Exchange]:
    """Yield files that rank 0 alone writes to the disk of its node, and the first rank of another node reads."""
    for first in (run for run in runs if run.place[0] == 0):
        for other in (run for run in runs if run.place[0] and run.place[1] == 0):
            yield from (each for each in _find_exchanges(first, other) if OWN_DISKS.match(each.path))


def not_awaited(runs: Sequence[Run]) -> Iterator[Exchange]:
    """Yield files that another rank may read before rank 0 has written them, because it does not wait."""
    for first in (run for run in runs if run.place[0] == 0):
        for other in (run for run in runs if run.place[0] and run.role == first.role):
            for each in _find_exchanges(first, other):
                if _is_raced(each, first.events, other.events):
                    yield each


def not_made(runs: Sequence[Run]) -> Iterator[Exchange]:
    """Yield folders that rank 0 alone creates, and another rank may write to before."""
    for first in (run for run in runs if run.place[0] == 0):
        for other in (run for run in runs if run.place[0] and run.role == first.role):
            theirs = {path for event in other.events for path in _created_folders(event)}
            made = {path: event for event in first.events for path in _created_folders(event) if path not in theirs}
            for event in other.events if made else ():
                for folder in {posixpath.dirname(path) for path in _written_paths(event)} & made.keys():
                    each = Exchange(folder, made[folder], event)
                    if _is_raced(each, first.events, other.events):
                        yield each


def _created_folders(event: Event) -> Iterator[str]:
    """Yield the folders that a call makes."""
    if last(event.name) in ("makedirs", "mkdir"):
        yield from (path.rstrip("/") for path in _texts(event, 1))


def _find_exchanges(first: Run, other: Run) -> Iterator[Exchange]:
    written: dict[str, Event] = {}
    for event in first.events:
        for path in _written_paths(event):
            written.setdefault(path, event)
    theirs: set[str] = set()
    for event in other.events:
        for path in _read(event):
            if path in written and path not in theirs:
                yield Exchange(path, written[path], event)
        theirs.update(_written_paths(event))


def _is_raced(each: Exchange, first: Sequence[Event], other: Sequence[Event]) -> bool:
    """Return whether the other rank makes its call between the same two waits as rank 0 its write."""
    written = next(at for at, event in enumerate(first) if event is each.written)
    read = next(at for at, event in enumerate(other) if event is each.read)
    # Where rank 0 reads it before it writes, the file is of an earlier run.
    own = next((at for at, event in enumerate(first) if _place(event) == _place(each.read)), None)
    before, waited = _waits(first[:written]), _waits(other[:read])
    return waited == before if own is None else own > written and waited <= before


def _waits(events: Sequence[Event]) -> int:
    return sum(event.waits or bool(_WAITS.search(event.name)) for event in events)


def _place(event: Event) -> tuple[str, int, int]:
    return event.file.path, event.node.lineno, event.node.col_offset


def _written_paths(event: Event) -> Iterator[str]:
    """Yield the paths that a call writes."""
    if event.name == "builtins.open" and _MODES.search(_mode(event)):
        yield from _texts(event, 1)
    elif event.name in _COMMANDS:
        given = event.arguments[0] if event.arguments else ""
        yield from given.split()[1:] if isinstance(given, str) else ()
    elif last(event.name) in _WRITES:
        for path in _texts(event, 2):
            yield from (path, f"{path}.npy") if event.name == "numpy.save" else (path,)


def _read(event: Event) -> Iterator[str]:
    """Yield the paths that a call reads."""
    if (event.name == "builtins.open" and not _MODES.search(_mode(event))) or last(event.name) in _READS:
        yield from _texts(event, 1)


def _mode(event: Event) -> str:
    mode = event.keywords.get("mode", event.arguments[1] if len(event.arguments) > 1 else "r")
    # One that is not known may write.
    return mode if isinstance(mode, str) else "+"


def _texts(event: Event, positions: int) -> Collection[str]:
    """Return the possible paths of a call, including that of the object whose method is called."""
    found = [
        text_of(value, node, event.within)
        for value, node in zip(event.arguments[:positions], event.node.args, strict=False)
    ]
    named = {each.arg: each.value for each in event.node.keywords}
    found += [text_of(event.keywords[name], named.get(name), event.within) for name in _PATHS if name in event.keywords]
    owner = event.function.owner if event.function is not None else None
    found += [text_of(owner)] if owner is not None and "(path)" in owner.attributes else []
    return [each for each in found if each]

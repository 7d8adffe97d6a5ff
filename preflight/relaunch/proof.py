"""The proof that a changed script does what the old one did but for its training programs: it is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.job import Known, Span, alternatives
from preflight.relaunch.edits import Edit, Refusal
from preflight.relaunch.launches import Traced, TracedLaunch, module_flags
from preflight.sources.base import Command, Variable, Word
from preflight.sources.launchers.wrappers import only_talks, program_name


def prove(before: Traced, after: Traced, chosen: Sequence[tuple[TracedLaunch, str]], edits: Sequence[Edit]) -> None:
    """Hold the changed script against the old one.

    Every command must still be there, in order, under the same condition and with the same words; only the chosen
    launches start what they are given here in the place of their program. The words of commands that only print
    something may differ, and of those that hand a launch on as text, where they hold that text.

    Raises:
        Refusal: something else would change, too; it says what, at its place in the old script.
    """
    old, new = before.script.commands, after.script.commands
    wanted = {id(launch.command): (launch, entry) for launch, entry in chosen}
    around = {id(outer) for launch, _ in chosen for outer in _outers(launch.command)}
    removed = _removed([launch for launch, _ in chosen])
    for was, now in zip(old, new, strict=False):
        if was.condition != now.condition:
            raise Refusal("whether this runs would change, too", was.span)
        found = wanted.get(id(was))
        if found is not None:
            _starts(found[0], now, found[1])
        elif id(was) in around and _hands_on(was, now, removed, _edited(before, was, edits)):
            pass
        elif not _same(was.words, now.words):
            raise Refusal("the words of this command come from the same place and would change, too", was.span)
        if not _same_variables(was.environment, now.environment, removed):
            raise Refusal("the environment of this command would change, too", was.span)
    if len(old) != len(new):
        more = old[len(new)].span if len(new) < len(old) else (old[-1].span if old else Span("", 1, 1, 1, 1))
        raise Refusal(f"the changed script would run {len(new)} commands where there were {len(old)}", more)
    _counted(before, after)


def _outers(command: Command) -> list[Command]:
    found = []
    while command.outer is not None:
        command = command.outer
        found.append(command)
    return found


def _removed(chosen: Sequence[TracedLaunch]) -> tuple[str, ...]:
    """What stood in the place of programs: texts that hold one of these may differ."""
    programs = []
    for launch in chosen:
        word = launch.command.words[launch.program or 0]
        programs += [str(item) for item in alternatives(word.value)] or [word.spelling]
    return tuple(dict.fromkeys(text for text in programs if text))


def _starts(launch: TracedLaunch, now: Command, entry: str) -> None:
    """The launch is what it was up to its program, and that is the entry. Arguments may be left over."""
    index = launch.program
    assert index is not None
    flags = module_flags(launch)
    kept = [word.value for at, word in enumerate(launch.command.words[:index]) if at not in flags]
    found = [word.value for word in now.words]
    place = launch.command.words[index].span
    position = len(kept)
    if found[position : position + 1] != [Known(entry)]:
        raise Refusal("the program would not be replaced by the trainer there", place)
    if found[:position] != kept:
        raise Refusal("words in front of the program would change, too", place)
    left = found[position + 1 :]
    old = [word.value for word in launch.command.words[index + 1 :]]
    if any(value not in old for value in left):
        raise Refusal("the program's arguments cannot be told apart from other words there", place)


def _same(was: Sequence[Word], now: Sequence[Word]) -> bool:
    """Whether words are the same, or those of a command that only prints them."""
    if only_talks(program_name(was)) and only_talks(program_name(now)):
        return True
    return [word.value for word in was] == [word.value for word in now]


def _hands_on(was: Command, now: Command, removed: tuple[str, ...], edited: frozenset[int]) -> bool:
    """Whether a command that hands a launch on is the same but for the words that hold the launch."""
    if len(was.words) != len(now.words):
        # `ssh node1 torchrun train.py --lr 1`: the launch stands in the very words of its outer command.
        return bool(was.words) and bool(now.words) and was.words[0].value == now.words[0].value
    pairs = enumerate(zip(was.words, now.words, strict=True))
    return all(one.value == other.value or at in edited or _holds(one, removed) for at, (one, other) in pairs)


def _edited(before: Traced, command: Command, edits: Sequence[Edit]) -> frozenset[int]:
    """The words of a command in whose written text something was changed."""
    written = before.trace.written.get(id(command))
    if written is None:
        return frozenset()
    touched: set[int] = set()
    for at, (start, end) in enumerate(written.ranges):
        place = written.document.place(start, end)
        inside = [one for one in edits if one.path == place.file.path and place.start <= one.start <= place.end]
        if inside:
            behind = written.starts[at + 1] if at + 1 < len(written.starts) else len(written.fields)
            touched.update(range(written.starts[at], behind))
    return frozenset(touched)


def _holds(word: Word, removed: tuple[str, ...]) -> bool:
    texts = [str(item) for item in alternatives(word.value)] or [word.spelling]
    return any(text in held for held in texts for text in removed) or not isinstance(word.value, Known)


def _same_variables(was: Mapping[str, Variable], now: Mapping[str, Variable], removed: tuple[str, ...]) -> bool:
    if was is now:
        return True
    if was.keys() != now.keys():
        return False
    for name, old in was.items():
        new = now[name]
        if old.value == new.value:
            continue
        texts = [str(item) for item in alternatives(old.value)] or [old.spelling]
        if isinstance(old.value, Known) and not any(text in held for held in texts for text in removed):
            return False
    return True


def _counted(before: Traced, after: Traced) -> None:
    old, new = before.launches, after.launches
    for was, now in zip(old, new, strict=False):
        same = was.launch.launcher == now.launch.launcher and was.launch.wrappers == now.launch.wrappers
        if not same or was.launch.condition != now.launch.condition:
            raise Refusal(f"this would become another launch, by {now.launch.launcher}", was.launch.span)
    if len(old) != len(new):
        place = old[min(len(new), len(old) - 1)].launch.span if old else Span("", 1, 1, 1, 1)
        raise Refusal(f"the changed script would hold {len(new)} launches where there were {len(old)}", place)

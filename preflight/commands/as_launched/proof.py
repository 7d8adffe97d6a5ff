"""Proves, by evaluating it again, that a changed script does what the old one did, except for its training programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.commands.as_launched.edits import Edit, Refusal
from preflight.commands.as_launched.launches import TracedLaunch, TracedScript, module_flags
from preflight.model.job import Known, Span, alternatives
from preflight.sources.base import Command, Variable, Word
from preflight.sources.launchers.wrappers import only_mentions_programs, program_name


def prove(
    before: TracedScript, after: TracedScript, chosen: Sequence[tuple[TracedLaunch, str]], edits: Sequence[Edit]
) -> None:
    """Compare the changed script with the old one.

    Every command must still be there, in order, under the same condition and with the same words; only the chosen
    launches start the given entry in place of their program. Words may differ if a command only prints them, or passes
    a launch on as a string.

    Raises:
        Refusal: something else would change; the message says what and where in the old script.
    """
    old, new = before.script.commands, after.script.commands
    wanted = {id(launch.command): (launch, entry) for launch, entry in chosen}
    around = {id(outer) for launch, _ in chosen for outer in _enclosing_commands(launch.command)}
    removed = _removed([launch for launch, _ in chosen])
    for was, now in zip(old, new, strict=False):
        if was.condition != now.condition:
            raise Refusal("the condition of this command would change as well", was.span)
        found = wanted.get(id(was))
        if found is not None:
            _require_entry(found[0], now, found[1])
        elif id(was) in around and _passes_launch_on(was, now, removed, _edited(before, was, edits)):
            pass
        elif not _equal_or_printed(was.words, now.words):
            raise Refusal("the words of this command come from the same text and would change as well", was.span)
        if not _same_variables(was.environment, now.environment, removed):
            raise Refusal("the environment of this command would change as well", was.span)
    if len(old) != len(new):
        more = old[len(new)].span if len(new) < len(old) else (old[-1].span if old else Span("", 1, 1, 1, 1))
        raise Refusal(f"the changed script would run {len(new)} commands instead of {len(old)}", more)
    _require_same_launches(before, after)


def _enclosing_commands(command: Command) -> list[Command]:
    found = []
    while command.outer is not None:
        command = command.outer
        found.append(command)
    return found


def _removed(chosen: Sequence[TracedLaunch]) -> tuple[str, ...]:
    """Return the strings in which a program was replaced: words that contain one of them may differ."""
    programs = []
    for launch in chosen:
        word = launch.command.words[launch.program or 0]
        programs += [str(item) for item in alternatives(word.value)] or [word.spelling]
    return tuple(dict.fromkeys(text for text in programs if text))


def _require_entry(launch: TracedLaunch, now: Command, entry: str) -> None:
    """Check that the launch is unchanged up to its program, and that the program is the entry. Arguments may remain."""
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
        raise Refusal("words before the program would change as well", place)
    remaining = found[position + 1 :]
    old = [word.value for word in launch.command.words[index + 1 :]]
    if any(value not in old for value in remaining):
        raise Refusal("the program's arguments cannot be separated from other words there", place)


def _equal_or_printed(was: Sequence[Word], now: Sequence[Word]) -> bool:
    """Return whether words are equal, or belong to a command that only prints them."""
    if only_mentions_programs(program_name(was)) and only_mentions_programs(program_name(now)):
        return True
    return [word.value for word in was] == [word.value for word in now]


def _passes_launch_on(was: Command, now: Command, removed: tuple[str, ...], edited: frozenset[int]) -> bool:
    """Return whether a command that passes a launch on is equal except for the words that contain the launch."""
    if len(was.words) != len(now.words):
        # `ssh node1 torchrun train.py --lr 1`: the launch is part of the words of its outer command.
        return bool(was.words) and bool(now.words) and was.words[0].value == now.words[0].value
    pairs = enumerate(zip(was.words, now.words, strict=True))
    return all(old.value == new.value or at in edited or _contains_any(old, removed) for at, (old, new) in pairs)


def _edited(before: TracedScript, command: Command, edits: Sequence[Edit]) -> frozenset[int]:
    """Return the words of a command whose written text was edited."""
    written = before.trace.written.get(id(command))
    if written is None:
        return frozenset()
    touched: set[int] = set()
    for at, (start, end) in enumerate(written.ranges):
        place = written.document.place(start, end)
        inside = [old for old in edits if old.path == place.file.path and place.start <= old.start <= place.end]
        if inside:
            behind = written.starts[at + 1] if at + 1 < len(written.starts) else len(written.fields)
            touched.update(range(written.starts[at], behind))
    return frozenset(touched)


def _contains_any(word: Word, removed: tuple[str, ...]) -> bool:
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


def _require_same_launches(before: TracedScript, after: TracedScript) -> None:
    old, new = before.launches, after.launches
    for was, now in zip(old, new, strict=False):
        same = was.launch.launcher == now.launch.launcher and was.launch.wrappers == now.launch.wrappers
        if not same or was.launch.condition != now.launch.condition:
            raise Refusal(f"this would become a different launch, by {now.launch.launcher}", was.launch.span)
    if len(old) != len(new):
        place = old[min(len(new), len(old) - 1)].launch.span if old else Span("", 1, 1, 1, 1)
        raise Refusal(f"the changed script would have {len(new)} launches instead of {len(old)}", place)

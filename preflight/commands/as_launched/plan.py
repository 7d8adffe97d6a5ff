"""Plans the copies of a job's script with the reference trainer as program, and proves that nothing else changes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from preflight.analysis.model_size import requested_backend
from preflight.commands.as_launched import script_edits
from preflight.commands.as_launched.script_edits import (
    Change,
    Edit,
    Refusal,
    TracedLaunch,
    TracedScript,
    apply,
    change,
    merge_ranges,
    module_flags,
    trace_script,
)
from preflight.model.job import Job, Known, Note, Span, Unresolved, alternatives
from preflight.model.job.value import Symbol, known_number
from preflight.sources.base import Command, SourceFile, Tree, Variable, Word, WrittenFile
from preflight.sources.formats.tree import DirectoryTree, OverlayTree
from preflight.sources.launchers.wrappers import only_mentions_programs, program_name
from preflight.sources.shell.abstract_machine import Entered, Trace
from preflight.sources.shell.shell_source import ShellSource

#: File name of the trainer. Paddle's launcher adds an interpreter only before names that end in `.py`.
TRAINER = "preflight_trainer"
_SUFFIX = ".py"
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
#: Paths that mean the same to every shell, quoted or not, also inside the text of a nested shell.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+:@%,=-]*")


@dataclass(frozen=True, slots=True)
class ReplacedLaunch:
    """One changed launch.

    `number` counts the script's launches from 1, `launch` is the id of the (first) launch; `removed` are the user's
    words, which `trainer` replaces; it is a separate file for each launch, so that their reports can be distinguished.
    """

    number: int
    launch: str
    trainer: str
    place: str
    launcher: str
    removed: tuple[str, ...]
    kept: tuple[str, ...] = ()
    image: str = ""
    #: Whether the program starts its ranks itself, so that the trainer has to start them.
    spawns: bool = False
    #: The branches that contain the launch, as the evaluation of the script writes them.
    condition: str = ""


@dataclass(frozen=True, slots=True)
class ChangedCopy:
    """A changed file: the path of the original under the root, the new name, and the new content."""

    path: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Relaunch:
    """The changed files, the script first, and the changes to each launch."""

    copies: tuple[ChangedCopy, ...]
    replaced: tuple[ReplacedLaunch, ...]
    not_replaced: tuple[str, ...] = ()
    batch: bool = False
    #: The shell in the script's first line; empty if the line names none.
    interpreter: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Group:
    """Launches written by the same words: the iterations of a loop, the calls of a function."""

    number: int
    launches: tuple[TracedLaunch, ...]
    refusal: Refusal | None = None

    @property
    def ranks(self) -> bool:
        return self.launches[0].ranks

    def trainer(self, chosen: int) -> str:
        """Return the name of the group's trainer file, given the number of groups."""
        return f"{TRAINER}{_SUFFIX}" if chosen == 1 else f"{TRAINER}_{self.number}{_SUFFIX}"


def plan(root: Path, path: str, folder: Path, *, launch: int | None = None) -> Relaunch:
    """Plan the replacement of the programs (or only of launch number `launch`) in a script. Raises Refusal."""
    tree = DirectoryTree(root)
    file = tree.read(path)
    if isinstance(file, Note):
        raise Refusal(file.message)
    if not ShellSource().recognises(file):
        raise Refusal(f"{path} is not a shell script; --as-launched needs the script that contains the launch line")
    _plain(str(folder))
    before = trace_script(file, tree)
    groups = _groups(before, TRAINER)
    chosen = _choose_groups(groups, before, path, launch)
    entries = [str(folder / group.trainer(len(chosen))) for group in chosen]
    changes = [_provable(group, before, file, tree, entry) for group, entry in zip(chosen, entries, strict=True)]
    edits = [edit for item in changes for edit in item.edits]
    wanted = [(item, entry) for group, entry in zip(chosen, entries, strict=True) for item in group.launches]
    prove(before, _apply_changes(edits, before, file, tree), wanted, edits)
    copies = _copies(edits, before, tree, path, root, folder)
    return Relaunch(
        copies,
        tuple(_describe_replacement(*item, before) for item in zip(chosen, changes, entries, strict=True)),
        tuple(_not_replaced(group) for group in groups if group not in chosen),
        batch=bool(before.script.directives),
        interpreter=_interpreter(file.text),
    )


def ranks_of(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the number of ranks of each launch by its id, if the job's files give it."""
    return {
        launch.id: size
        for job in jobs
        for launch in job.launches
        if (size := known_number(job.value("world_size", launch.scope))) is not None
    }


def refuse_servers(jobs: Sequence[Job], replaced: Sequence[ReplacedLaunch]) -> None:
    """Raise Refusal if one of these launches starts parameter servers, because the trainer has no ranks for them."""
    for launch in replaced:
        for job in jobs:
            scopes = [item.scope for item in job.launches if item.id == launch.launch]
            if any(job.value("ps_mode", scope) == Known(True) for scope in scopes):
                raise Refusal(
                    f"launch {launch.number} at {launch.place} starts parameter servers; `preflight smoke {job.name}` "
                    "without --as-launched runs servers and workers"
                )


def spawned_by(jobs: Sequence[Job], launch: ReplacedLaunch) -> int | str:
    """Return the number of ranks that a program spawns, or `gpus` for one per GPU. Raises Refusal if unknown."""
    for job in jobs:
        for scope in (item.scope for item in job.launches if item.id == launch.launch):
            stated = job.setting("spawned_processes", scope)
            size = known_number(job.value("world_size", scope))
            if stated and size is not None:
                return size
            if stated and all(claim.value == Unresolved(Symbol.GPU_COUNT.value) for claim in stated):
                return "gpus"
    raise Refusal(
        f"launch {launch.number} at {launch.place}: its program starts its ranks itself, and their number is unknown"
    )


def backends_of(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the backend, `nccl` or `gloo`, that each launch requests; launches without a backend are left out."""
    return {
        launch.id: name
        for job in jobs
        for launch in job.launches
        if (name := requested_backend(job, (launch.scope,))[0])
    }


def _plain(path: str) -> str:
    if not _PLAIN_PATH.fullmatch(path):
        raise Refusal(f"{path} contains characters that are special in a shell; choose another --to folder")
    return path


def _groups(before: TracedScript, entry: str) -> tuple[_Group, ...]:
    launches_by_key: dict[object, list[TracedLaunch]] = {}
    refused: dict[object, Refusal] = {}
    for launch in before.launches:
        try:
            key: object = change(launch, entry, whole=True).edits
        except Refusal as refusal:
            key = launch.command.span
            refused[key] = refusal
        launches_by_key.setdefault(key, []).append(launch)
    return tuple(
        _Group(number, tuple(launches), refused.get(key))
        for number, (key, launches) in enumerate(launches_by_key.items(), start=1)
    )


def _choose_groups(groups: Sequence[_Group], before: TracedScript, path: str, launch: int | None) -> tuple[_Group, ...]:
    if launch is not None:
        if not 1 <= launch <= len(groups):
            raise Refusal(f"{path} has no launch {launch}; {_list_launches(groups)}")
        picked = groups[launch - 1 : launch]
    else:
        picked = [group for group in groups if group.ranks]
    if not picked:
        raise Refusal(f"{path} has no line that starts the ranks of a Python program{_elsewhere(before, groups)}")
    for group in picked:
        if group.refusal is not None:
            span, text = group.launches[0].launch.span, group.refusal.message
            raise Refusal(f"launch {group.number} cannot be replaced: {text}", span)
    return tuple(picked)


def _elsewhere(before: TracedScript, groups: Sequence[_Group]) -> str:
    if groups:
        return f"; {_list_launches(groups)}; --launch N replaces one of these"
    named = dict.fromkeys(item.target for item in before.script.references if item.target.endswith(_SCRIPTS))
    if named:
        return f"; it names {', '.join(named)}: name that file if it contains the launch"
    words = [word for command in before.script.commands for word in command.words if isinstance(word.value, Unresolved)]
    unknown = dict.fromkeys(word.spelling for word in words if word.spelling.endswith(_SCRIPTS))
    return f"; {', '.join(unknown)} is an unknown file; name that file instead" if unknown else ""


def _list_launches(groups: Sequence[_Group]) -> str:
    named = [f"{group.number} ({group.launches[0].launch.launcher}, line {_line(group)})" for group in groups]
    return f"its launches are {', '.join(named)}" if named else "it has no launch"


def _line(group: _Group) -> int:
    return group.launches[0].launch.span.line


def _provable(group: _Group, before: TracedScript, file: SourceFile, tree: Tree, entry: str) -> Change:
    """Return edits that can be proven correct: without the program's arguments, or with them if necessary."""
    first: Refusal | None = None
    for whole in (True, False):
        try:
            each = change(group.launches[0], entry, whole=whole)
            after = _apply_changes(each.edits, before, file, tree)
            prove(before, after, [(launch, entry) for launch in group.launches], each.edits)
        except Refusal as refusal:
            first = first or refusal
            continue
        return each
    assert first is not None
    span = group.launches[0].launch.span
    raise Refusal(f"launch {group.number} cannot be replaced alone: {first}", span) from first


def _apply_changes(edits: Sequence[Edit], before: TracedScript, file: SourceFile, tree: Tree) -> TracedScript:
    moved = tuple(_translate_edit(edit, before, tree) for edit in edits)
    over = apply(_texts(moved, tree), moved)
    text = over.get(file.path, file.text)
    changed = SourceFile(file.path, text, "", len(text.encode("utf-8", "replace")))
    return trace_script(changed, OverlayTree(tree, over), {edit.text for edit in edits if edit.text})


def _texts(edits: Sequence[Edit], tree: Tree) -> dict[str, str]:
    texts = {}
    for edit in edits:
        file = tree.read(edit.path)
        if not isinstance(file, SourceFile):
            raise Refusal(f"{edit.path} contains the launch, but cannot be read")
        texts[edit.path] = file.text
    return texts


def _translate_edit(edit: Edit, before: TracedScript, tree: Tree) -> Edit:
    """Translate an edit of a file that the script itself writes into an edit of the script."""
    written = next((item for item in reversed(before.script.written) if item.path == edit.path), None)
    if written is None:
        return edit
    start = _start_of(written, tree)
    return Edit(written.span.path, start + edit.start, start + edit.end, edit.text)


def _start_of(written: WrittenFile, tree: Tree) -> int:
    file = tree.read(written.span.path)
    text = file.text if isinstance(file, SourceFile) else ""
    lines = text.splitlines(keepends=True)
    near = sum(len(line) for line in lines[: written.span.line - 1])
    start = text.find(written.text, near) if written.text else -1
    if start < 0:
        raise Refusal(f"the script writes {written.path} with substituted values", written.span)
    return start


def _copies(
    edits: Sequence[Edit], before: TracedScript, tree: Tree, main: str, root: Path, folder: Path
) -> tuple[ChangedCopy, ...]:
    """Return the changed files and the files that refer to them; references between them name the copies."""
    wanted = [_translate_edit(edit, before, tree) for edit in edits]
    names = {main: _name(main, {})}
    todo = list(dict.fromkeys(edit.path for edit in wanted))
    done: set[tuple[str, str]] = set()
    while todo:
        target = todo.pop(0)
        names.setdefault(target, _name(target, names))
        for entered in before.trace.entered:
            if entered.target != target:
                continue
            reference = _translate_edit(_reference(entered, before.trace, str(folder / names[target])), before, tree)
            if (reference.path, target) not in done:
                done.add((reference.path, target))
                todo.append(reference.path)
            wanted.append(reference)
    texts = _texts([Edit(path, 0, 0, "") for path in names], tree)
    for path, text in texts.items():
        if path == main and before.script.directives:
            continue  # a batch script is read from the scheduler's own folder anyway
        own = _plain(str(root.absolute() / path)) if "$" in text else ""
        wanted += list(script_edits.edits(path, text, own))
    changed = apply(texts, wanted)
    return tuple(ChangedCopy(path, name, changed.get(path, texts[path])) for path, name in names.items())


def _name(path: str, used_names: Mapping[str, str]) -> str:
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    number = 2
    while name in used_names.values() or name.startswith(TRAINER):
        name = f"{stem}-{number}{dot}{suffix}" if dot else f"{suffix}-{number}"
        number += 1
    return name


def _reference(entry: Entered, trace: Trace, target: str) -> Edit:
    written = trace.written[id(entry.command)]
    at = written.holding(entry.index)
    end = written.starts[at + 1] if at + 1 < len(written.starts) else len(written.fields)
    if written.starts[at] == entry.index and end == entry.index + 1:
        places = merge_ranges(written.document.slice(*written.ranges[at]))
    else:
        places = merge_ranges(written.fields[entry.index].text)
    if len(places) != 1:
        span = entry.command.words[entry.index].span
        raise Refusal(f"{entry.target} contains a launch, but the word that contains its name cannot be isolated", span)
    return Edit(places[0].file.path, places[0].start, places[0].end, _plain(target))


def _describe_replacement(group: _Group, each: Change, entry: str, before: TracedScript) -> ReplacedLaunch:
    first = group.launches[0]
    span = first.command.words[first.program or 0].span
    written = next((launch for launch in reversed(before.script.written) if launch.path == span.path), None)
    line = span.line if written is None else written.span.line + span.line - 1
    place = f"{span.path if written is None else written.span.path}:{line}"
    image = next((wrapper.image.spelling for wrapper in first.line.wrappers if wrapper.image is not None), "")
    return ReplacedLaunch(
        group.number,
        first.launch.id,
        entry,
        place,
        first.launch.launcher,
        each.removed,
        each.kept,
        image,
        first.spawns,
        first.launch.condition if len(group.launches) == 1 else "",
    )


def _not_replaced(group: _Group) -> str:
    first = group.launches[0]
    reason = "" if group.ranks else ", which starts no Python program"
    return f"{first.launch.span.path}:{first.launch.span.line}: launch {group.number} ({first.launch.launcher}{reason})"


def _interpreter(text: str) -> tuple[str, ...]:
    head = text.partition("\n")[0].strip()
    return tuple(head[2:].split()) if head.startswith("#!") else ()


__all__ = ["TRAINER", "ChangedCopy", "Relaunch", "ReplacedLaunch", "plan"]


def prove(
    before: TracedScript, after: TracedScript, chosen: Sequence[tuple[TracedLaunch, str]], edits: Sequence[Edit]
) -> None:
    """Compare the changed script with the old one.

    Every command must still exist, in order, under the same condition and with the same words; only the chosen launches
    start the given entry instead of their program. Words may differ if a command only prints them, or passes a launch
    on as a string.

    Raises:
        Refusal: if something else would change; the message names it and its location in the old script.
    """
    old, new = before.script.commands, after.script.commands
    wanted = {id(launch.command): (launch, entry) for launch, entry in chosen}
    around = {id(outer) for launch, _ in chosen for outer in _enclosing_commands(launch.command)}
    removed = _removed_texts([launch for launch, _ in chosen])
    for was, now in zip(old, new, strict=False):
        if was.condition != now.condition:
            raise Refusal("the condition of this command would also change", was.span)
        found = wanted.get(id(was))
        if found is not None:
            _require_entry(found[0], now, found[1])
        elif id(was) in around and _passes_launch_on(was, now, removed, _edited_words(before, was, edits)):
            pass
        elif not _equal_or_printed(was.words, now.words):
            raise Refusal("the words of this command are from the same text and would also change", was.span)
        if not _same_variables(was.environment, now.environment, removed):
            raise Refusal("the environment of this command would also change", was.span)
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


def _removed_texts(chosen: Sequence[TracedLaunch]) -> tuple[str, ...]:
    """Return the strings in which a program was replaced: words that contain one of them may differ."""
    programs = []
    for launch in chosen:
        word = launch.command.words[launch.program or 0]
        programs += [str(item) for item in alternatives(word.value)] or [word.spelling]
    return tuple(dict.fromkeys(text for text in programs if text))


def _require_entry(launch: TracedLaunch, command: Command, entry: str) -> None:
    index = launch.program
    assert index is not None
    flags = module_flags(launch)
    kept = [word.value for at, word in enumerate(launch.command.words[:index]) if at not in flags]
    found = [word.value for word in command.words]
    place = launch.command.words[index].span
    position = len(kept)
    if found[position : position + 1] != [Known(entry)]:
        raise Refusal("the trainer would not replace the program there", place)
    if found[:position] != kept:
        raise Refusal("words before the program would also change", place)
    remaining = found[position + 1 :]
    old = [word.value for word in launch.command.words[index + 1 :]]
    if any(value not in old for value in remaining):
        raise Refusal("the program's arguments cannot be separated from other words there", place)


def _equal_or_printed(was: Sequence[Word], new_words: Sequence[Word]) -> bool:
    """Return whether words are equal, or belong to a command that only prints them."""
    if only_mentions_programs(program_name(was)) and only_mentions_programs(program_name(new_words)):
        return True
    return [word.value for word in was] == [word.value for word in new_words]


def _passes_launch_on(was: Command, command: Command, removed: tuple[str, ...], edited: frozenset[int]) -> bool:
    """Return whether a command that passes a launch on is unchanged except for the words that contain the launch."""
    if len(was.words) != len(command.words):
        # `ssh node1 torchrun train.py --lr 1`: the launch is part of the words of its outer command.
        return bool(was.words) and bool(command.words) and was.words[0].value == command.words[0].value
    pairs = enumerate(zip(was.words, command.words, strict=True))
    return all(old.value == new.value or at in edited or _contains_any(old, removed) for at, (old, new) in pairs)


def _edited_words(before: TracedScript, command: Command, edits: Sequence[Edit]) -> frozenset[int]:
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


def _same_variables(
    was: Mapping[str, Variable], new_variables: Mapping[str, Variable], removed: tuple[str, ...]
) -> bool:
    if was is new_variables:
        return True
    if was.keys() != new_variables.keys():
        return False
    for name, old in was.items():
        new = new_variables[name]
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
            raise Refusal(f"this would become a different launch, with {now.launch.launcher}", was.launch.span)
    if len(old) != len(new):
        place = old[min(len(new), len(old) - 1)].launch.span if old else Span("", 1, 1, 1, 1)
        raise Refusal(f"the changed script would have {len(new)} launches instead of {len(old)}", place)

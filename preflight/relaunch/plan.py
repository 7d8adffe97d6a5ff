"""From a job's script to its copies with the reference trainer in the place of the program. Nothing is written here."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from preflight.job import Job, Known, Note, Unresolved
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.relaunch import own_place
from preflight.relaunch.edits import Edit, Refusal, apply
from preflight.relaunch.launches import Change, Traced, TracedLaunch, change, stretches, traced
from preflight.relaunch.proof import prove
from preflight.sources.base import SourceFile, Tree, WrittenFile
from preflight.sources.shell.trace import Entered, Trace
from preflight.sources.shell_source import ShellSource
from preflight.sources.tree import DirectoryTree, OverlayTree

#: The name of the trainer's file. Paddle's launcher puts an interpreter only before names that end in `.py`.
TRAINER = "preflight_trainer"
_SUFFIX = ".py"
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
#: Such paths mean themselves to every shell, quoted or not, and also within the text of an inner one.
_PLAIN_PATH = lazy_pattern(r"/[A-Za-z0-9_./+:@%,=-]*")


@dataclass(frozen=True, slots=True)
class Replaced:
    """One launch as changed.

    `number` counts launches of the script from 1, `launch` is the id of the (first) one; `removed` are the user's
    words, in whose place `trainer` is now, a file of its own for each launch where there are several, so that each is
    heard of.
    """

    number: int
    launch: str
    trainer: str
    place: str
    launcher: str
    removed: tuple[str, ...]
    kept: tuple[str, ...] = ()
    image: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A changed file: where the old one lies below the root, what the new one is called, and what it holds."""

    path: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Relaunch:
    """What comes of a job: the changed files, that of the job itself first, and what was done to each launch."""

    copies: tuple[Copy, ...]
    replaced: tuple[Replaced, ...]
    left: tuple[str, ...] = ()
    batch: bool = False
    #: What a shell would be started with, from the script's first line; empty without one.
    interpreter: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Group:
    """Launches that are written by the same words: the turns of a loop, the calls of a function."""

    number: int
    launches: tuple[TracedLaunch, ...]
    refusal: Refusal | None = None

    @property
    def ranks(self) -> bool:
        return self.launches[0].ranks

    def trainer(self, chosen: int) -> str:
        """The name of the trainer's file for it, where so many launches get one."""
        return f"{TRAINER}{_SUFFIX}" if chosen == 1 else f"{TRAINER}_{self.number}{_SUFFIX}"


def plan(root: Path, path: str, folder: Path, *, launch: int | None = None) -> Relaunch:
    """Put the trainer in the place of the training programs of the script `path` (relative to `root`).

    Args:
        folder: where the copies and the trainer will lie.
        launch: only the launch with this number; else each one that starts a Python program.

    Raises:
        Refusal: it is no script, starts nothing, or something cannot be replaced without changing more than that.
    """
    tree = DirectoryTree(root)
    file = tree.read(path)
    if isinstance(file, Note):
        raise Refusal(file.message)
    if not ShellSource().recognises(file):
        raise Refusal(f"{path} is no shell script; --as-launched changes the script that holds the launch line")
    _plain(str(folder))
    before = traced(file, tree)
    groups = _groups(before, TRAINER)
    chosen = _chosen(groups, before, path, launch)
    entries = [str(folder / group.trainer(len(chosen))) for group in chosen]
    changes = [_provable(group, before, file, tree, entry) for group, entry in zip(chosen, entries, strict=True)]
    edits = [edit for each in changes for edit in each.edits]
    wanted = [(each, entry) for group, entry in zip(chosen, entries, strict=True) for each in group.launches]
    prove(before, _changed(edits, before, file, tree), wanted, edits)
    copies = _copies(edits, before, tree, path, root, folder)
    return Relaunch(
        copies,
        tuple(_replaced(*each, before) for each in zip(chosen, changes, entries, strict=True)),
        tuple(_left(group) for group in groups if group not in chosen),
        batch=bool(before.script.directives),
        interpreter=_interpreter(file.text),
    )


def ranks_of(jobs: Sequence[Job]) -> dict[str, int]:
    """How many ranks each launch makes, by its id, where the job's files leave no doubt."""
    found = {}
    for job in jobs:
        for launch in job.launches:
            size = job.value("world_size", launch.scope)
            if isinstance(size, Known) and isinstance(size.value, int):
                found[launch.id] = size.value
    return found


def _plain(path: str) -> str:
    if not _PLAIN_PATH.fullmatch(path):
        raise Refusal(f"{path} holds characters that a shell may take for something else; choose another --to folder")
    return path


def _groups(before: Traced, entry: str) -> tuple[_Group, ...]:
    found: dict[object, list[TracedLaunch]] = {}
    refused: dict[object, Refusal] = {}
    for launch in before.launches:
        try:
            key: object = change(launch, entry, whole=True).edits
        except Refusal as refusal:
            key = launch.command.span
            refused[key] = refusal
        found.setdefault(key, []).append(launch)
    return tuple(
        _Group(number, tuple(launches), refused.get(key))
        for number, (key, launches) in enumerate(found.items(), start=1)
    )


def _chosen(groups: Sequence[_Group], before: Traced, path: str, launch: int | None) -> tuple[_Group, ...]:
    if launch is not None:
        if not 1 <= launch <= len(groups):
            raise Refusal(f"there is no launch {launch} in {path}; {_listed(groups)}")
        picked = groups[launch - 1 : launch]
    else:
        picked = [group for group in groups if group.ranks]
    if not picked:
        raise Refusal(f"{path} holds no line that starts the ranks of a Python program{_elsewhere(before, groups)}")
    for group in picked:
        if group.refusal is not None:
            span, text = group.launches[0].launch.span, group.refusal.message
            raise Refusal(f"launch {group.number} cannot be replaced: {text}", span)
    return tuple(picked)


def _elsewhere(before: Traced, groups: Sequence[_Group]) -> str:
    """Where the launch may stand instead."""
    if groups:
        return f"; {_listed(groups)}; --launch N replaces one of these"
    named = dict.fromkeys(each.target for each in before.script.references if each.target.endswith(_SCRIPTS))
    if named:
        return f"; it names {', '.join(named)}: name that file, if the launch stands there"
    words = [word for command in before.script.commands for word in command.words if isinstance(word.value, Unresolved)]
    unknown = dict.fromkeys(word.spelling for word in words if word.spelling.endswith(_SCRIPTS))
    return f"; which file {', '.join(unknown)} is cannot be told: name that file instead" if unknown else ""


def _listed(groups: Sequence[_Group]) -> str:
    named = [f"{group.number} ({group.launches[0].launch.launcher}, line {_line(group)})" for group in groups]
    return f"its launches are {', '.join(named)}" if named else "it holds no launch"


def _line(group: _Group) -> int:
    return group.launches[0].launch.span.line


def _provable(group: _Group, before: Traced, file: SourceFile, tree: Tree, entry: str) -> Change:
    """The edits for a group: without the program's arguments, or where that would touch more, with them."""
    first: Refusal | None = None
    for whole in (True, False):
        try:
            each = change(group.launches[0], entry, whole=whole)
            after = _changed(each.edits, before, file, tree)
            prove(before, after, [(one, entry) for one in group.launches], each.edits)
        except Refusal as refusal:
            first = first or refusal
            continue
        return each
    assert first is not None
    span = group.launches[0].launch.span
    raise Refusal(f"launch {group.number} cannot be replaced by itself: {first}", span) from first


def _changed(edits: Sequence[Edit], before: Traced, file: SourceFile, tree: Tree) -> Traced:
    moved = tuple(_moved(edit, before, tree) for edit in edits)
    over = apply(_texts(moved, tree), moved)
    text = over.get(file.path, file.text)
    return traced(SourceFile(file.path, text, "", len(text.encode("utf-8", "replace"))), OverlayTree(tree, over))


def _texts(edits: Sequence[Edit], tree: Tree) -> dict[str, str]:
    texts = {}
    for edit in edits:
        file = tree.read(edit.path)
        if not isinstance(file, SourceFile):
            raise Refusal(f"{edit.path} holds the launch and cannot be read")
        texts[edit.path] = file.text
    return texts


def _moved(edit: Edit, before: Traced, tree: Tree) -> Edit:
    """An edit of a file that the script itself writes, as one of the script."""
    written = next((each for each in reversed(before.script.written) if each.path == edit.path), None)
    if written is None:
        return edit
    start = _start_of(written, tree)
    return Edit(written.span.path, start + edit.start, start + edit.end, edit.text)


def _start_of(written: WrittenFile, tree: Tree) -> int:
    file = tree.read(written.span.path)
    text = file.text if isinstance(file, SourceFile) else ""
    lines = text.splitlines(keepends=True)
    near = sum(len(line) for line in lines[: written.span.line - 1])
    start = text.find(written.text, near)
    if start < 0 or not written.text:
        raise Refusal(f"the script writes {written.path} with values of its own filled in", written.span)
    return start


def _copies(edits: Sequence[Edit], before: Traced, tree: Tree, main: str, root: Path, folder: Path) -> tuple[Copy, ...]:
    """The changed files, with those that lead to them, each naming the copies of the others."""
    wanted = [_moved(edit, before, tree) for edit in edits]
    names = {main: _name(main, {})}
    todo = list(dict.fromkeys(edit.path for edit in wanted))
    done: set[tuple[str, str]] = set()
    while todo:
        target = todo.pop(0)
        names.setdefault(target, _name(target, names))
        for entered in before.trace.entered:
            if entered.target != target:
                continue
            reference = _moved(_reference(entered, before.trace, str(folder / names[target])), before, tree)
            if (reference.path, target) not in done:
                done.add((reference.path, target))
                todo.append(reference.path)
            wanted.append(reference)
    texts = _texts([Edit(path, 0, 0, "") for path in names], tree)
    for path, text in texts.items():
        if path == main and before.script.directives:
            continue  # a batch script is read from the scheduler's own folder anyway
        own = _plain(str(root.absolute() / path)) if "$" in text else ""
        wanted += list(own_place.edits(path, text, own))
    changed = apply(texts, wanted)
    return tuple(Copy(path, name, changed.get(path, texts[path])) for path, name in names.items())


def _name(path: str, taken: Mapping[str, str]) -> str:
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    number = 2
    while name in taken.values() or name.startswith(TRAINER):
        name = f"{stem}-{number}{dot}{suffix}" if dot else f"{suffix}-{number}"
        number += 1
    return name


def _reference(entered: Entered, trace: Trace, target: str) -> Edit:
    written = trace.written[id(entered.command)]
    at = written.holding(entered.index)
    behind = written.starts[at + 1] if at + 1 < len(written.starts) else len(written.fields)
    if written.starts[at] == entered.index and behind == entered.index + 1:
        places = stretches(written.document.slice(*written.ranges[at]))
    else:
        places = stretches(written.fields[entered.index].text)
    if len(places) != 1:
        span = entered.command.words[entered.index].span
        raise Refusal(f"{entered.target} holds a launch, and the word that names it here cannot be told apart", span)
    return Edit(places[0].file.path, places[0].start, places[0].end, _plain(target))


def _replaced(group: _Group, each: Change, entry: str, before: Traced) -> Replaced:
    first = group.launches[0]
    span = first.command.words[first.program or 0].span
    written = next((one for one in reversed(before.script.written) if one.path == span.path), None)
    line = span.line if written is None else written.span.line + span.line - 1
    place = f"{span.path if written is None else written.span.path}:{line}"
    image = next((wrapper.image.spelling for wrapper in first.line.wrappers if wrapper.image is not None), "")
    return Replaced(group.number, first.launch.id, entry, place, first.launch.launcher, each.removed, each.kept, image)


def _left(group: _Group) -> str:
    first = group.launches[0]
    why = "" if group.ranks else ", which starts no Python program"
    return f"{first.launch.span.path}:{first.launch.span.line}: launch {group.number} ({first.launch.launcher}{why})"


def _interpreter(text: str) -> tuple[str, ...]:
    head = text.partition("\n")[0].strip()
    return tuple(head[2:].split()) if head.startswith("#!") else ()


__all__ = ["TRAINER", "Copy", "Relaunch", "Replaced", "plan"]

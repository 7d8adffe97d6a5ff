"""Lists the files of a directory that may be part of a job, without the folders that never are.

Names decide if they are specific enough; otherwise the first bytes do. The result is only a candidate: a source has to
recognise it. Only regular files are opened, and nothing outside the root.

git itself is not run: the configuration of a repository can name commands (`core.fsmonitor`) that it then executes, and
the repository may be hostile. The index is read here, versions 2 to 4, with bounds on everything in it: the prefix
compression of version 4 could otherwise encode gigabytes of paths in a few megabytes. Format: gitformat-index(5).

Honouring `.gitignore` is a convenience, not a protection: a hidden file can still be named, and files that git tracks
are never hidden by a `.gitignore`. The files come from the tree that is judged, so their size, their patterns and the
time for matching are bounded. If a bound is reached, nothing is hidden any more: judging too much is better than
judging too little.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from preflight._util import regular_file, toml
from preflight._util.usage_error import UsageError
from preflight.model.job import LeftOut, Note, NoteKind
from preflight.sources.formats.tree import note_at

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: At most this many files are examined; a note reports the rest.
MAX_FILES = 20_000
MAX_FOLDERS = 20_000
MAX_DEPTH = 100
#: Written by tools, or third-party. Folders that begin with a dot are skipped anyway.
_SKIPPED = toml.words(__file__, "file_names.toml", "skipped")
#: These are in the top folder of an installed environment, whatever its name.
_INSTALLED = frozenset(("pyvenv.cfg", "conda-meta"))
_SUFFIXES = toml.words(__file__, "file_names.toml", "suffixes") | {""}
#: Files that begin with a dot but describe a job.
_DOTTED = frozenset((".env", ".deepspeed_env"))
#: Hidden files with such a name are counted; most others are settings of tools.
_STARTS = frozenset((".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf", ".py", ".hostfile"))
#: Whatever the suffix: `Dockerfile.train`, `hostfile.4`, `requirements.in`.
_NAMED = re.compile(r"(?:dockerfile|containerfile|makefile|hostfile|machinefile|requirements|constraints)\b", re.I)
#: Templates of manifests and other YAML.
_TEMPLATED = re.compile(r"\.ya?ml[.-](?:j2|jinja2?|tmpl|tpl|template)$|\.template$", re.I)
#: Never opened to find out whether they are scripts: documents, code of other languages, data, templates, leftovers.
_NO_SCRIPTS = toml.words(__file__, "file_names.toml", "no-scripts")
_SCRIPT = re.compile(rb"#!.*\b(?:sh|bash|ksh|zsh|python[\d.]*)\b|(?:.*\n){0,3}#(?:SBATCH|PBS|BSUB)\s")
_HEAD = 256


#: Entries of skipped folders that are counted.
_MAX_COUNTED = 10_000
#: Skipped folders with files that are listed; the others are counted together.
_MAX_NAMED = 100


@dataclass(frozen=True, slots=True)
class Walked:
    """Paths relative to the root, sorted, `below` a folder; notes list what could not be examined."""

    files: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    below: str = ""
    left_out: tuple[LeftOut, ...] = ()


def walk(root: Path, below: str, *, exclude: Sequence[str] = ()) -> Walked:
    """Return the candidates in `below` (relative to `root`), without hidden, third-party, ignored and excluded files.

    `exclude` holds patterns as in a `.gitignore` at the root. A folder that is named is examined, whatever its name.
    Tracked files are not skipped because of a `.gitignore` or because they are in an environment.
    """
    below = "" if below in (".", "") else below
    return _Walk(root, below, Excluded(exclude)).done()


class _Walk:
    """The state of one walk: its results and skipped files so far."""

    def __init__(self, root: Path, below: str, excluded: Excluded) -> None:
        self._root = root
        self._below = below
        self._excluded = excluded
        self._ignored = Ignored(root)
        self._repositories = _Repositories(root)
        self._files: list[str] = []
        self._notes: list[Note] = []
        #: By reason and folder.
        self._left_out: dict[tuple[str, str], LeftOut] = {}
        self._counted = 0

    def done(self) -> Walked:
        """Walk to the end, or until a limit is reached."""
        self._ignored.enter_above(self._below)
        # The path of each folder, its depth, and whether only tracked files are read.
        folders = [(self._below, 0, False)]
        seen = 0
        while folders:
            folder, depth, only_tracked = folders.pop()
            seen += 1
            folders.extend(reversed(self._inner(folder, depth, only_tracked)))
            if len(self._files) > MAX_FILES or (folders and seen >= MAX_FOLDERS):
                what = f"{MAX_FILES} files" if len(self._files) > MAX_FILES else f"{MAX_FOLDERS} folders"
                where = self._below or "."
                message = f"{where} contains more than {what}; name the folder or the files of the job"
                self._note(NoteKind.TOO_LARGE, where, message)
                break
        if self._ignored.gave_up:
            message = "matching the patterns of .gitignore took too long; the remaining files were not filtered"
            self._note(NoteKind.TOO_LARGE, self._below or ".", message, required=False)
        for problem in self._repositories.problems:
            self._note(NoteKind.UNREADABLE, self._below or ".", f"{problem}; nothing was ignored", required=False)
        left_out = tuple(sorted(self._left_out.values(), key=lambda item: (item.reason, item.path)))
        return Walked(tuple(self._files[:MAX_FILES]), tuple(self._notes), self._below, left_out)

    def _inner(self, folder: str, depth: int, only_tracked: bool) -> list[tuple[str, int, bool]]:
        """Add the files of a folder; return its subfolders, each with whether only tracked files are added."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            where = folder or "."
            message = f"the folder {where} cannot be read: {why}; nothing in it was checked"
            self._note(NoteKind.UNREADABLE, where, message)
            return []
        if depth and any(entry.name in _INSTALLED for entry in entries):
            if not self._repositories.track(folder, is_folder=True):
                self._count(folder, "installed environment")
                return []
            only_tracked = True
        if any(entry.name == ".git" for entry in entries):
            self._repositories.enter(folder)
        if not only_tracked:
            self._ignored.enter(folder)
        inner: list[tuple[str, int, bool]] = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if (only := self._enters(path, entry.name, depth, only_tracked)) is not None:
                    inner.append((path, depth + 1, only))
            elif entry.name.startswith(".") and entry.name not in _DOTTED:
                if os.path.splitext(entry.name)[1].lower() in _STARTS:  # noqa: PTH122
                    self._skip(folder, "hidden file", 1)
            elif self._excluded.has(path, is_folder=False):
                self._skip(folder, "excluded", 1 if _is_candidate_name(entry.name) else 0)
            elif (only_tracked or self._ignored.has(path, is_folder=False)) and not self._repositories.track(
                path, is_folder=False
            ):
                reason = "not tracked by git" if only_tracked else "ignored by .gitignore"
                self._skip(folder, reason, 1 if _is_candidate_name(entry.name) else 0)
            elif _is_candidate(entry):
                self._files.append(path)
        return inner

    def _enters(self, path: str, name: str, depth: int, only_tracked: bool) -> bool | None:
        """Return whether only tracked files of a folder are added; None if the folder is skipped."""
        if name == ".git":
            return None
        reason = (
            "hidden folder"
            if name.startswith(".")
            else "skipped folder name"
            if name in _SKIPPED
            else "excluded"
            if self._excluded.has(path, is_folder=True)
            else ""
        )
        if not reason and (only_tracked or self._ignored.has(path, is_folder=True)):
            if self._repositories.track(path, is_folder=True):
                return True
            reason = "not tracked by git" if only_tracked else "ignored by .gitignore"
        if reason:
            self._count(path, reason)
            return None
        if depth >= MAX_DEPTH:
            message = f"the folder {path} is more than {MAX_DEPTH} levels deep; nothing in it was checked"
            self._note(NoteKind.TOO_LARGE, path, message)
            return None
        return False

    def _count(self, folder: str, reason: str) -> None:
        """Skip a folder, and count its files that would have been candidates by name."""
        files = 0
        folders = [folder]
        while folders and self._counted < _MAX_COUNTED:
            here = folders.pop()
            try:
                with os.scandir(self._root / here) as entries:
                    for entry in entries:
                        self._counted += 1
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in (".git", "__pycache__"):
                                folders.append(f"{here}/{entry.name}")
                        elif _is_candidate_name(entry.name):
                            files += 1
                        if self._counted >= _MAX_COUNTED:
                            break
            except OSError:
                continue
        self._skip(folder, reason, files, more=self._counted >= _MAX_COUNTED)

    def _skip(self, folder: str, reason: str, files: int, *, more: bool = False) -> None:
        if not files and not more:
            return
        key = (reason, folder or ".")
        if key not in self._left_out and len(self._left_out) >= _MAX_NAMED:
            key = (reason, "other folders")
        before = self._left_out.get(key)
        total = files + (before.files if before else 0)
        self._left_out[key] = LeftOut(key[1], reason, total, more or bool(before and before.more))

    def _note(self, kind: NoteKind, path: str, message: str, *, required: bool = True) -> None:
        self._notes.append(note_at(path, kind, message, required=required))


class _Repositories:
    """The repositories that a walk meets, and their tracked files; an index is read on demand."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: The top folder of each, relative to the root, innermost last; None for one that contains the root.
        self._tops: dict[str, Path] = {}
        self._tracked: dict[str, Tracked | None] = {}
        self.problems: list[str] = []
        place = Path(os.path.realpath(root))
        for above in (place, *place.parents):
            if os.path.lexists(above / ".git"):
                self._outer = place.relative_to(above).as_posix()
                self._tops[""] = above
                break

    def enter(self, folder: str) -> None:
        """Register the repository whose top is this folder."""
        if folder:
            self._tops[folder] = self._root / folder

    def track(self, path: str, *, is_folder: bool) -> bool:
        """Return whether git tracks the file, or something in the folder. If the index cannot be read, everything
        counts as tracked.
        """
        if not self._tops:
            return False
        top = path if is_folder else path.rpartition("/")[0]
        while top and top not in self._tops:
            top = top.rpartition("/")[0]
        if top not in self._tops:
            return False
        if top == path:
            return True  # A repository of its own inside another one, such as a submodule.
        tracked = self._of(top)
        if tracked is None:
            return True
        inside = path[len(top) + 1 :] if top else path if self._outer == "." else f"{self._outer}/{path}"
        return tracked.has(inside, is_folder=is_folder)

    def _of(self, top: str) -> Tracked | None:
        if top not in self._tracked:
            try:
                self._tracked[top] = tracked_in(self._tops[top])
            except UnreadableIndex as problem:
                self.problems.append(f"the files that git tracks are unknown, because {problem}")
                self._tracked[top] = None
        return self._tracked[top]


def _is_candidate_name(name: str) -> bool:
    """Return whether a file is a candidate by its name alone."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES or bool(_NAMED.match(name) or _TEMPLATED.search(name))  # noqa: PTH122


def _is_candidate(entry: os.DirEntry[str]) -> bool:
    """Return whether a file is a candidate by its name, otherwise by its first bytes."""
    name = entry.name
    if name.startswith(".") and name not in _DOTTED:
        return False
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if suffix in _SUFFIXES or _NAMED.match(name) or _TEMPLATED.search(name):
        # A link may lead to a file; its target is examined when it is read.
        return not _is_folder(entry)
    return suffix not in _NO_SCRIPTS and entry.is_file(follow_symlinks=False) and _is_script(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself: reading it reports this
        return False


def _is_script(path: str) -> bool:
    try:
        with regular_file.open_regular(path, follow_links=False) as stream:
            return _SCRIPT.match(stream.read(_HEAD)) is not None
    except OSError:
        return False


#: Repositories of half a million files have such an index.
MAX_BYTES = 64 << 20
_MAX_ENTRIES = 600_000
_MAX_INDEXED_PATH_LENGTH = 4096
_MAX_PATH_BYTES = 64 << 20
#: For a `.git` that is a file, and for the file it names.
_MAX_LINK_LENGTH = 8192
_HEADER = struct.Struct("!4sII")
_FLAGS = struct.Struct("!H")
#: Times, device, inode, mode, owner and size of an entry; the mode is the seventh number.
_STATUS_BYTES = 40
_MODE = struct.Struct("!24xI12x")
_EXTENDED = 0x4000
_LINK, _FOLDER = 0o160000, 0o040000


class UnreadableIndex(Exception):
    """The index cannot be read; the message gives the reason."""


class Tracked(NamedTuple):
    """The content of the index, relative to the top of the repository: `files`, and all `folders` that contain one."""

    files: frozenset[str]
    folders: frozenset[str]

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Return whether git tracks the file, or anything in the folder."""
        return path in (self.folders if is_folder else self.files)


def tracked_in(top: Path) -> Tracked:
    """Return the tracked files of the repository whose top folder is `top`, which contains `.git`.

    A repository without an index (nothing was ever added) tracks nothing.

    Raises:
        UnreadableIndex: there is an index, and it cannot be read.
    """
    try:
        folder = git_folder(top)
        content = regular_file.read(folder / "index", MAX_BYTES, follow_links=False)
    except FileNotFoundError:
        return Tracked(frozenset(), frozenset())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnreadableIndex(f"the index of {top / '.git'} cannot be read: {why}") from None
    try:
        names = _names(content)
    except (struct.error, LookupError, ValueError) as error:
        raise UnreadableIndex(f"the index of {top / '.git'} cannot be read: {error}") from None
    files = frozenset(name for name in names if not name.endswith("/"))
    folders: set[str] = {name.rstrip("/") for name in names if name.endswith("/")}
    for name in (*files, *folders):
        above = name.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    return Tracked(files, frozenset(folders))


def git_folder(top: Path) -> Path:
    """Return the folder of a repository's own files: in a submodule or a linked worktree `.git` is a file that names
    it.
    """
    place = top / ".git"
    if place.is_dir():
        return place
    target = regular_file.read(place, _MAX_LINK_LENGTH, follow_links=False).decode("utf-8", "surrogateescape")
    if not target.startswith("gitdir: "):
        raise ValueError("`.git` is neither a folder nor a file with `gitdir: PATH`")
    return top / target.removeprefix("gitdir: ").rstrip("\r\n")


def _names(content: bytes) -> list[str]:
    signature, version, count = _HEADER.unpack_from(content)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("it is not an index of version 2, 3 or 4")
    if count > _MAX_ENTRIES or count * (_STATUS_BYTES + 22) > len(content):
        raise ValueError(f"it declares {count} files, more than its size allows")
    # SHA-1 almost everywhere; the index does not name the algorithm.
    for hash_bytes in (20, 32):
        try:
            return _parse_entries(content, version, count, hash_bytes)
        except (struct.error, LookupError, ValueError) as error:
            problem = error
    raise problem


def _parse_entries(content: bytes, version: int, count: int, hash_bytes: int) -> list[str]:
    at = _HEADER.size
    end = len(content) - hash_bytes
    before = b""
    total = 0
    found: list[str] = []
    for _ in range(count):
        start = at
        (mode,) = _MODE.unpack_from(content, at)
        at += _STATUS_BYTES + hash_bytes
        (flags,) = _FLAGS.unpack_from(content, at)
        at += 4 if flags & _EXTENDED and version > 2 else 2
        if version == 4:
            strip, at = _decode_number(content, at)
            if strip > len(before):
                raise ValueError("a path removes more characters than the previous path has")
            before = before[: len(before) - strip]
        else:
            before = b""
        zero = content.index(b"\0", at, end)
        name = before + content[at:zero]
        total += len(name)
        if not name or len(name) > _MAX_INDEXED_PATH_LENGTH or total > _MAX_PATH_BYTES or name.startswith(b"/"):
            raise ValueError("a path in it is empty, absolute or too long")
        before = name
        # Version 4 has no padding; before, entries are filled up to a multiple of 8 bytes with at least one zero.
        at = zero + 1 if version == 4 else start + (zero - start) // 8 * 8 + 8
        kind = mode & 0o170000
        # A submodule is a folder with a repository of its own; in a sparse index a folder represents all files below
        # it.
        found.append(os.fsdecode(name).rstrip("/") + ("/" if kind in (_LINK, _FOLDER) else ""))
    if at > end:
        raise ValueError("it ends early")
    if _has_link(content, at, end):
        raise ValueError("it is a split index, whose other part is not read")
    return found


def _has_link(content: bytes, at: int, end: int) -> bool:
    """Return whether the extensions say that most entries are in another file (`core.splitIndex`)."""
    while at + 8 <= end:
        if content[at : at + 4] == b"link":
            return True
        at += 8 + int.from_bytes(content[at + 4 : at + 8], "big")
    if at != end:
        raise ValueError("its extensions end early")
    return False


def _decode_number(content: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length number, encoded as offsets in packs are; return it and its end."""
    value = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (content[at] & 0x7F)
        if value > _MAX_INDEXED_PATH_LENGTH:
            raise ValueError("a path removes more characters than the previous path has")
    return value, at + 1


_MAX_IGNORE_FILE_BYTES = 64 * 1024
_MAX_PATTERNS = 1000
_MAX_PATTERN_LENGTH = 200
_MAX_STARS = 4
_STARS = re.compile(r"\*+")
#: The time of matching grows with the length of a name to the power of the stars in a pattern; longer names are not
#: matched.
_MAX_NAME_LENGTH = {0: 255, 1: 255, 2: 255, 3: 100, 4: 40}
_MAX_MATCHED_PATH_LENGTH = 1024
#: Processor seconds for all matching of one walk; a large repository needs a tenth of one.
MAX_SECONDS = 3.0


def problem(pattern: str) -> str:
    """Return why a pattern of a configuration file, which may be hostile, is rejected; empty if it is valid."""
    if not pattern.strip() or not _is_valid(pattern):
        return f"{pattern!r} is not a pattern; expected one as in a .gitignore"
    if not _is_plain(pattern):
        return f"a pattern may have at most {_MAX_PATTERN_LENGTH} characters and {_MAX_STARS} stars"
    return ""


def relocate(patterns: Iterable[str], folder: Path, root: Path) -> tuple[str, ...]:
    """Convert patterns relative to `folder` to ones relative to `root`.

    Patterns that can only match outside the root are dropped. A folder elsewhere counts as the root.
    """
    if folder in root.parents:
        down = root.relative_to(folder).parts
        return tuple(moved for pattern in patterns if (moved := _below(pattern, down)))
    if root in folder.parents:
        path = folder.relative_to(root).as_posix()
        return tuple(
            f"/{path}/{pattern.lstrip('/') if _is_anchored(pattern) else f'**/{pattern}'}" for pattern in patterns
        )
    return tuple(patterns)


def _is_anchored(pattern: str) -> bool:
    """Return whether a pattern matches a path rather than a name in any folder."""
    return "/" in pattern.rstrip("/")


def _below(pattern: str, down: Sequence[str]) -> str:
    """Return the pattern relative to a subfolder; empty if it matches nothing there."""
    left = pattern.lstrip("/").split("/") if _is_anchored(pattern) else []
    if not left or left[0] == "**":
        return pattern
    for step in down:
        if left[0] == "**":
            break
        if not fnmatchcase(step, left[0]):
            return ""
        left = left[1:]
        if not left or left == [""]:
            # It matches a folder that contains the root, and so everything.
            return "*"
    return "/" + "/".join(left)


class Excluded:
    """Patterns that the user gave, relative to the root.

    Raises:
        UsageError: an invalid pattern.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if pattern.strip() and not _is_valid(pattern):
                raise UsageError(f"{pattern!r} is not a pattern for files to exclude; expected one as in a .gitignore")
        self._patterns = _Patterns.of(patterns) if patterns else None

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Return whether `path` is excluded."""
        return self._patterns is not None and self._patterns.answer(path, is_folder=is_folder) is True


class Ignored:
    """The `.gitignore` files on the path to each folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: By folder, only those that have one; searched from the innermost outwards.
        self._specs: dict[str, _Patterns] = {}
        self._spent_s = 0.0

    def enter_above(self, folder: str) -> None:
        """Use the `.gitignore` files of all folders above `folder`, but not its own; a named folder counts even if
        ignored.
        """
        parts = folder.split("/") if folder else []
        for depth in range(len(parts)):
            self.enter("/".join(parts[:depth]))
            if self.has("/".join(parts[: depth + 1]), is_folder=True):
                self._specs.clear()

    def enter(self, folder: str) -> None:
        """Use the folder's own `.gitignore`."""
        lines = _lines(self._root / folder / ".gitignore")
        if lines:
            self._specs[folder] = _Patterns.of(lines)

    @property
    def gave_up(self) -> bool:
        """Return whether matching took too long, so nothing is ignored any more."""
        return self._spent_s > MAX_SECONDS

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Return whether `path` is ignored: the innermost file with a matching pattern decides, as in git."""
        if not self._specs or self.gave_up:
            return False
        began = time.thread_time()
        folder, answer = path, None
        while folder and answer is None:
            folder = folder.rpartition("/")[0]
            patterns = self._specs.get(folder)
            if patterns is not None:
                below = path[len(folder) + 1 :] if folder else path
                answer = patterns.answer(below, is_folder=is_folder)
        self._spent_s += time.thread_time() - began
        return answer is True


def _lines(file: Path) -> list[str]:
    try:
        text = regular_file.read(file, _MAX_IGNORE_FILE_BYTES, follow_links=False).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    kept = [line for line in lines[:_MAX_PATTERNS] if _is_plain(line)]
    # With a negated pattern missing, more would be hidden than the file says.
    exceptions = [sum(line.startswith("!") for line in some) for some in (lines, kept)]
    valid = [line for line in lines if line.startswith("!") and not _is_valid(line)] if len(set(exceptions)) > 1 else []
    return kept if exceptions[0] - len(valid) == exceptions[1] else []


def _is_plain(pattern: str) -> bool:
    """Return whether a pattern is of the usual kind; a hostile one could make matching slow."""
    return len(pattern) <= _MAX_PATTERN_LENGTH and len(_STARS.findall(pattern)) <= _MAX_STARS and _is_valid(pattern)


def _is_valid(pattern: str) -> bool:
    try:
        _spec([pattern])
    except ValueError:
        return False
    return True


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


class _Patterns(NamedTuple):
    """Patterns of one location, and the maximum length of a name that they are matched with."""

    spec: GitIgnoreSpec
    max_name_length: int

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Patterns:
        stars = max((len(_STARS.findall(name)) for line in lines for name in line.split("/")), default=0)
        return cls(_spec(lines), _MAX_NAME_LENGTH[min(stars, _MAX_STARS)])

    def answer(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether the last matching pattern hides `path`; None if none matches, or it is too long."""
        if len(path) > _MAX_MATCHED_PATH_LENGTH or len(max(path.split("/"), key=len)) > self.max_name_length:
            return None
        return self.spec.check_file(f"{path}/" if is_folder else path).include

"""Reads the files of a commit with git's plumbing; nothing of the repository is executed.

The configuration of a repository can name commands that git then runs, and the repository may be hostile. git is
therefore started in a private folder, which borrows only the objects of the repository and copies of its references: no
configuration, hook, attribute, filter or remote of the repository is in effect, and no object is fetched. Everything is
bounded, because a small repository can describe gigabytes of files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from preflight._util import regular_file
from preflight._util.sanitize import clean
from preflight.sources.discovery.walk import git_folder
from preflight.sources.formats.tree import MAX_BYTES

#: Bounds of one commit: files, their names, and the content that is written.
MAX_FILES = 200_000
MAX_LIST_BYTES = 32 << 20
MAX_TREE_BYTES = 1 << 30
_MAX_REFERENCES = 50_000
_MAX_REFERENCE_BYTES = 16 << 20
_MAX_DEPTH = 12
#: Time for one command of git.
TIMEOUT_S = 60.0
_HASH = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_REFERENCE = re.compile(rb"ref: (refs/[^\x00-\x20\x7f~^:?*\[\\]+)\Z")
_REVISION = re.compile(r"(?!-)[!-~]{1,250}\Z")
_REGULAR, _LINK, _SUBMODULE = ("100644", "100755", "100664"), "120000", "160000"


class UnreadableRevision(Exception):
    """The commit cannot be read; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit: git's mode, the name of its content, and its size in bytes (None if git does not have it)."""

    mode: str
    object: str
    size_bytes: int | None

    def has_content(self, content: bytes) -> bool:
        """Return whether the file has exactly this content."""
        if self.size_bytes is not None and self.size_bytes != len(content):
            return False
        made = hashlib.sha1(usedforsecurity=False) if len(self.object) == 40 else hashlib.sha256()
        made.update(b"blob %d\0" % len(content))
        made.update(content)
        return made.hexdigest() == self.object


class Revision:
    """A commit, and its files below one folder of the repository.

    Args:
        commit: its full name.
        files: by path, relative to that folder; links are included.
        submodules: paths of other repositories, whose files are not part of the commit.
    """

    def __init__(self, git: _Git, commit: str, prefix: str) -> None:
        self._git = git
        self._prefix = prefix
        self.commit = commit
        self.files: dict[str, Entry] = {}
        self.submodules: list[str] = []
        self._list()

    def is_in_submodule(self, path: str) -> bool:
        """Return whether the path is inside a submodule."""
        return any(path == name or path.startswith(f"{name}/") for name in self.submodules)

    def is_unchanged(self, path: str, root: Path) -> bool:
        """Return whether the file at `path` below `root` is as in the commit; files of submodules count as
        unchanged.
        """
        place = root / path
        try:
            if path not in self.files:
                # It may be reached through a link to its folder.
                path = place.resolve().relative_to(root.resolve()).as_posix()
            entry = self.files.get(path)
            if entry is None:
                return self.is_in_submodule(path)
            if entry.mode == _LINK:
                if not place.is_symlink() or not entry.has_content(os.fsencode(place.readlink())):
                    return False
                target = place.resolve().relative_to(root.resolve()).as_posix()
                return target in self.files and self.files[target].mode != _LINK and self.is_unchanged(target, root)
            return entry.has_content(regular_file.read(place, MAX_BYTES, follow_links=False))
        except (OSError, ValueError, RuntimeError):
            return False

    def contents(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the content of these files, in this order. Larger files than preflight reads are omitted.

        Raises:
            UnreadableRevision: an object is missing, or all of them exceed MAX_TREE_BYTES.
        """
        wanted = [path for path in paths if (size := self.files[path].size_bytes) is None or size <= MAX_BYTES]
        total = sum(self.files[path].size_bytes or 0 for path in wanted)
        if total > MAX_TREE_BYTES:
            raise UnreadableRevision(
                f"the files of {self.commit[:12]} have {total >> 20} MiB, but at most {MAX_TREE_BYTES >> 20} MiB are "
                "read; name the job's files or folders instead of the whole repository"
            )
        yield from self._git.read(wanted, self.files)

    def write(self, folder: Path) -> None:
        """Write all files into an empty folder, with an index of what git tracks, but no other part of a repository.

        Raises:
            UnreadableRevision: as `contents`; or this system cannot have such a name.
        """
        try:
            self._write(folder)
        except OSError as error:
            name = Path(error.filename).name if isinstance(error.filename, str) else ""
            raise UnreadableRevision(
                f"a file of {self.commit[:12]} cannot be written: {clean(name)[:80]}: {error.strerror}"
            ) from None

    def _write(self, folder: Path) -> None:
        regular = [path for path, entry in self.files.items() if entry.mode in _REGULAR]
        for path, content in self.contents(regular):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as stream:
                stream.write(content)
        # Links come last: while files are written, nothing leads out of the folder.
        links = [path for path, entry in self.files.items() if entry.mode == _LINK]
        # All folders come before: where `A` and `a` are one name, a folder would be made behind a link.
        for path in links:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        for path, content in self.contents(links):
            place = folder / path
            if not os.path.lexists(place) and b"\0" not in content:
                place.symlink_to(os.fsdecode(content))
        (folder / ".git").mkdir()
        self._git.write_index(f"{self.commit}:{self._prefix}" if self._prefix else self.commit, folder / ".git/index")

    def _list(self) -> None:
        arguments = ["ls-tree", "-r", "-z", "--long", "--full-tree", self.commit]
        if self._prefix:
            arguments += ["--", f"{self._prefix}/"]
        start = f"{self._prefix}/" if self._prefix else ""
        for line in self._git.output(arguments, max_bytes=MAX_LIST_BYTES).split(b"\0")[:-1]:
            about, _, name = line.partition(b"\t")
            mode, _, object_name, size = about.decode("ascii", "replace").split()
            path = os.fsdecode(name)
            if not path.startswith(start) or not _is_plain(path):
                continue
            path = path[len(start) :]
            if mode == _SUBMODULE:
                self.submodules.append(path)
            elif mode in _REGULAR or mode == _LINK:
                self.files[path] = Entry(mode, object_name, int(size) if size.isdecimal() else None)
            if len(self.files) > MAX_FILES:
                raise UnreadableRevision(
                    f"{self.commit[:12]} has more than {MAX_FILES} files; pass --root with the folder of the jobs"
                )
        # A hostile commit may have a file and a folder of one name; only one of them can be written.
        folders = {path[:at] for path in self.files for at, sign in enumerate(path) if sign == "/"}
        for path in folders & self.files.keys():
            del self.files[path]


def _is_plain(path: str) -> bool:
    """Return whether all parts of a path are ordinary names: git refuses others when it checks files out."""
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in path.split("/"))


@contextmanager
def open_revision(root: Path, revision: str, *, branch_point: bool = False) -> Iterator[Revision]:
    """Yield the commit `revision` of the repository that contains `root`, as `git rev-parse` understands it.

    Args:
        root: paths are relative to this folder.
        branch_point: the last commit that `revision` and HEAD have in common, instead of `revision` itself.

    Raises:
        UnreadableRevision: there is no repository, no such commit, or no git; or the commit exceeds a limit.
    """
    top = _top(root)
    if not _REVISION.match(revision):
        raise UnreadableRevision(f"{clean(revision)!r} is not a revision; expected a name as in origin/main or HEAD~1")
    with tempfile.TemporaryDirectory(prefix="preflight-") as private:
        git = _Git(top, Path(private))
        commit = git.resolve(revision)
        if branch_point:
            commit = git.merge_base(commit)
        prefix = root.resolve().relative_to(top).as_posix()
        yield Revision(git, commit, "" if prefix == "." else prefix)


def commit_of(root: Path, revision: str) -> str:
    """Return the full name of a commit; empty if there is none, or no repository."""
    try:
        with tempfile.TemporaryDirectory(prefix="preflight-") as private:
            return _Git(_top(root), Path(private)).resolve(revision)
    except UnreadableRevision:
        return ""


def _top(root: Path) -> Path:
    here = root.resolve()
    top = next((folder for folder in (here, *here.parents) if os.path.lexists(folder / ".git")), None)
    if top is None:
        raise UnreadableRevision(f"{root} is not in a git repository, so there is no earlier version to compare with")
    return top


class _Git:
    """git in a private folder, which borrows the objects of a repository."""

    def __init__(self, top: Path, private: Path) -> None:
        # An empty or relative entry could lead to a program of the examined tree.
        folders = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(entry)]  # noqa: PTH117
        search = os.pathsep.join(folders)
        program = shutil.which("git", path=search)
        if program is None:
            raise UnreadableRevision("git is not installed here; install it, or use an image that has it")
        self._program = program
        self._folder = private / "repository"
        try:
            own = git_folder(top)
            common = _common_folder(own)
            if not _belongs(top, own, common):
                raise ValueError("it refers to another repository, which does not refer back to this folder")
            self._borrow(own, common)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead to each other.
            why = getattr(error, "strerror", None) or error
            raise UnreadableRevision(f"{top / '.git'} cannot be read: {why}") from None
        self._environment = {
            "PATH": search,
            "HOME": str(private),
            "LC_ALL": "C",
            "GIT_DIR": str(self._folder),
            "GIT_OBJECT_DIRECTORY": str(common / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }

    def _borrow(self, own: Path, common: Path) -> None:
        """Create the private repository: its own configuration, and copies of the references."""
        (self._folder / "refs").mkdir(parents=True)
        names: set[bytes] = set()
        for name in ("HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD"):
            _copy_reference(own / name, self._folder / name, names)
        for name in ("packed-refs", "shallow"):
            if (common / name).exists():
                content = regular_file.read(common / name, _MAX_REFERENCE_BYTES, follow_links=False)
                (self._folder / name).write_bytes(content)
                names.update(line.split(b" ")[0] for line in content.splitlines()[:50])
        _copy_references(common / "refs", self._folder / "refs", names)
        if (common / "reftable").exists():
            raise ValueError("its references are in reftable format, which preflight does not read")
        is_sha256 = any(len(name) == 64 and _HASH.match(name) for name in names)
        extension = "[extensions]\n\tobjectFormat = sha256\n" if is_sha256 else ""
        config = f"[core]\n\trepositoryFormatVersion = {1 if is_sha256 else 0}\n\tbare = true\n{extension}"
        (self._folder / "config").write_text(config, encoding="utf-8")

    def resolve(self, revision: str) -> str:
        """Return the full name of a commit."""
        found = self._try(["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"])
        if found is None or not _HASH.match(found):
            raise UnreadableRevision(
                f"this clone has no commit {clean(revision)!r}; fetch it (in CI: a deeper clone), or name another "
                "commit"
            )
        return found.decode()

    def merge_base(self, commit: str) -> str:
        """Return the last common commit with HEAD."""
        found = self._try(["merge-base", commit, "HEAD"])
        if found is None or not _HASH.match(found):
            raise UnreadableRevision(
                f"this clone does not reach back to the commit from which HEAD and {commit[:12]} branched; fetch more "
                "history (in CI: a deeper clone)"
            )
        return found.decode()

    def _try(self, arguments: Sequence[str]) -> bytes | None:
        """Return the first line of the output; None if git fails."""
        try:
            return self.output(arguments, max_bytes=4096).partition(b"\n")[0]
        except _Failed:
            return None

    def write_index(self, tree: str, path: Path) -> None:
        """Write an index of the files in `tree`."""
        self.output(["read-tree", tree], max_bytes=4096, index=path)

    def output(self, arguments: Sequence[str], *, max_bytes: int, index: Path | None = None) -> bytes:
        """Return the output of a command."""
        with self._start(arguments, index) as process:
            assert process.stdout is not None
            content = regular_file.read_up_to(process.stdout, max_bytes + 1)
        if len(content) > max_bytes:
            raise UnreadableRevision(
                f"`git {arguments[0]}` prints more than {max_bytes >> 20} MiB; the commit has too many files"
            )
        return content

    def read(self, paths: Sequence[str], files: Mapping[str, Entry]) -> Iterator[tuple[str, bytes]]:
        """Yield the contents of objects, in order."""
        if not paths:
            return
        with self._start(["cat-file", "--batch"], None, pipe=True) as process:
            assert process.stdin is not None and process.stdout is not None
            # Written by a thread: git stops reading while nobody reads what it prints.
            names = b"".join(files[path].object.encode() + b"\n" for path in paths)
            writer = threading.Thread(target=_feed, args=(process.stdin, names), daemon=True)
            writer.start()
            for path in paths:
                words = process.stdout.readline(256).split()
                if len(words) != 3 or words[1] != b"blob":
                    raise UnreadableRevision(f"the content of {clean(path)} at that commit is not in this clone")
                size = int(words[2])
                if size > MAX_BYTES:
                    raise UnreadableRevision(f"the content of {clean(path)} is larger than git's list states")
                content = regular_file.read_up_to(process.stdout, size)
                if len(content) < size or process.stdout.read(1) != b"\n":
                    raise UnreadableRevision(f"git stopped while reading {clean(path)}")
                yield path, content

    @contextmanager
    def _start(
        self, arguments: Sequence[str], index: Path | None, *, pipe: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start git in its own process group, and kill it after TIMEOUT_S or when the block ends."""
        environment = self._environment | ({"GIT_INDEX_FILE": str(index)} if index is not None else {})
        process = subprocess.Popen(
            [self._program, *arguments],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        late = threading.Event()

        def kill() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(TIMEOUT_S, kill)
        timer.daemon = True
        timer.start()
        finished = False
        try:
            yield process
            finished = not pipe
        finally:
            timer.cancel()
            if not finished:
                _kill(process)
            for stream in (process.stdout, None if pipe else process.stdin):
                if stream is not None:
                    stream.close()
            code = process.wait()
        if late.is_set():
            raise UnreadableRevision(f"`git {arguments[0]}` took more than {TIMEOUT_S:g} s")
        if finished and code and code != -signal.SIGPIPE:
            raise _Failed(f"`git {arguments[0]}` failed; `git fsck` may show why")


class _Failed(UnreadableRevision):
    """git ended with an error."""


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _feed(stream: IO[bytes], content: bytes) -> None:
    try:
        with stream:
            stream.write(content)
    except OSError:
        # git ended before; the reader notices.
        return


def _common_folder(own: Path) -> Path:
    """Return the folder that all worktrees of a repository share."""
    if not os.path.lexists(own / "commondir"):
        return own
    name = regular_file.read(own / "commondir", 4096, follow_links=False)
    return own / os.fsdecode(name.rstrip(b"\r\n"))


def _belongs(top: Path, own: Path, common: Path) -> bool:
    """Return whether a repository belongs to the folder `top`: a hostile `.git` may name any repository on this
    machine.

    A repository below `top` does. One elsewhere does if it confirms this: a linked worktree is recorded in its
    repository, and a submodule is kept in the repository of a folder around it.
    """
    place, own, common = top / ".git", own.resolve(), common.resolve()
    if any((common / name).resolve() != common / name for name in ("objects", "refs")):
        return False
    if place.is_dir():
        return common.is_relative_to(top)
    if own.parent == common / "worktrees":
        name = regular_file.read(own / "gitdir", 4096, follow_links=False)
        return (own / os.fsdecode(name.rstrip(b"\r\n"))).resolve() == place
    return own == common and any(_keeps(folder, own) for folder in top.parents)


def _keeps(folder: Path, submodule: Path) -> bool:
    """Return whether the repository of `folder` lists this one among the repositories of its submodules."""
    if not os.path.lexists(folder / ".git"):
        return False
    own = git_folder(folder)
    return submodule.is_relative_to(own.resolve() / "modules") and _belongs(folder, own, _common_folder(own))


def _copy_reference(source: Path, target: Path, names: set[bytes]) -> None:
    """Copy a file that contains the name of a commit or of another reference; ignore any other file."""
    try:
        content = regular_file.read(source, 65_536, follow_links=False)
    except OSError:
        return
    line = content.partition(b"\n")[0].partition(b"\t")[0].strip()
    if _HASH.match(line) or _REFERENCE.match(line):
        target.write_bytes(line + b"\n")
        names.add(line)


def _copy_references(source: Path, target: Path, names: set[bytes]) -> None:
    count = 0
    for folder, folders, files in os.walk(source):
        below = Path(folder).relative_to(source)
        if len(below.parts) > _MAX_DEPTH:
            folders.clear()
            continue
        (target / below).mkdir(exist_ok=True)
        for name in files:
            count += 1
            if count > _MAX_REFERENCES:
                raise ValueError(f"it has more than {_MAX_REFERENCES} references that are not packed")
            _copy_reference(Path(folder) / name, target / below / name, names)

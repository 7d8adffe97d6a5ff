"""The files of a directory that may be part of a job, without the folders that never are.

Names decide where they say enough; where a name says nothing the first bytes do. What is chosen here is still only
a candidate: a source has to recognise it. Nothing is opened but regular files, and nothing outside the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from preflight.ignoring import Excluded, Ignored
from preflight.job import Note, NoteKind, Span
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

#: More files than this are not looked at; a note says so.
MOST_FILES = 20_000
MOST_FOLDERS = 20_000
DEEPEST = 16
#: Written by tools, or other people's. Folders that begin with a dot are left out anyway.
_SKIPPED = frozenset(
    (
        *("node_modules", "venv", "__pycache__", "site-packages", "wandb", "mlruns", "lightning_logs"),
        *("third_party", "third-party", "thirdparty", "3rdparty", "vendor", "vendored", "_vendor"),
        *("testdata", "test_data", "test-data", "__snapshots__"),
    )
)
#: Stand in the top folder of an environment that was installed there, whatever that is called.
_INSTALLED = frozenset(("pyvenv.cfg", "conda-meta"))
_SUFFIXES = frozenset(
    (
        *(".sh", ".bash", ".ksh", ".zsh", ".sbatch", ".slurm", ".slrm", ".job", ".sub", ".pbs", ".lsf", ".bsub"),
        *(".py", ".json", ".jsonc", ".json5", ".hjson", ".yaml", ".yml", ".toml", ".txt", ".conf", ".cfg", ".ini"),
        *(".hosts", ".hostfile", ".list", ".env", ".mk", ".dockerfile", ""),
    )
)
#: Files that begin with a dot and say something about a job all the same.
_DOTTED = frozenset((".env", ".deepspeed_env"))
#: Whatever the suffix behind it: `Dockerfile.train`, `hostfile.4`, `requirements.in`.
_NAMED = lazy_pattern(r"(?:dockerfile|containerfile|makefile|hostfile|machinefile|requirements|constraints)\b", re.I)
#: Never opened to see whether they are scripts: documents, code of other languages, data, templates, leftovers.
_NO_SCRIPTS = frozenset(
    (
        *(
            ".md",
            ".rst",
            ".html",
            ".htm",
            ".css",
            ".scss",
            ".js",
            ".jsx",
            ".ts",
            ".tsx",
            ".vue",
            ".map",
            ".svg",
            ".xml",
        ),
        *(".png", ".jpg", ".jpeg", ".gif", ".ico", ".webp", ".pdf", ".mp4", ".wav", ".mp3", ".woff", ".woff2", ".ttf"),
        *(".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".hh", ".go", ".rs", ".java", ".scala", ".proto"),
        *(".ipynb", ".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".npy", ".npz", ".pkl", ".h5", ".pt", ".pth"),
        *(".safetensors", ".bin", ".onnx", ".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".whl", ".so", ".a", ".o"),
        *(
            ".pyc",
            ".map",
            ".pyi",
            ".pyx",
            ".sum",
            ".mod",
            ".log",
            ".out",
            ".err",
            ".diff",
            ".patch",
            ".orig",
            ".rej",
            ".bak",
        ),
        *(".j2", ".jinja", ".jinja2", ".tmpl", ".tpl", ".template", ".in", ".mustache", ".swp"),
    )
)
_SCRIPT = lazy_pattern(rb"#!.*\b(?:sh|bash|ksh|zsh|python[\d.]*)\b|(?:.*\n){0,3}#(?:SBATCH|PBS|BSUB)\s")
_HEAD = 256


@dataclass(frozen=True, slots=True)
class Walked:
    """Paths relative to the root, sorted, `below` a folder; notes say what was left out."""

    files: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    below: str = ""


def walk(root: Path, below: str, *, exclude: Sequence[str] = ()) -> Walked:
    """The candidates in `below` (relative to `root`); hidden, foreign, ignored and excluded files are left out.

    `exclude` holds patterns as in a `.gitignore` at the root. A folder that is named itself is looked into, whatever
    it is called.
    """
    files: list[str] = []
    below = "" if below in (".", "") else below
    for path in _candidates(root, below, Excluded(exclude)):
        if len(files) >= MOST_FILES:
            message = f"{below or '.'} holds more than {MOST_FILES} files; name the folder or the files of the job"
            return Walked(tuple(files), (Note(NoteKind.TOO_LARGE, message, Span(below or ".", 1, 1, 1, 1)),), below)
        files.append(path)
    return Walked(tuple(files), below=below)


def _candidates(root: Path, below: str, excluded: Excluded) -> Iterator[str]:
    ignored = Ignored(root)
    ignored.enter_above(below)
    folders = [(below, 0)]
    seen = 0
    while folders and seen < MOST_FOLDERS:
        folder, depth = folders.pop()
        seen += 1
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        if depth and any(entry.name in _INSTALLED for entry in entries):
            continue
        ignored.enter(folder)
        inner: list[tuple[str, int]] = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                wanted = depth < DEEPEST and not entry.name.startswith(".") and entry.name not in _SKIPPED
                if wanted and not (ignored.has(path, is_folder=True) or excluded.has(path, is_folder=True)):
                    inner.append((path, depth + 1))
            elif _may_count(entry) and not (ignored.has(path, is_folder=False) or excluded.has(path, is_folder=False)):
                yield path
        folders.extend(reversed(inner))


def _may_count(entry: os.DirEntry[str]) -> bool:
    """Whether a file's name, or else its first bytes, make it one to look at."""
    name = entry.name
    if name.startswith(".") and name not in _DOTTED:
        return False
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if suffix in _SUFFIXES or _NAMED.match(name):
        # A link may lead to a file; what it leads to is looked at when it is read.
        return not _is_folder(entry)
    return suffix not in _NO_SCRIPTS and entry.is_file(follow_symlinks=False) and _is_script(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself: reading it says so
        return False


def _is_script(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return _SCRIPT.match(os.read(descriptor, _HEAD)) is not None
        finally:
            os.close(descriptor)
    except OSError:
        return False

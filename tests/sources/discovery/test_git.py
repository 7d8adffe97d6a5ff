"""None"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.sources.discovery import git_revision
from preflight.sources.discovery import walk as walking
from preflight.sources.discovery.git_revision import UnreadableRevision, open_revision
from preflight.sources.discovery.walk import UnreadableIndex, tracked_in, walk

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, timeout=60, env=environment)


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("srun torchrun --nnodes=2 train.py\n")


def repository(root: Path, *names: str, options: tuple[str, ...] = ()) -> Path:
    root.mkdir(exist_ok=True)
    git(root, "init", "-q", *options)
    write(root, *names)
    git(root, "add", "-f", ".")
    return root


@needs_git
@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_version_lists_what_git_lists(version: int, tmp_path: Path) -> None:
    names = ["a.sh", "sub/b.sh", "sub/bb.sh", "sub/deeper/c.sh", "x" * 200, "ünïcode/ü.sh", "z z.sh"]
    root = repository(tmp_path / "r", *names)
    write(root, "intended.sh", "untracked.sh")
    if version == 3:
        git(root, "add", "-N", "intended.sh")  # An extended flag, which exists from version 3 on.
        names.append("intended.sh")
    git(root, "update-index", "--index-version", str(version))
    assert (root / ".git" / "index").read_bytes()[7] == version
    found = tracked_in(root)
    assert found.files == set(names)
    assert found.folders == {"sub", "sub/deeper", "ünïcode"}
    assert found.has("sub", is_folder=True)
    assert not found.has("sub", is_folder=False)


@needs_git
def test_a_sha256_index_is_read(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "b/c.sh", options=("--object-format=sha256",))
    assert tracked_in(root).files == {"a.sh", "b/c.sh"}


@needs_git
def test_a_linked_worktree_and_a_submodule(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh")
    git(root, "commit", "-qm", "x")
    git(root, "worktree", "add", "-q", "../w")
    assert tracked_in(tmp_path / "w").files == {"a.sh"}
    inner = repository(tmp_path / "inner", "b.sh")
    git(inner, "commit", "-qm", "x")
    git(root, "submodule", "add", "-q", str(inner), "sub")
    assert tracked_in(root).files == {"a.sh", ".gitmodules"}
    assert tracked_in(root / "sub").files == {"b.sh"}
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh", "sub/b.sh")


@needs_git
def test_a_split_index_is_rejected(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "b.sh")
    git(root, "update-index", "--split-index")
    with pytest.raises(UnreadableIndex, match="split"):
        tracked_in(root)
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh", "b.sh")


@needs_git
def test_tracked_files_are_not_ignored(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "sub/b.sh")
    write(root, "new.sh", "sub/new.sh", "made/x.sh", "made/y.sh")
    (root / ".gitignore").write_text("*\n")
    found = walk(root, ".")
    assert found.files == ("a.sh", "sub/b.sh")
    assert [(one.path, one.files, one.reason) for one in found.left_out] == [
        (".", 1, "ignored by .gitignore"),
        ("made", 2, "ignored by .gitignore"),
        ("sub", 1, "not tracked by git"),
    ]
    # A folder named by the user is read even if it is ignored.
    assert walk(root, "sub").files == ("sub/b.sh", "sub/new.sh")


@needs_git
@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta"])
def test_tracked_files_in_an_environment_are_not_hidden(marker: str, tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "jobs/a.sh", f"jobs/{marker}")
    write(root, "jobs/lib/x.py", "env/bin/y.sh", f"env/{marker}")
    found = walk(root, ".")
    assert found.files[0] == "jobs/a.sh"
    assert not {"env/bin/y.sh", "jobs/lib/x.py"} & set(found.files)
    assert {(one.path, one.reason) for one in found.left_out} >= {("env", "installed environment")}


@needs_git
def test_no_command_of_the_repository_is_run(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh")
    mark = tmp_path / "mark"
    with (root / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {mark}; false"\n')
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh",)
    assert not mark.exists()


def index(*paths: bytes, version: int = 2, strip: bytes = b"\0") -> bytes:
    parts = [struct.pack("!4sII", b"DIRC", version, len(paths))]
    for path in paths:
        entry = struct.pack("!24xI12x", 0o100644) + bytes(20) + struct.pack("!H", len(path))
        body = strip + path + b"\0" if version == 4 else path
        parts.append(entry + body)
        if version < 4:
            parts.append(bytes(8 - len(entry + body) % 8))
    return b"".join(parts) + bytes(20)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"DIRC",
        b"PACK" + bytes(100),
        struct.pack("!4sII", b"DIRC", 9, 0) + bytes(20),
        struct.pack("!4sII", b"DIRC", 2, 0xFFFFFFFF) + bytes(5000),
        index(b"/absolute"),
        index(b""),
        index(b"a")[:-30],
        # Each entry adds a kilobyte to the path before it: 40 MB of index would encode 800 GB of paths.
        index(*[b"a" * 1000] * 5000, version=4),
        index(b"a", version=4, strip=b"\xff" * 40),
    ],
)
def test_a_hostile_index_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(content)
    write(tmp_path, "a.sh")
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(UnreadableIndex, match="the index of"):
        tracked_in(tmp_path)
    # Unknown is not untracked: everything is examined, and a note gives the reason.
    found = walk(tmp_path, ".")
    assert found.files == ("a.sh",)
    assert "the files that git tracks are unknown" in found.notes[0].message


@pytest.mark.parametrize("said", ["gitdir: /nowhere", "gitdir: \0", "nonsense", "gitdir: " + "a" * 9000])
def test_a_git_file_with_a_missing_target(said: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(said)
    write(tmp_path, "a.sh")
    (tmp_path / ".gitignore").write_text("*\n")
    # /nowhere has no index, so nothing is tracked.
    assert walk(tmp_path, ".").files == (() if said == "gitdir: /nowhere" else ("a.sh",))


def test_an_index_that_is_a_fifo(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "index")
    with pytest.raises(UnreadableIndex, match="FIFO"):
        tracked_in(tmp_path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_index_is_read_or_rejected(data: st.DataObject, tmp_path: Path) -> None:
    good = bytearray(index(b"a.sh", b"b/c.sh", version=data.draw(st.sampled_from([2, 4]))))
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=6)):
        good[at] = data.draw(st.integers(0, 255))
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / ".git" / "index").write_bytes(good[: data.draw(st.integers(0, len(good)))])
    try:
        assert len(tracked_in(tmp_path).files) <= walking._MAX_ENTRIES
    except UnreadableIndex as problem:
        assert str(problem)


# The files of a commit: exactly those that git checks out, bounded, and without the repository having any say.


Git = Callable[..., str]


@pytest.fixture
def revision_git(tmp_path: Path) -> Git:
    """Runs git in a new repository."""
    folder = tmp_path / "repository"
    folder.mkdir()

    def run(*words: str) -> str:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", *who, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    return run


@pytest.fixture
def folder(tmp_path: Path, revision_git: Git) -> Path:
    """A repository with a commit of several kinds of files."""
    folder = tmp_path / "repository"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "run.sh").write_text("one\n")
    (folder / "deep" / "er" / "größe.py").write_bytes(b"\x00binary\xff")
    (folder / "link").symlink_to("run.sh")
    (folder / "deep" / "out").symlink_to("/etc")
    revision_git("add", "--all")
    revision_git("commit", "--quiet", "--message", "one")
    return folder


def test_a_commit_is_written_as_git_checks_it_out(folder: Path, revision_git: Git, tmp_path: Path) -> None:
    (folder / "run.sh").write_text("two\n")
    target = tmp_path / "target"
    target.mkdir()
    with open_revision(folder, "HEAD") as revision:
        assert revision.commit == revision_git("rev-parse", "HEAD")
        assert set(revision.files) == {"run.sh", "deep/er/größe.py", "link", "deep/out"}
        revision.write(target)
    assert (target / "run.sh").read_text() == "one\n"
    assert (target / "deep" / "er" / "größe.py").read_bytes() == b"\x00binary\xff"
    assert [str((target / name).readlink()) for name in ("link", "deep/out")] == ["run.sh", "/etc"]
    assert tracked_in(target).files == tracked_in(folder).files
    assert revision_git("status", "--short") == "M run.sh"


def test_a_subfolder_is_its_own_root(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with open_revision(folder / "deep", "HEAD") as revision:
        assert set(revision.files) == {"er/größe.py", "out"}
        revision.write(tmp_path / "target")
    assert tracked_in(tmp_path / "target").files == {"er/größe.py", "out"}


def test_differences_to_the_working_tree(folder: Path) -> None:
    with open_revision(folder, "HEAD") as revision:
        assert all(revision.is_unchanged(path, folder) for path in ("run.sh", "deep/er/größe.py", "link"))
        (folder / "new.sh").write_text("one\n")
        (folder / "run.sh").write_text("two\n")
        (folder / "deep" / "er" / "größe.py").unlink()
        assert not any(revision.is_unchanged(path, folder) for path in ("run.sh", "new.sh", "deep/er/größe.py", "link"))


@pytest.mark.parametrize("name", ["main", "HEAD", "HEAD~1", "v1", "refs/heads/main", "side", "packed"])
def test_names_of_commits(folder: Path, revision_git: Git, name: str) -> None:
    revision_git("branch", "packed")
    revision_git("pack-refs", "--all")
    revision_git("checkout", "--quiet", "-b", "side")
    (folder / "run.sh").write_text("two\n")
    revision_git("commit", "--quiet", "--all", "--message", "two")
    revision_git("tag", "--annotate", "v1", "--message", "tag")
    revision_git("gc", "--quiet")
    with open_revision(folder, name) as revision:
        assert revision.commit == revision_git("rev-parse", f"{name}^{{commit}}")


def test_the_branch_point(folder: Path, revision_git: Git) -> None:
    first = revision_git("rev-parse", "HEAD")
    revision_git("checkout", "--quiet", "-b", "side")
    (folder / "run.sh").write_text("two\n")
    revision_git("commit", "--quiet", "--all", "--message", "two")
    revision_git("checkout", "--quiet", "main")
    (folder / "other").write_text("three\n")
    revision_git("add", "other")
    revision_git("commit", "--quiet", "--message", "three")
    with open_revision(folder, "side", branch_point=True) as revision:
        assert revision.commit == first


def test_a_linked_worktree_and_a_shallow_clone(folder: Path, revision_git: Git, tmp_path: Path) -> None:
    (folder / "run.sh").write_text("two\n")
    revision_git("commit", "--quiet", "--all", "--message", "two")
    revision_git("worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"), "HEAD~1")
    with open_revision(tmp_path / "tree", "HEAD") as revision:
        assert revision.commit == revision_git("rev-parse", "HEAD~1")
    revision_git("clone", "--quiet", "--depth", "1", f"file://{folder}", str(tmp_path / "shallow"))
    with open_revision(tmp_path / "shallow", "origin/main") as revision:
        assert revision.commit == revision_git("rev-parse", "main")
    with (
        pytest.raises(UnreadableRevision, match="has no commit 'HEAD~1'"),
        open_revision(tmp_path / "shallow", "HEAD~1"),
    ):
        pass


def test_submodules_are_read(folder: Path, revision_git: Git, tmp_path: Path) -> None:
    """Also those of submodules, and those of a linked worktree."""
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    revision_git("clone", "--quiet", str(folder), str(tmp_path / "inner"))
    revision_git("-C", str(tmp_path / "inner"), *add, str(folder), "deepest")
    revision_git("-C", str(tmp_path / "inner"), "commit", "--quiet", "--message", "two")
    revision_git("clone", "--quiet", str(folder), str(tmp_path / "outer"))
    revision_git("-C", str(tmp_path / "outer"), *add, str(tmp_path / "inner"), "inner")
    revision_git("-C", str(tmp_path / "outer"), "commit", "--quiet", "--message", "three")
    revision_git("-C", str(tmp_path / "outer"), "worktree", "add", "--quiet", str(tmp_path / "tree"))
    update = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")
    for top in ("outer", "tree"):
        revision_git("-C", str(tmp_path / top), *update)
        for name in ("inner", "inner/deepest"):
            assert (tmp_path / top / name / ".git").is_file()
            with open_revision(tmp_path / top / name, "HEAD") as revision:
                assert revision.commit == revision_git("-C", str(tmp_path / top / name), "rev-parse", "HEAD")


def _names_folder(checkout: Path, private: Path) -> None:
    (checkout / ".git").write_text(f"gitdir: {private}\n")


def _links_folder(checkout: Path, private: Path) -> None:
    (checkout / ".git").symlink_to(private)


def _links_references(checkout: Path, private: Path) -> None:
    (checkout / ".git").mkdir()
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (checkout / ".git" / name).symlink_to(private / name)


def _shares_folder(checkout: Path, private: Path) -> None:
    (checkout / ".git").mkdir()
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (checkout / ".git" / "commondir").write_text(f"{private}\n")


def _claims_worktree(checkout: Path, private: Path) -> None:
    own = checkout / "worktrees" / "own"
    own.mkdir(parents=True)
    (checkout / ".git").write_text("gitdir: worktrees/own\n")
    (own / "gitdir").write_text(f"{checkout}/.git\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text(f"{private}\n")


def _names_worktree(checkout: Path, private: Path) -> None:
    own = private / "worktrees" / "own"
    own.mkdir(parents=True)
    (checkout / ".git").write_text(f"gitdir: {own}\n")
    (own / "gitdir").write_text(f"{private.parent.parent}/tree/.git\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")


def _claims_submodule(checkout: Path, private: Path) -> None:
    (checkout.parent / ".git").mkdir()
    (checkout.parent / ".git" / "modules").symlink_to(private.parent)
    (checkout / ".git").write_text("gitdir: ../.git/modules/.git\n")


@pytest.mark.parametrize(
    "plant",
    [
        _names_folder,
        _links_folder,
        _links_references,
        _shares_folder,
        _claims_worktree,
        _names_worktree,
        _claims_submodule,
    ],
)
def test_another_repository_is_not_read(folder: Path, tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    """A hostile `.git` leads to a private repository of the same machine."""
    checkout = tmp_path / "hostile" / "checkout"
    checkout.mkdir(parents=True)
    plant(checkout, folder / ".git")
    with (
        pytest.raises(UnreadableRevision, match="another repository, which does not refer back to this folder"),
        open_revision(checkout, "HEAD"),
    ):
        pass


def test_links_that_lead_to_each_other_are_refused(folder: Path) -> None:
    (folder / ".git" / "objects").rename(folder / "objects")
    (folder / ".git" / "objects").symlink_to("objects")
    with pytest.raises(UnreadableRevision, match="cannot be read"), open_revision(folder, "HEAD"):
        pass


def test_no_folder_is_made_behind_a_link(
    folder: Path, revision_git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `A` and `a` are one name, a link `A` must not be there before the folder `a` of a later link."""
    (folder / "A").symlink_to(tmp_path)
    (folder / "a").mkdir()
    (folder / "a" / "link").symlink_to("/etc")
    revision_git("add", "--all")
    revision_git("commit", "--quiet", "--message", "two")
    make, made = Path.mkdir, []

    def mkdir(self: Path, *words: Any, **options: Any) -> None:
        made.append((self, (tmp_path / "target" / "A").is_symlink()))
        make(self, *words, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    (tmp_path / "target").mkdir()
    with open_revision(folder, "HEAD") as revision:
        revision.write(tmp_path / "target")
    assert (tmp_path / "target" / "a", False) in made and (tmp_path / "target" / "a", True) not in made


@pytest.mark.parametrize(
    "name", ["", "--exec=x", "-x", "a b", "a\nb", "nowhere", "HEAD:run.sh", "main..HEAD", "x" * 300]
)
def test_what_is_no_commit(folder: Path, name: str) -> None:
    with pytest.raises(UnreadableRevision, match=r"is not a revision|has no commit"), open_revision(folder, name):
        pass


def test_what_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRevision, match="not in a git repository"), open_revision(tmp_path, "HEAD"):
        pass
    (tmp_path / ".git").write_text("neither")
    with pytest.raises(UnreadableRevision, match="cannot be read"), open_revision(tmp_path, "HEAD"):
        pass


def test_without_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "git").write_text("#!/bin/sh\ntouch ran\n")
    (folder / "git").chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", ":.:repository")
    with pytest.raises(UnreadableRevision, match="git is not installed"), open_revision(folder, "HEAD"):
        pass
    assert not (folder / "ran").exists()


def test_a_commit_of_sha256(tmp_path: Path) -> None:
    quiet = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "run.sh").write_text("one\n")
    for words in (["init", "--quiet", "--object-format=sha256"], ["add", "run.sh"], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, env=quiet, check=True, timeout=30)
    with open_revision(tmp_path, "HEAD") as revision:
        assert len(revision.commit) == 64 and revision.is_unchanged("run.sh", tmp_path)


def test_limits(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(git_revision, "MAX_TREE_BYTES", 5)
    with open_revision(folder, "HEAD") as revision, pytest.raises(UnreadableRevision, match="at most 0 MiB are read"):
        revision.write(tmp_path)
    monkeypatch.setattr(git_revision, "MAX_FILES", 2)
    with pytest.raises(UnreadableRevision, match="more than 2 files"), open_revision(folder, "HEAD"):
        pass
    monkeypatch.setattr(git_revision, "TIMEOUT_S", 0.0)
    with pytest.raises(UnreadableRevision), open_revision(folder, "HEAD"):
        pass


def _write_object(folder: Path, kind: bytes, content: bytes) -> bytes:
    whole = b"%s %d\0" % (kind, len(content)) + content
    name = hashlib.sha1(whole, usedforsecurity=False)
    place = folder / ".git" / "objects" / name.hexdigest()[:2] / name.hexdigest()[2:]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(zlib.compress(whole))
    return name.digest()


def _tree(folder: Path, *entries: tuple[bytes, bytes, bytes]) -> bytes:
    return _write_object(folder, b"tree", b"".join(b"%s %s\0%s" % entry for entry in entries))


def _commit(folder: Path, tree: bytes) -> str:
    who = b"a <a@example.org> 1 +0000"
    text = b"tree %s\nauthor %s\ncommitter %s\n\nx\n" % (tree.hex().encode(), who, who)
    return _write_object(folder, b"commit", text).hex()


def test_names_that_lead_out_are_dropped(folder: Path, tmp_path: Path) -> None:
    """A commit that no git would make: `..`, `.git`, and a link and a folder of one name. git refuses its index."""
    blob = _write_object(folder, b"blob", b"evil")
    link = _write_object(folder, b"blob", str(tmp_path).encode())
    inner = _tree(folder, (b"100644", b"evil", blob))
    tree = _tree(
        folder,
        (b"40000", b"..", inner),
        (b"40000", b".GIT", inner),
        (b"120000", b"a", link),
        (b"40000", b"a", inner),
        (b"100644", b"good", blob),
    )
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with open_revision(folder, _commit(folder, tree)) as revision:
        assert set(revision.files) == {"good", "a/evil"}
        with pytest.raises(UnreadableRevision, match="`git read-tree` failed"):
            revision.write(target)
    assert not (tmp_path / "evil").exists() and not (tmp_path / "deep" / "evil").exists()
    assert (target / "good").read_bytes() == b"evil" and not (target / "a").is_symlink()
    assert not (target / ".git" / "evil").exists()


def test_a_tree_of_trees_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten levels of ten folders each are ten thousand million files."""
    monkeypatch.setattr(git_revision, "MAX_LIST_BYTES", 1 << 20)
    blob = _write_object(folder, b"blob", b"x")
    tree = _tree(folder, *((b"100644", b"%d" % n, blob) for n in range(10)))
    for _ in range(9):
        tree = _tree(folder, *((b"40000", b"%d" % n, tree) for n in range(10)))
    with pytest.raises(UnreadableRevision, match="too many files"), open_revision(folder, _commit(folder, tree)):
        pass

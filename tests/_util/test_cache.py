"""The cache: identical reports, never a stale one, and no untrusted entries."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight._util.cache import Cache, default_folder
from preflight.engine import report_cache
from preflight.engine.report import Report, to_json
from preflight.model.configuration import Configuration, RunOptions
from preflight.model.recording import Recording
from preflight.runner.preparation import LoadJobs

KEY = "0" * 64
LAUNCH = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=8 --master_port=99999 train.py --x ds.json\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "run.sh").write_text(LAUNCH)
    (root / "train.py").write_text(
        "import helper\nimport torch.distributed as dist\n\ndist.init_process_group('nccl')\n"
    )
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def lint(root: Path, cache: Cache | None, **more: Any) -> Report:
    """The report, made at a fixed time."""
    report = api.lint([root], root=root, cache=cache, **more)
    return replace(report, run=replace(report.run, created="now"))


def is_cached(report: Report) -> bool:
    return all(type(job).__name__ == "_CachedJob" for job in report.jobs) and bool(report.jobs)


def test_a_cached_report_is_identical(tree: Path, cache: Cache) -> None:
    fresh, first, second = lint(tree, None), lint(tree, cache), lint(tree, cache)
    assert not is_cached(first) and is_cached(second)
    assert to_json(second) == to_json(first) == to_json(fresh)
    assert second.findings and second.jobs == fresh.jobs and fresh.jobs[0].claims == second.jobs[0].claims


def change(root: Path) -> None:
    (root / "train.py").write_text((root / "train.py").read_text() + "\n")


def add(root: Path) -> None:
    (root / "new.sh").write_text(LAUNCH)


def add_missing_file(root: Path) -> None:
    (root / "helper.py").write_text("x = 1\n")


def remove(root: Path) -> None:
    (root / "train.py").unlink()


def ignore(root: Path) -> None:
    (root / ".gitignore").write_text("*.sh\n")


@pytest.mark.parametrize("edit", [change, add, add_missing_file, remove, ignore])
def test_any_change_of_the_tree_is_noticed(tree: Path, cache: Cache, edit: Any) -> None:
    lint(tree, cache)
    edit(tree)
    again = lint(tree, cache)
    assert not is_cached(again) and to_json(again) == to_json(lint(tree, None))


def test_a_change_that_keeps_size_and_time_is_noticed(tree: Path, cache: Cache) -> None:
    lint(tree, cache)
    file, before = tree / "run.sh", (tree / "run.sh").stat()
    file.write_text(LAUNCH.replace("99999", "29500"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_cached(lint(tree, cache))


def test_a_different_configuration_has_a_different_entry(tree: Path, cache: Cache) -> None:
    lint(tree, cache)
    other = lint(tree, cache, configuration=Configuration(ignore=("PRT001",)))
    assert not is_cached(other) and "PRT001" not in {finding.id for finding in other.findings}


def test_changed_code_has_a_different_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_pack"
    package.mkdir()
    (package / "__init__.py").write_text("RULE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("a_pack")
    before = report_cache.key_of(("asked",), ["a_pack.rules"])
    report_cache._code_fingerprint.cache_clear()
    (package / "__init__.py").write_text("RULE = 10\n")
    assert report_cache.key_of(("asked",), ["a_pack.rules"]) != before


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-5], lambda b: b"x" + b, lambda b: b"", lambda b: b.replace(b"1", b"2")]
)
def test_a_damaged_entry_is_ignored(tree: Path, cache: Cache, damage: Any) -> None:
    lint(tree, cache)
    (entry,) = cache.folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert to_json(lint(tree, cache)) == to_json(lint(tree, None))


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\n[]", b"[1]\n[]", b'{"seen": {}}\n[]', b"\xff\n\xff"])
def test_an_entry_in_another_format_is_ignored(tree: Path, cache: Cache, content: bytes) -> None:
    lint(tree, cache)
    (entry,) = cache.folder.iterdir()
    cache.put(entry.name, content)
    assert cache.get(entry.name) == content
    assert to_json(lint(tree, cache)) == to_json(lint(tree, None))


def test_a_cache_inside_the_tree_is_not_trusted(tree: Path) -> None:
    inside = Cache(tree / ".cache")
    lint(tree, inside)
    assert not inside.folder.exists()


def test_files_writable_by_others_are_not_trusted(tree: Path, cache: Cache) -> None:
    lint(tree, cache)
    (entry,) = cache.folder.iterdir()
    entry.chmod(0o666)
    assert cache.get(entry.name) is None
    entry.chmod(0o600)
    assert cache.get(entry.name) is not None
    cache.folder.chmod(0o777)
    assert cache.get(entry.name) is None
    cache.put(KEY, b"x")
    assert not (cache.folder / KEY).exists()


def test_links_are_not_followed(cache: Cache, tmp_path: Path) -> None:
    cache.put(KEY, b"x")
    (tmp_path / "elsewhere").write_bytes((cache.folder / KEY).read_bytes())
    (cache.folder / KEY).unlink()
    (cache.folder / KEY).symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY) is None


def test_a_cache_folder_that_cannot_be_created_is_not_an_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert lint(tree, Cache(tmp_path / "file" / "cache")).findings


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", max_file_bytes=1000)
    for number in range(5):
        cache.put(f"{number:064x}", bytes(200))
        os.utime(cache.folder / f"{number:064x}", (number, number))
    cache.put("f" * 64, bytes(200))
    kept = sorted(path.name[-1] for path in cache.folder.iterdir())
    assert kept == ["3", "4", "f"]
    cache.put("e" * 64, bytes(2000))
    assert cache.get("e" * 64) is None


def test_keys_cannot_be_paths(cache: Cache) -> None:
    cache.put("../x", b"x")
    assert cache.get("../x") is None and not cache.folder.parent.joinpath("x").exists()


def test_default_folder() -> None:
    assert default_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/preflight")
    assert default_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "preflight"


def test_entries_are_json(tree: Path, cache: Cache) -> None:
    lint(tree, cache)
    (entry,) = cache.folder.iterdir()
    _, first, second = entry.read_bytes().split(b"\n")
    assert json.loads(first)["verdict"] == "no-go" and json.loads(second)[0]["name"]


@pytest.mark.parametrize(
    ("place", "believed"), [("home/cache", True), ("tree/cache", False), ("repository/inner/cache", False)]
)
def test_the_bundle_cache_is_outside_trees_and_repositories(
    place: str, believed: bool, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    given: list[Cache | None] = []

    def run(verb: str, options: RunOptions, load_jobs: LoadJobs, *, cache: Cache | None, **_: Any) -> Recording:
        given.append(cache)
        return load_jobs(lambda step: None).recording

    monkeypatch.setattr("preflight.runner.run.run", run)
    api.check([tree], RunOptions(), root=tree)
    assert [cache.folder if cache else None for cache in given] == [
        tmp_path / place / "preflight" if believed else None
    ]

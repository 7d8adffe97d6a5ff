"""The distributions that an interpreter finds, from the names of folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from preflight_checks.probes import installed as probe
from preflight_checks.probes.installed import Source, commit_of, installed, parse_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("torch-2.3.0+cu121.dist-info", ("torch", "2.3.0+cu121")),
        ("nvidia_nccl_cu12-2.20.5.dist-info", ("nvidia-nccl-cu12", "2.20.5")),
        ("ruamel.yaml-0.18.dist-info", ("ruamel-yaml", "0.18")),
        ("PyYAML-6.0-py3.9.egg-info", ("pyyaml", "6.0")),
        ("torch", None),
        ("torch.libs", None),
        ("~orch-2.3.0.dist-info", ("~orch", "2.3.0")),
    ],
)
def test_names_and_versions_come_from_folder_names(entry: str, named: tuple[str, str] | None) -> None:
    assert parse_folder(entry) == named


def test_packages_are_found_without_imports() -> None:
    seen = installed({})
    assert seen.distributions["pytest"] and seen.python == ".".join(map(str, sys.version_info[:3]))
    assert "anyio" in seen.distributions and seen.machine


def test_other_names_enter_only_the_digest() -> None:
    whole, few = installed({}), installed({"only": ["pytest", "any*"]})
    assert set(few.distributions) >= {"pytest", "anyio"} and len(few.distributions) < len(whole.distributions)
    assert few.digest == whole.digest != ""


def test_the_first_folder_counts_and_duplicate_versions_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (
        "a/numpy-1.26.4.dist-info",
        "b/numpy-2.1.0.dist-info",
        "b/ray-2.9.dist-info",
        "b/ray-2.10.dist-info",
    ):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "absent")])
    seen = installed({})
    assert seen.distributions["numpy"] == "1.26.4" and seen.twice == {"ray": ["2.10", "2.9"]}


def test_sources_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / ".git" / "refs" / "heads").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".git" / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    places = {
        "mine-1.0.dist-info": {"url": f"file://{tree}", "dir_info": {"editable": True}},
        "theirs-1.0.dist-info": {
            "url": "https://me:hidden@host/x.git",
            "vcs_info": {"vcs": "git", "commit_id": COMMIT},
        },
        "broken-1.0.dist-info": [],
    }
    for name, said in places.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "direct_url.json").write_text(json.dumps(said))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    seen = installed({})
    assert seen.sources["mine"] == Source(str(tree), COMMIT)
    assert seen.sources["theirs"].commit == COMMIT and "hidden" not in str(seen.sources)
    assert set(seen.sources) == {"mine", "theirs"}


def test_a_commit_is_read_from_packed_references_and_worktrees(tmp_path: Path) -> None:
    git = tmp_path / "main" / ".git"
    (git / "worktrees" / "one").mkdir(parents=True)
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/side\n")
    (git / "worktrees" / "one" / "HEAD").write_text("ref: refs/heads/side\n")
    (git / "worktrees" / "one" / "commondir").write_text("../..\n")
    (tmp_path / "side" / "deep").mkdir(parents=True)
    (tmp_path / "side" / ".git").write_text(f"gitdir: {git}/worktrees/one\n")
    assert commit_of(str(tmp_path / "side" / "deep")) == COMMIT
    (git / "HEAD").write_text("not a commit\n")
    assert commit_of(str(tmp_path / "main")) == ""


def test_the_kind_of_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert probe.installed({}).kind == "system"
    (tmp_path / "conda-meta").mkdir()
    assert probe.installed({}).kind == "conda"

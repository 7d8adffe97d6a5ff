"""Folders that a job writes to, quotas and targets, from this machine and from recorded outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight_checks.probes.cgroups import Mount
from preflight_checks.probes.folders import (
    Quota,
    Target,
    folder_state,
    parse_lfs_df,
    parse_lfs_quota,
    parse_quota,
    quotas_of,
    write_trial,
)

QUOTA = """\
Disk quotas for user alice (uid 1001):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/home 10485760* 9437184 10485760 1700000000  120034       0  200000       0
/dev/sdb1     100       0       0       0       3       0       0       0
"""
NO_QUOTA = "Disk quotas for user root (uid 0): none\n"
LFS_QUOTA = "    /scratch 1073741824  0 2147483648       -  500000       0 1000000       -\n"
LFS_DF = """\
UUID                   1K-blocks        Used   Available Use% Mounted on
scratch-MDT0000_UUID    10000000     5000000     5000000  50% /scratch[MDT:0]
scratch-OST0000_UUID   100000000    99000000     1000000  99% /scratch[OST:0]
OST0001             : inactive device

filesystem_summary:    100000000    99000000     1000000  99% /scratch
"""


def test_output_of_quota() -> None:
    assert parse_quota(QUOTA, "nas:/home") == [Quota("user", 10485760 * 1024, 10485760 * 1024, 120034, 200000)]
    assert parse_quota(QUOTA, "/dev/sdb1") == [Quota("user", 100 * 1024, None, 3, None)]
    assert parse_quota(NO_QUOTA, "nas:/home") == parse_quota("", "x") == []


def test_output_of_lfs() -> None:
    assert parse_lfs_quota(LFS_QUOTA, "user") == [Quota("user", 2**40, 2**41, 500000, 1000000)]
    assert parse_lfs_quota("", "user") == []
    assert parse_lfs_df(LFS_DF)[1] == Target("scratch-OST0000", 102400000000, 1024000000)
    assert len(parse_lfs_df(LFS_DF)) == 2


def test_without_the_tool_quotas_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.agent.command.SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    for kind, source in (("lustre", "mds:/scratch"), ("nfs4", "nas:/home"), ("tmpfs", "tmpfs")):
        assert quotas_of(Mount("/scratch", kind, source, "rw")) == []


def test_an_existing_folder_and_a_missing_one(tmp_path: Path) -> None:
    there = folder_state({"path": str(tmp_path)})
    assert there.exists and there.writable and there.free_bytes and there.file_system
    made = folder_state({"path": str(tmp_path / "a" / "b")})
    assert not made.exists and made.nearest == str(tmp_path) and made.problem == ""
    assert not (tmp_path / "a").exists()


def test_obstacles_to_writing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert folder_state({"path": str(tmp_path / "file")}).problem == "file"
    assert folder_state({"path": str(tmp_path / "file" / "below")}).problem == "file"
    assert folder_state({"path": str(tmp_path / "link" / "below")}).problem == "dangling"


def test_a_write_trial_leaves_nothing(tmp_path: Path) -> None:
    done = write_trial({"path": str(tmp_path / "run")})
    assert done.problem == "" and done.folder == str(tmp_path) and list(tmp_path.iterdir()) == []


def test_a_failed_write_trial_has_a_reason() -> None:
    assert write_trial({"path": "/proc/none"}).problem

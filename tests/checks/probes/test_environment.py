"""The environment: the values that leave the node, and NCCL's files as NCCL reads them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import environment as probe
from preflight_checks.probes.environment import environment, keyed_hash, nccl_files, parse_settings, split_secrets


def test_only_known_variables_leave_the_node_and_secrets_as_hashes() -> None:
    around = {
        "NCCL_ALGO": "Ring",
        "NCCL_AUTH_TOKEN": "s3cret",
        "UCX_URL": "http://me:secret@host/",
        "WANDB_API_KEY": "abc",
        "MY_PRIVATE_NOTE": "x",
        "PADDLE_LONG": "x" * 5000,
    }
    shown, hidden = split_secrets(around, {"WANDB_API_KEY"}, "key")
    assert shown == {"NCCL_ALGO": "Ring"}
    assert set(hidden) == {"NCCL_AUTH_TOKEN", "UCX_URL", "WANDB_API_KEY", "PADDLE_LONG"}
    assert not any("secret" in text or "s3cret" in text for text in hidden.values())


def test_hashes_are_comparable_only_within_a_run() -> None:
    assert keyed_hash("one", "value") == keyed_hash("one", "value") != keyed_hash("two", "value")
    with pytest.raises(ProbeUnavailable, match="no key"):
        environment({})


def test_settings_are_read_as_nccl_reads_them() -> None:
    text = "# tuned\nNCCL_ALGO=Ring\n NCCL_PROTO=LL\nNCCL_NET = IB\njust words\n\nNCCL_DEBUG= INFO\nNCCL_ALGO=Tree\n"
    settings, unread = parse_settings(text)
    assert settings == {"NCCL_ALGO": "Ring", "NCCL_DEBUG": " INFO"}
    assert [line.partition(":")[0] for line in unread] == ["line 3", "line 4", "line 5", "line 7"]


def test_the_users_file_comes_before_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\nHF_TOKEN=hf_x\n")
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=Tree\n")
    monkeypatch.setattr(probe, "SYSTEM_NCCL_FILE", str(tmp_path / "nccl.conf"))
    first, second = nccl_files({}, str(tmp_path))
    assert (first.settings, second.settings) == ({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"})
    (tmp_path / "other").write_text("NCCL_ALGO=CollNet")
    chosen = nccl_files({"NCCL_CONF_FILE": str(tmp_path / "other")}, str(tmp_path))
    assert [file.settings["NCCL_ALGO"] for file in chosen] == ["CollNet", "Tree"]


def test_an_unusable_file_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SYSTEM_NCCL_FILE", str(tmp_path / "absent"))
    assert nccl_files({}, str(tmp_path)) == []
    (tmp_path / ".nccl.conf").write_text("x" * (probe.MAX_FILE_BYTES + 1))
    (large,) = nccl_files({}, str(tmp_path))
    assert "larger" in large.problem


def test_deepspeeds_files_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/nowhere/lib")
    (tmp_path / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\nWANDB_API_KEY=secret\nbroken\n")
    seen = environment({"run_key": "k", "hashed": [], "export_files": True})
    assert seen.variables["NCCL_ALGO"] == "Ring" and seen.directory == str(tmp_path)
    assert seen.missing_folders == ["/nowhere/lib"]
    (file,) = [file for file in seen.export_files if file.path.startswith(str(tmp_path))]
    assert set(file.settings) == {"NCCL_DEBUG", "WANDB_API_KEY"} and "secret" not in str(file)
    assert file.unread == ["line 3 has no equals sign"]


def test_a_hanging_home_directory_does_not_hide_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(probe, "LOOK_S", 0.05)
    monkeypatch.setattr(probe, "nccl_files", lambda *_: ended.wait(20))
    monkeypatch.setattr(probe, "_account", lambda: ended.wait(20))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HOME", "/home/dead")
    try:
        seen = environment({"run_key": "k"})
    finally:
        ended.set()
    assert seen.variables["NCCL_ALGO"] == "Ring" and seen.user == ""
    assert seen.nccl_files[0].path == "/home/dead" and "no answer" in seen.nccl_files[0].problem

"""The search for tools, and logins, with shell scripts in place of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import launcher_tools
from preflight_checks.probes.launcher_tools import logins, tools
from tests.waiting import scaled

SSH = """#!/bin/sh
case "$*" in
  *"-- good true") exit 0;;
  *"-- slow true") exec sleep 20;;
esac
echo "noise" >&2
echo "me@denied: Permission denied (publickey)." >&2
exit 255
"""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_a_tool_is_found_with_its_version(path: Path) -> None:
    program(path, "pdsh", "#!/bin/sh\n[ $1 = -V ] && echo pdsh-2.31\n")
    program(path, "prted", "#!/bin/sh\necho prted 5.0\n")
    program(path, "torchrun", "#!/bin/sh\nexit 1\n")
    found = {tool.name: tool for tool in tools({"names": ["pdsh", "orted-x|prted", "torchrun", "not-there"]}).tools}
    assert found["pdsh"].version == "pdsh-2.31" and found["pdsh"].took_s is not None
    assert found["orted-x|prted"].path == str(path / "prted") and found["orted-x|prted"].version == "prted 5.0"
    assert found["torchrun"].path == str(path / "torchrun") and found["torchrun"].took_s is None
    assert found["not-there"].path == ""


def test_a_hanging_tool_is_found_and_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_tools, "VERSION_WITHIN_S", 0.2)
    program(path, "mpirun", "#!/bin/sh\nexec sleep 20\n")
    (tool,) = tools({"names": ["mpirun"]}).tools
    assert tool.path and "did not end" in tool.problem


def test_a_tool_beside_the_interpreter_counts_if_requested(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "env", "composer", "#!/bin/sh\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "env" / "python3"))
    assert not tools({"names": ["composer"]}).tools[0].path
    assert tools({"names": ["composer"], "beside": True}).tools[0].path


def test_logins_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_tools, "LOGIN_S", scaled(1.5))
    program(path, "ssh", SSH)
    seen = logins({"targets": ["good", "denied", "slow"], "options": ["-o", "A=b"]})
    good, denied, slow = seen.logins
    assert good.exit_code == 0 and denied.exit_code == 255 and slow.exit_code is None
    assert denied.said.splitlines()[-1] == "me@denied: Permission denied (publickey)."
    assert seen.untried == []


def test_logins_neither_prompt_nor_write(path: Path) -> None:
    program(path, "ssh", '#!/bin/sh\necho "$@" >&2\nexit 1\n')
    said = logins({"targets": ["host"], "options": []}).logins[0].said
    assert all(f"-o {word}" in said for word in ("BatchMode=yes", "ControlMaster=no", "ControlPath=none"))
    assert said.endswith("-- host true")


def test_without_ssh_or_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "ssh", SSH)
    monkeypatch.setattr(launcher_tools, "LOGINS_S", 0.0)
    assert logins({"targets": ["good"]}).untried == ["good"]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProbeUnavailable, match="ssh"):
        logins({"targets": ["good"]})

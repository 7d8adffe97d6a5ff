"""Each look of `preflight doctor` by itself: what it says of what was seen; it never takes silence for a yes."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import anyio
import pytest

from preflight import catalog
from preflight.cache import Cache
from preflight.doctor import machine, ways
from preflight.doctor.examine import interpreters
from preflight.examination import Can, Look, Surroundings
from preflight.executors.base import Executor, ExecutorError, Usable
from preflight.executors.local import LocalExecutor
from preflight.executors.mpi import MpiExecutor
from preflight.executors.slurm import SlurmExecutor
from preflight.executors.ssh import SshExecutor
from preflight.recording import Node
from preflight_checks import examining


def program(folder: Path, name: str, body: str) -> Path:
    """A tool that does this."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def asked(executor: Executor, *, deadline_s: float = 10.0, **environment: str) -> Look:
    async def ask() -> Look:
        return await ways.way(executor, environment, deadline_s=deadline_s)

    return anyio.run(ask)


# --- ways ---


def test_every_executor_but_replay_says_whether_it_can_be_used() -> None:
    assert [item.name for item in ways.executors() if not isinstance(item, Usable)] == []
    assert {item.name for item in catalog.load(catalog.EXECUTORS).items} - {"replay"} == {
        item.name for item in ways.executors()
    }


def test_this_machine_can_always_be_reached() -> None:
    assert asked(LocalExecutor()).can is Can.YES


def test_ssh_is_there_when_the_client_answers_and_takes_its_configuration(tmp_path: Path) -> None:
    good = program(tmp_path, "good", '[ "$1" = -V ] && echo "OpenSSH_9.2p1" >&2; exit 0')
    look = asked(SshExecutor(program=str(good)))
    assert (look.id, look.can, look.said) == ("way.ssh", Can.YES, "OpenSSH_9.2p1")
    said = "/home/anna/.ssh/config: line 3: Bad configuration option: hostnam"
    wrong = program(tmp_path, "wrong", f'[ "$1" = -V ] && exit 0; echo "{said}" >&2; exit 255')
    look = asked(SshExecutor(program=str(wrong)))
    assert look.can is Can.NO and "line 3" in look.said and look.remedy == "correct the line that it names"
    look = asked(SshExecutor(program=str(tmp_path / "absent")))
    assert look.can is Can.NO and look.remedy == "install an OpenSSH client" and look.lost


def test_a_tool_that_hangs_is_unknown(tmp_path: Path) -> None:
    hung = program(tmp_path, "hung", "exec sleep 60")
    look = asked(SshExecutor(program=str(hung)), deadline_s=0.3)
    assert look.can is Can.UNKNOWN and "0.3 s" in look.said


def test_slurm_is_there_when_its_controller_answers(tmp_path: Path) -> None:
    assert asked(SlurmExecutor(), PATH=str(tmp_path)).said == "there is no srun on this machine, so no way into Slurm"
    program(tmp_path, "srun", 'echo "slurm 23.11.4"')
    program(tmp_path, "scontrol", 'echo "Slurmctld(primary) at head is UP"')
    look = asked(SlurmExecutor(), PATH=str(tmp_path), SLURM_JOB_ID="71")
    assert look.can is Can.YES
    assert look.said.startswith("slurm 23.11.4, and its controller answers; taken by itself: SLURM_JOB_ID=71 is set")
    program(tmp_path, "scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    look = asked(SlurmExecutor(), PATH=str(tmp_path))
    assert look.can is Can.NO and "is DOWN" in look.said and look.remedy == "see `scontrol ping`"


def test_mpi_is_there_when_it_says_which_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asked(MpiExecutor()).can is Can.NO
    program(tmp_path, "mpirun", 'echo "mpirun (Open MPI) 4.1.4"')
    assert asked(MpiExecutor()).said == f"{tmp_path}/mpirun (Open MPI)"


def test_an_executor_of_a_plugin_that_does_not_say_is_unknown() -> None:
    class Silent:
        name = "silent"

        async def aclose(self) -> None:
            """Nothing."""

    look = asked(Silent())  # type: ignore[arg-type]
    assert look.can is Can.UNKNOWN and "does not say" in look.said


def test_keys_are_counted_and_named_and_never_read(tmp_path: Path) -> None:
    program(tmp_path, "ssh-add", 'echo "256 SHA256:x anna@head (ED25519)"')
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "id_ed25519.pub"):
        (tmp_path / ".ssh" / name).write_text("a secret")

    def look(**environment: str) -> Look:
        return anyio.run(ways.keys, {"PATH": f"{tmp_path}:/bin", **environment}, tmp_path)

    found = look(SSH_AUTH_SOCK="/run/agent")
    assert (found.can, found.said) == (Can.YES, "key files: id_ed25519; an agent holds 1")
    program(tmp_path, "ssh-add", "exit 2")
    assert look(SSH_AUTH_SOCK="/gone").said.endswith("SSH_AUTH_SOCK leads to no agent")
    (tmp_path / ".ssh" / "id_ed25519.pub").unlink()
    assert (look().can, "ssh-keygen" in look().remedy) == (Can.PARTLY, True)


def test_hosts_are_reached_by_an_agent() -> None:
    class Half(LocalExecutor):
        async def open(self, node, *, deadline_s, bundle):  # type: ignore[no-untyped-def]
            if node.name == "b":
                raise ExecutorError("unreachable", "b: nothing listens on its ssh port; start sshd there")
            return await LocalExecutor().open(node, deadline_s=deadline_s, bundle=bundle)

    async def reach() -> tuple[Look, ...]:
        return await ways.hosts(Half(), (Node("a", 0), Node("b", 1)), deadline_s=20)

    first, second = anyio.run(reach)
    assert (first.id, first.can) == ("host.a", Can.YES) and "Python 3" in first.said
    assert (second.can, second.said, second.remedy) == (Can.NO, "nothing listens on its ssh port", "start sshd there")


# --- this machine ---


def test_the_cache_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert machine.cache(Cache(folder)).can is Can.YES
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    look = machine.cache(Cache(folder))
    assert look.can is Can.NO and "chmod 700" in look.remedy
    assert machine.cache(None).can is Can.NO


def test_the_terminal_says_what_it_cannot_show() -> None:
    class Terminal(io.StringIO):
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

    assert machine.terminal(io.StringIO(), {}).can is Can.YES
    look = machine.terminal(Terminal(), {"TERM": "dumb"})
    assert look.can is Can.PARTLY and look.lost == "colours and characters beyond that encoding"


def test_limits_are_told_as_a_number_of_nodes() -> None:
    assert machine.limits(2).can is Can.YES
    look = machine.limits(10_000_000)
    assert look.can is Can.PARTLY and "of 10000000 nodes" in look.lost and look.remedy.startswith("ulimit -n ")


def test_packs_say_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {look.can for look in machine.packs()} == {Can.YES}
    broken = catalog.Broken(catalog.RULES, "site-pack 1.0", "site:rule", "ImportError: no module")
    monkeypatch.setattr(catalog, "load", lambda group: catalog.Loaded((), (broken,), ()))
    looks = list(machine.packs())
    assert {look.can for look in looks} == {Can.NO} and "site:rule of site-pack 1.0: ImportError" in looks[0].said


def test_interpreters_are_each_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    found = interpreters(["/opt/none/python"], {"VIRTUAL_ENV": str(tmp_path), "PATH": str(tmp_path / "bin")})
    assert found[:2] == ("/opt/none/python", str(tmp_path / "bin" / "python"))
    assert found[-1] == sys.executable and len(found) == 3


# --- what the pack of checks looks at ---


def frameworks(*paths: Path, deadline_s: float = 30.0) -> list[Look]:
    surroundings = Surroundings({"PATH": "/usr/bin:/bin"}, tuple(map(str, paths)), deadline_s)
    return [*anyio.run(examining.frameworks, surroundings)]


def test_an_interpreter_without_frameworks_says_so_and_how_to_get_one(tmp_path: Path) -> None:
    bare = program(tmp_path, "python", f'exec "{sys.executable}" -I -S "$@"')
    (look,) = frameworks(bare)
    assert look.can is Can.NO and "no torch; no paddle" in look.said and "pip install" in look.remedy


def test_interpreters_that_hang_or_talk_nonsense_are_no_yes(tmp_path: Path) -> None:
    hung, odd = program(tmp_path, "hung", "exec sleep 60"), program(tmp_path, "odd", "echo hello; exit 3")
    first, second = frameworks(hung, odd, deadline_s=0.5)
    assert first.can is Can.UNKNOWN and "no answer within 0.5 s" in first.said
    assert second.can is Can.NO and "it ended with code 3" in second.said


@pytest.mark.parametrize(
    ("said", "can", "words"),
    [
        ({"version": "2.5.1", "cuda": "12.4", "gpus": 8, "backends": ["nccl", "gloo"]}, Can.YES, "CUDA 12.4, 8 GPUs"),
        ({"version": "2.5.1", "cuda": "12.4", "gpus": 0, "backends": ["nccl"]}, Can.PARTLY, "a GPU that it sees"),
        ({"version": "2.5.1+cpu", "cuda": "", "backends": ["gloo"]}, Can.PARTLY, "a build with CUDA"),
        ({"problem": "libcudnn.so.9: cannot open shared object file"}, Can.NO, "cannot be imported: libcudnn.so.9"),
    ],
    ids=["gpus", "no-card", "cpu", "broken"],
)
def test_what_a_framework_says_of_itself(said: dict[str, object], can: Can, words: str) -> None:
    one = examining.interpreter("/opt/python", {"torch": {"python": "3.11.7", **said}, "paddle": {"absent": "no"}})
    look = examining.told(one)
    assert look.can is can and words in f"{look.said} {look.remedy}" and "Python 3.11.7" in look.said


def test_gpus_are_those_of_the_probe() -> None:
    card = {"index": 0, "name": "NVIDIA H100", "problem": ""}
    value = {"gpus": [card, {**card, "index": 1}], "driver": "550.54", "detail": "", "problem": "", "device_files": 2}
    assert examining.of_gpus({"value": value}).said == "2 x NVIDIA H100, driver 550.54"
    sick = examining.of_gpus({"value": {**value, "gpus": [card, {**card, "index": 1, "problem": "lost"}]}})
    assert sick.can is Can.PARTLY and sick.lost == "GPU 1"
    gone = examining.of_gpus({"value": {**value, "gpus": [], "detail": "driver not loaded"}})
    assert gone.can is Can.NO and gone.said == "2 device files, and driver not loaded"
    assert examining.of_gpus({"kind": "crashed", "reason": "signal 11"}).said == "signal 11"
    assert examining.of_gpus({"problem": "no answer within 20 s", "late": True}).can is Can.UNKNOWN
    (real,) = anyio.run(examining.gpus, Surroundings({"PATH": "/usr/bin:/bin"}, (), 30.0))
    assert real.id == "gpus" and "ended with code" not in real.said


def test_tools_that_are_missing_name_checks_that_there_are() -> None:
    ids = {item.meta.id for item in catalog.checks()} | {item.meta.area for item in catalog.checks()}
    look = examining.of_tools(dict.fromkeys(examining.TOOLS, ""))
    import re

    assert {*re.findall(r"\(([A-Z]{3}\d*)\)", look.lost)} <= ids
    assert look.can is Can.PARTLY and "chrony" in look.remedy
    assert examining.of_tools(dict.fromkeys(examining.TOOLS, "/bin/x")).can is Can.YES

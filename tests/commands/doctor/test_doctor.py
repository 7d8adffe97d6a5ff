"""`preflight doctor` as a command: one examination of this machine, as text and as JSON, and its errors."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import psutil
import pytest

from preflight._util.cache import Cache
from preflight.cli import main
from preflight.commands import doctor as examination
from preflight.commands import doctor as local_items
from preflight.commands.doctor import Examination, interpreters
from preflight.executors.base import Executor, ExecutorError
from preflight.executors.mpi import MpiExecutor
from preflight.executors.pipe import LocalExecutor
from preflight.executors.slurm import SlurmExecutor
from preflight.executors.ssh import SshExecutor
from preflight.model.doctor_items import Capability, DoctorItem, Surroundings
from preflight.model.recording import Node
from preflight.plugins import registry
from preflight.reporters.base import Style
from preflight_checks import doctor
from tests.builders import DOCS, assert_follows_schema
from tests.waiting import scaled


def run_command(*arguments: str | Path) -> int:
    return main.run(["doctor", *map(str, arguments)])


@pytest.mark.thorough
def test_an_examination_of_this_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "doctor.json"
    assert run_command("--hosts", "a,b", "--on", "local", "-o", "text", "-o", f"json:{target}") == 0
    observed, errors = capfd.readouterr()
    document = assert_follows_schema(target.read_bytes(), "examination")
    items = {look["id"]: look for look in document["items"]}
    assert errors == "" and len(items) == len(document["items"])
    for id in ("preflight", "packs.rules", "way.local", "host.a", "host.b", "cache", "terminal", "limits"):
        assert items[id]["capability"] == "yes", items[id]
    assert {"way.ssh", "way.slurm", "way.mpi", "way.ray", "way.kubernetes", "ssh.keys", "gpus", "tools"} <= {*items}
    assert any(id.startswith("training.") and look["capability"] in ("yes", "partly") for id, look in items.items())
    # Missing items name their consequences; working ones do not.
    assert all(bool(look["lost"]) == (look["capability"] != "yes") for look in document["items"])
    assert "host" in observed or "a  " in observed
    last = observed.splitlines()[-1]
    assert last.startswith("CAN LINT, CHECK, SMOKE over local") and f"{len(items)} items checked" in last


@pytest.mark.thorough
def test_mistakes(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["--hots", "a"], "--hosts"),
        (["--hosts", "-oProxyCommand=x"], "is not a host name"),
        (["--hosts", "a", "--on", "shh"], "did you mean 'ssh'"),
        (["-o", "sarif"], "choose from text, json"),
    ):
        assert run_command(*arguments) == 2
        observed = capfd.readouterr().err
        assert expected in observed and "Traceback" not in observed
    assert main.run(["docter"]) == 2
    assert "Did you mean 'doctor'?" in capfd.readouterr().err


@pytest.mark.thorough
def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "examination.schema.json").read_text()
    assert committed == json.dumps(examination.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


@pytest.mark.thorough
def test_an_item_that_crashes_or_hangs_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashes(surroundings: Surroundings) -> Iterable[DoctorItem]:
        raise RuntimeError("the card fell off")

    async def hangs(surroundings: Surroundings) -> Iterable[DoctorItem]:
        await anyio.sleep_forever()
        return ()

    odd = [registry.PackFunction("site", "site:crashes", crashes), registry.PackFunction("site", "site:hangs", hangs)]
    broken = registry.Broken(registry.CHECKS, "site", "site:gone", "AttributeError: gone")
    monkeypatch.setattr(registry, "examiners", lambda: (tuple(odd), (broken,)))
    monkeypatch.setattr(examination, "executors", lambda: ())
    monkeypatch.setattr(examination, "LATE_S", -0.8)
    found = examination.examine(environment={"HOME": "/none"}, stream=io.StringIO(), deadline_s=1.0)
    items = {look.id: look for look in found.items}
    assert items["site:crashes"].observed == "crashed: RuntimeError: the card fell off"
    assert items["site:hangs"].observed.startswith("no answer within")
    assert items["site:gone"].capability is Capability.UNKNOWN and "AttributeError" in items["site:gone"].observed
    assert (
        items["preflight"].capability is Capability.YES and not found.executors and found.lint and found.exit_code == 0
    )


def summed(*items: tuple[str, Capability]) -> Examination:
    return examination.summarize(tuple(DoctorItem(id, id, capability, "") for id, capability in items))


@pytest.mark.thorough
def test_the_exit_code_is_1_only_if_nothing_can_be_done() -> None:
    nothing = summed(("packs.files", Capability.NO), ("packs.rules", Capability.NO), ("way.ssh", Capability.NO))
    assert (nothing.exit_code, nothing.lint, nothing.check) == (1, False, False)
    assert examination.page(nothing, Style()).splitlines()[-1].startswith("NOTHING CAN BE CHECKED")
    unknown = summed(("packs.files", Capability.UNKNOWN), ("packs.rules", Capability.YES))
    assert unknown.exit_code == 1, "unknown is no yes"
    nodes = summed(("packs.checks", Capability.YES), ("way.ssh", Capability.YES), ("training.x", Capability.NO))
    assert (nodes.exit_code, nodes.check, nodes.smoke, nodes.executors) == (0, True, False, ("ssh",))
    assert summed(
        ("packs.checks", Capability.YES), ("way.ssh", Capability.YES), ("training.x", Capability.PARTLY)
    ).smoke


@pytest.mark.thorough
def test_quiet_omits_working_items_and_hostile_text_is_escaped() -> None:
    items = (
        DoctorItem("a", "a", Capability.YES, "there"),
        DoctorItem("b", "b\x1b[31m", Capability.NO, "gone\x07", "all", "get it\u202e"),
    )
    shown = examination.page(
        Examination("0.1.0", items, True, True, False, ("ssh",), 0), Style(verbosity=-1, color=True)
    )
    assert "there" not in shown.replace("not there", "") and "lost" in shown
    assert not set("\x07\u202e") & set(shown) and "\x1b[31mb" not in shown


# Each item of `preflight doctor`: its text for each observation; a missing answer is never a yes.


def program(folder: Path, name: str, body: str) -> Path:
    """Write a tool with this body."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def examined(executor: Executor, *, deadline_s: float = 10.0, **environment: str) -> DoctorItem:
    async def gather() -> DoctorItem:
        return await local_items.executor_item(executor, environment, deadline_s=deadline_s)

    return anyio.run(gather)


# --- executors ---


def test_every_executor_except_replay_reports_whether_it_can_be_used() -> None:
    assert [item.name for item in local_items.executors() if type(item).check_usable is Executor.check_usable] == []
    assert {item.name for item in registry.load(registry.EXECUTORS).items} - {"replay"} == {
        item.name for item in local_items.executors()
    }


def test_this_machine_can_always_be_reached() -> None:
    assert examined(LocalExecutor()).capability is Capability.YES


def test_ssh_is_usable_if_its_client_accepts_the_configuration(tmp_path: Path) -> None:
    good = program(tmp_path, "good", '[ "$1" = -V ] && echo "OpenSSH_9.2p1" >&2; exit 0')
    look = examined(SshExecutor(program=str(good)))
    assert (look.id, look.capability, look.observed) == ("way.ssh", Capability.YES, "OpenSSH_9.2p1")
    observed = "/home/anna/.ssh/config: line 3: Bad configuration option: hostnam"
    wrong = program(tmp_path, "wrong", f'[ "$1" = -V ] && exit 0; echo "{observed}" >&2; exit 255')
    look = examined(SshExecutor(program=str(wrong)))
    assert (
        look.capability is Capability.NO
        and "line 3" in look.observed
        and look.remedy == "correct the line in its message"
    )
    look = examined(SshExecutor(program=str(tmp_path / "absent")))
    assert look.capability is Capability.NO and look.remedy == "install an OpenSSH client" and look.lost


def test_a_tool_that_hangs_is_unknown(tmp_path: Path) -> None:
    hung = program(tmp_path, "hung", "exec sleep 60")
    look = examined(SshExecutor(program=str(hung)), deadline_s=0.3)
    assert look.capability is Capability.UNKNOWN and "0.3 s" in look.observed


def test_slurm_is_usable_if_its_controller_answers(tmp_path: Path) -> None:
    assert examined(SlurmExecutor(), PATH=str(tmp_path)).observed == "srun was not found on this machine"
    program(tmp_path, "srun", 'echo "slurm 23.11.4"')
    program(tmp_path, "scontrol", 'echo "Slurmctld(primary) at head is UP"')
    look = examined(SlurmExecutor(), PATH=str(tmp_path), SLURM_JOB_ID="71")
    assert look.capability is Capability.YES
    assert look.observed.startswith(
        "slurm 23.11.4, whose controller responds; chosen by default: SLURM_JOB_ID=71 is set"
    )
    program(tmp_path, "scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    look = examined(SlurmExecutor(), PATH=str(tmp_path))
    assert look.capability is Capability.NO and "is DOWN" in look.observed and look.remedy == "see `scontrol ping`"


def test_mpi_is_usable_if_it_reports_its_implementation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examined(MpiExecutor()).capability is Capability.NO
    program(tmp_path, "mpirun", 'echo "mpirun (Open MPI) 4.1.4"')
    assert examined(MpiExecutor()).observed == f"{tmp_path}/mpirun (Open MPI)"


def test_a_plugin_executor_without_a_report_is_unknown() -> None:
    class Silent(Executor):
        name = "silent"

        async def open(self, node, *, deadline_s, bundle):  # type: ignore[no-untyped-def]
            raise ExecutorError("unreachable", "nothing is there")

    look = examined(Silent())
    assert look.capability is Capability.UNKNOWN and "does not report" in look.observed


def test_keys_are_counted_and_named_and_never_read(tmp_path: Path) -> None:
    program(tmp_path, "ssh-add", 'echo "256 SHA256:x anna@head (ED25519)"')
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "id_ed25519.pub"):
        (tmp_path / ".ssh" / name).write_text("a secret")

    def look(**environment: str) -> DoctorItem:
        return anyio.run(local_items.keys, {"PATH": f"{tmp_path}:/bin", **environment}, tmp_path)

    found = look(SSH_AUTH_SOCK="/run/agent")
    assert (found.capability, found.observed) == (Capability.YES, "key files: id_ed25519; an agent has 1")
    program(tmp_path, "ssh-add", "exit 2")
    assert look(SSH_AUTH_SOCK="/gone").observed.endswith("no agent responds at SSH_AUTH_SOCK")
    (tmp_path / ".ssh" / "id_ed25519.pub").unlink()
    assert (look().capability, "ssh-keygen" in look().remedy) == (Capability.PARTLY, True)


def test_hosts_are_reached_by_an_agent() -> None:
    class Half(LocalExecutor):
        async def open(self, node, *, deadline_s, bundle):  # type: ignore[no-untyped-def]
            if node.name == "b":
                raise ExecutorError("unreachable", "b: nothing listens on its ssh port; start sshd there")
            return await LocalExecutor().open(node, deadline_s=deadline_s, bundle=bundle)

    async def reach() -> tuple[DoctorItem, ...]:
        return await local_items.hosts(Half(), (Node("a", 0), Node("b", 1)), deadline_s=20)

    first, second = anyio.run(reach)
    assert (first.id, first.capability) == ("host.a", Capability.YES) and "Python 3" in first.observed
    assert (second.capability, second.observed, second.remedy) == (
        Capability.NO,
        "nothing listens on its ssh port",
        "start sshd there",
    )


# --- this machine ---


def test_the_cache_is_tested_and_restored(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert local_items.cache(Cache(folder)).capability is Capability.YES
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    look = local_items.cache(Cache(folder))
    assert look.capability is Capability.NO and "chmod 700" in look.remedy
    assert local_items.cache(None).capability is Capability.NO


def test_the_machine_is_shown_and_shortages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = local_items.machine(tmp_path)
    assert look.capability is Capability.YES
    for part in ("user ", " processors usable", " GiB of memory available", f"free on the disk of {tmp_path}"):
        assert part in look.observed
    memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(tmp_path))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=1 << 20))
    monkeypatch.setattr(psutil, "disk_usage", lambda path: disk._replace(free=1 << 20))
    look = local_items.machine(tmp_path)
    assert look.capability is Capability.PARTLY
    assert look.lost == "a large run may fail for lack of memory and space for reports and recordings"
    assert "ps aux" in look.remedy and str(tmp_path) in look.remedy


def test_limits_of_the_terminal_are_named() -> None:
    class Terminal(io.StringIO):
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

    assert local_items.terminal(io.StringIO(), {}).capability is Capability.YES
    look = local_items.terminal(Terminal(), {"TERM": "dumb"})
    assert look.capability is Capability.PARTLY and look.lost == "colours and characters outside that encoding"


def test_limits_are_reported_as_a_number_of_nodes() -> None:
    assert local_items.limits(2).capability is Capability.YES
    look = local_items.limits(10_000_000)
    assert (
        look.capability is Capability.PARTLY
        and "of 10000000 nodes" in look.lost
        and look.remedy.startswith("ulimit -n ")
    )


def test_broken_parts_of_packs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {look.capability for look in local_items.packs()} == {Capability.YES}
    broken = registry.Broken(registry.RULES, "site-pack 1.0", "site:rule", "ImportError: no module")
    monkeypatch.setattr(registry, "load", lambda group: registry.Loaded((), (broken,), ()))
    items = list(local_items.packs())
    assert {look.capability for look in items} == {
        Capability.NO
    } and "site:rule of site-pack 1.0: ImportError" in items[0].observed


def test_each_interpreter_is_examined_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    found = interpreters(["/opt/none/python"], {"VIRTUAL_ENV": str(tmp_path), "PATH": str(tmp_path / "bin")})
    assert found[:2] == ("/opt/none/python", str(tmp_path / "bin" / "python"))
    assert found[-1] == sys.executable and len(found) == 3


# --- items of the pack of checks ---


def frameworks(*paths: Path, deadline_s: float = 30.0) -> list[DoctorItem]:
    surroundings = Surroundings({"PATH": "/usr/bin:/bin"}, tuple(map(str, paths)), deadline_s)
    return [*anyio.run(doctor.frameworks, surroundings)]


def test_an_interpreter_without_frameworks_gets_a_remedy(tmp_path: Path) -> None:
    bare = program(tmp_path, "python", f'exec "{sys.executable}" -I -S "$@"')
    (look,) = frameworks(bare)
    assert look.capability is Capability.NO and "no torch; no paddle" in look.observed and "pip install" in look.remedy


def test_interpreters_that_hang_or_print_invalid_output_are_unknown(tmp_path: Path) -> None:
    hung, odd = program(tmp_path, "hung", "exec sleep 60"), program(tmp_path, "odd", "echo hello; exit 3")
    first, second = frameworks(hung, odd, deadline_s=scaled(0.5))
    assert first.capability is Capability.UNKNOWN and f"no answer within {scaled(0.5):g} s" in first.observed
    assert second.capability is Capability.NO and "it ended with code 3" in second.observed


@pytest.mark.parametrize(
    ("observed", "capability", "words"),
    [
        (
            {"version": "2.5.1", "cuda": "12.4", "gpus": 8, "backends": ["nccl", "gloo"]},
            Capability.YES,
            "CUDA 12.4, 8 GPUs",
        ),
        ({"version": "2.5.1", "cuda": "12.4", "gpus": 0, "backends": ["nccl"]}, Capability.PARTLY, "a visible GPU"),
        ({"version": "2.5.1+cpu", "cuda": "", "backends": ["gloo"]}, Capability.PARTLY, "a build with CUDA"),
        (
            {"problem": "libcudnn.so.9: cannot open shared object file"},
            Capability.NO,
            "cannot be imported: libcudnn.so.9",
        ),
    ],
    ids=["gpus", "no-card", "cpu", "broken"],
)
def test_framework_reports(observed: dict[str, object], capability: Capability, words: str) -> None:
    one = doctor.interpreter("/opt/python", {"torch": {"python": "3.11.7", **observed}, "paddle": {"absent": "no"}})
    look = doctor.training_item(one)
    assert (
        look.capability is capability and words in f"{look.observed} {look.remedy}" and "Python 3.11.7" in look.observed
    )


def test_gpus_are_those_of_the_probe() -> None:
    card = {"index": 0, "name": "NVIDIA H100", "problem": ""}
    value = {"gpus": [card, {**card, "index": 1}], "driver": "550.54", "detail": "", "problem": "", "device_files": 2}
    assert doctor.gpu_item({"value": value}).observed == "2 x NVIDIA H100, driver 550.54"
    sick = doctor.gpu_item({"value": {**value, "gpus": [card, {**card, "index": 1, "problem": "lost"}]}})
    assert sick.capability is Capability.PARTLY and sick.lost == "GPU 1"
    gone = doctor.gpu_item({"value": {**value, "gpus": [], "detail": "driver not loaded"}})
    assert gone.capability is Capability.NO and gone.observed == "2 device files, but driver not loaded"
    assert doctor.gpu_item({"kind": "crashed", "reason": "signal 11"}).observed == "signal 11"
    assert doctor.gpu_item({"problem": "no answer within 20 s", "late": True}).capability is Capability.UNKNOWN
    (real,) = anyio.run(doctor.gpus, Surroundings({"PATH": "/usr/bin:/bin"}, (), 30.0))
    assert real.id == "gpus" and "ended with code" not in real.observed


def test_missing_tools_name_existing_checks() -> None:
    ids = {item.meta.id for item in registry.checks()} | {item.meta.area for item in registry.checks()}
    look = doctor.tools_item(dict.fromkeys(doctor.TOOLS, ""))
    import re

    assert {*re.findall(r"\(([A-Z]{3}\d*)\)", look.lost)} <= ids
    assert look.capability is Capability.PARTLY and "chrony" in look.remedy
    assert doctor.tools_item(dict.fromkeys(doctor.TOOLS, "/bin/x")).capability is Capability.YES

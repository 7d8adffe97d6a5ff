"""`preflight doctor` as a command: one examination of this machine, as text and as JSON, and its errors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from preflight.cli import main
from preflight.commands.doctor import examination
from preflight.commands.doctor.examination import Examination
from preflight.model.doctor_items import Capability, DoctorItem, Surroundings
from preflight.plugins import registry
from preflight.reporters.base import Style
from tests.builders import DOCS, assert_follows_schema

pytestmark = pytest.mark.thorough


def run_command(*arguments: str | Path) -> int:
    return main.run(["doctor", *map(str, arguments)])


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


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "examination.schema.json").read_text()
    assert committed == json.dumps(examination.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


def test_an_item_that_crashes_or_hangs_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashes(surroundings: Surroundings) -> Iterable[DoctorItem]:
        raise RuntimeError("the card fell off")

    async def hangs(surroundings: Surroundings) -> Iterable[DoctorItem]:
        await anyio.sleep_forever()
        return ()

    odd = [registry.Examiner("site", "site:crashes", crashes), registry.Examiner("site", "site:hangs", hangs)]
    broken = registry.Broken(registry.CHECKS, "site", "site:gone", "AttributeError: gone")
    monkeypatch.setattr(registry, "examiners", lambda: (tuple(odd), (broken,)))
    monkeypatch.setattr(examination.executor_access, "executors", lambda: ())
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

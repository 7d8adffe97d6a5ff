"""`preflight doctor` as a command: one examination of this machine, printed and as JSON; and what goes wrong in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from preflight import catalog, cli
from preflight.doctor import examine, model, telling
from preflight.doctor.model import Examination
from preflight.examination import Can, Look, Surroundings
from preflight.reporters.base import Style
from tests.building import DOCS, assert_follows_schema


def called(*arguments: str | Path) -> int:
    return cli.run(["doctor", *map(str, arguments)])


def test_an_examination_of_this_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "doctor.json"
    assert called("--hosts", "a,b", "--on", "local", "-o", "text", "-o", f"json:{target}") == 0
    said, errors = capfd.readouterr()
    document = assert_follows_schema(target.read_bytes(), "examination")
    looks = {look["id"]: look for look in document["looks"]}
    assert errors == "" and len(looks) == len(document["looks"])
    for id in ("preflight", "packs.rules", "way.local", "host.a", "host.b", "cache", "terminal", "limits"):
        assert looks[id]["can"] == "yes", looks[id]
    assert {"way.ssh", "way.slurm", "way.mpi", "way.ray", "way.kubernetes", "ssh.keys", "gpus", "tools"} <= {*looks}
    assert any(id.startswith("training.") and look["can"] in ("yes", "partly") for id, look in looks.items())
    # Whatever is not there says what is lost; nothing that is there does.
    assert all(bool(look["lost"]) == (look["can"] != "yes") for look in document["looks"])
    assert "host" in said or "a  " in said
    last = said.splitlines()[-1]
    assert last.startswith("CAN LINT, CHECK, SMOKE over local") and f"{len(looks)} things looked at" in last


def test_mistakes(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["--hots", "a"], "--hosts"),
        (["--hosts", "-oProxyCommand=x"], "is no host name"),
        (["--hosts", "a", "--on", "shh"], "did you mean 'ssh'"),
        (["-o", "sarif"], "known are text, json"),
    ):
        assert called(*arguments) == 2
        said = capfd.readouterr().err
        assert says in said and "Traceback" not in said
    assert cli.run(["docter"]) == 2
    assert "Did you mean 'doctor'?" in capfd.readouterr().err


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "examination.schema.json").read_text()
    assert committed == json.dumps(model.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


def test_a_look_that_crashes_or_never_ends_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashes(surroundings: Surroundings) -> Iterable[Look]:
        raise RuntimeError("the card fell off")

    async def hangs(surroundings: Surroundings) -> Iterable[Look]:
        await anyio.sleep_forever()
        return ()

    odd = [catalog.Examiner("site", "site:crashes", crashes), catalog.Examiner("site", "site:hangs", hangs)]
    broken = catalog.Broken(catalog.CHECKS, "site", "site:gone", "AttributeError: gone")
    monkeypatch.setattr(catalog, "examiners", lambda: (tuple(odd), (broken,)))
    monkeypatch.setattr(examine.ways, "executors", lambda: ())
    monkeypatch.setattr(examine, "LATE_S", -0.8)
    found = examine.examine(environment={"HOME": "/none"}, stream=io.StringIO(), deadline_s=1.0)
    looks = {look.id: look for look in found.looks}
    assert looks["site:crashes"].said == "it crashed: RuntimeError: the card fell off"
    assert looks["site:hangs"].said.startswith("no answer within")
    assert looks["site:gone"].can is Can.UNKNOWN and "AttributeError" in looks["site:gone"].said
    assert looks["preflight"].can is Can.YES and not found.ways and found.lint and found.exit_code == 0


def summed(*looks: tuple[str, Can]) -> Examination:
    return examine.summed_up(tuple(Look(id, id, can, "") for id, can in looks))


def test_only_where_nothing_can_be_done_it_exits_with_1() -> None:
    nothing = summed(("packs.files", Can.NO), ("packs.rules", Can.NO), ("way.ssh", Can.NO))
    assert (nothing.exit_code, nothing.lint, nothing.check) == (1, False, False)
    assert telling.page(nothing, Style()).splitlines()[-1].startswith("CAN DO NOTHING")
    unknown = summed(("packs.files", Can.UNKNOWN), ("packs.rules", Can.YES))
    assert unknown.exit_code == 1, "unknown is no yes"
    nodes = summed(("packs.checks", Can.YES), ("way.ssh", Can.YES), ("training.x", Can.NO))
    assert (nodes.exit_code, nodes.check, nodes.smoke, nodes.ways) == (0, True, False, ("ssh",))
    assert summed(("packs.checks", Can.YES), ("way.ssh", Can.YES), ("training.x", Can.PARTLY)).smoke


def test_quiet_leaves_out_what_is_there_and_nothing_hostile_passes() -> None:
    looks = (Look("a", "a", Can.YES, "there"), Look("b", "b\x1b[31m", Can.NO, "gone\x07", "all", "get it\u202e"))
    shown = telling.page(Examination("0.1.0", looks, True, True, False, ("ssh",), 0), Style(verbosity=-1, color=True))
    assert "there" not in shown.replace("not there", "") and "lost" in shown
    assert not set("\x07\u202e") & set(shown) and "\x1b[31mb" not in shown

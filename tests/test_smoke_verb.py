"""`preflight smoke` over preflight's own agents: what it asks, what it refuses, and what it comes to."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import api, cli, selecting
from preflight.check_options import CheckOptions
from preflight.errors import UsageError
from preflight.exhibit import Bars, Layout, Timeline
from preflight.hosts import Hosts, hosts_of
from preflight.recording import Facts, Fleet, Node, NodeRecord, Wish
from preflight.reporters.base import Style
from preflight.reporters.page import page
from preflight.reporters.sarif import REPORTER as SARIF
from preflight.request import probe_name
from preflight.saved import load, save
from preflight.wish import job_of, read_drill
from tests.ports import free_port

RUN = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=lo
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$R" --master_addr=localhost --master_port={port} train.py
"""
HERE = ("--on", "local", "--hosts", "a,b", "--python", sys.executable)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a job that lint finds fault with: its two nodes meet at localhost."""
    (tmp_path / "run.sh").write_text(RUN.replace("{port}", str(free_port())))
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs_torch() -> None:
    pytest.importorskip("torch")


class Watched(Facts):
    """Facts that note which probes anybody looked at."""

    def __init__(self) -> None:
        super().__init__(())
        self.looked: set[str] = set()

    def each(self, probe: Callable[..., Any]) -> Iterator[Any]:
        """As of `Facts`, noted."""
        self.looked.add(probe_name(probe))
        return iter(super().each(probe))

    def of(self, probe: Callable[..., Any], node: str) -> Any:
        """As of `Facts`, noted."""
        self.looked.add(probe_name(probe))
        return super().of(probe, node)

    def observed(self, probe: Callable[..., Any]) -> Any:
        """As of `Facts`, noted."""
        self.looked.add(probe_name(probe))
        return super().observed(probe)


@pytest.mark.parametrize("wish", [Wish(), Wish(servers=2, workers=2)])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.77.0.1"])
def test_what_plans_of_the_smoke_run_look_at_is_declared(wish: Wish, address: str) -> None:
    checks = [check for check in selecting.checks_for(None) if check.when == "smoke"]
    declared = {probe_name(probe) for check in checks for probe in (*check.reads, *check.probes)}
    fleet = Fleet(tuple(NodeRecord(Node(name, i, address)) for i, name in enumerate("ab")), wish=wish)
    looked = Watched()
    for check in checks:
        list(check.plan(job_of(wish), fleet, looked))
    assert len(looked.looked) >= 2
    assert looked.looked <= declared, "nodes are not asked this where `preflight smoke` is all that runs"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name the job's files, or with --hosts"),
        (["--hosts", "a,b"], "pass --python PATH"),
        (["--hosts", "a", "--python", "python3", "--servers", "2"], "--servers and --workers go together"),
        (["run.sh", "--hosts", "a", "--servers", "2", "--workers", "2"], "for a run without a job"),
        (["run.sh", "--hosts", "a,b", "--mode", "ssp", "--staleness", "1"], "--mode, --staleness: about parameter"),
        (["--hosts", "a,b", "--python", "python3", "--geo-steps", "2"], "--servers N --workers M starts some"),
        (["run.sh", "--hosts", "a,b", "--backup"], "--backup: about parameter servers"),
        (
            ["--hosts", "a", "--python", "p", "--servers", "1", "--workers", "1", "--backup", "--mode", "sync"],
            "wait for every worker (--mode sync) none can be replaced",
        ),
        (["run.sh", "--to", "x"], "--to: only together with --as-launched"),
        (["run.sh", "--as-launched", "--hosts", "a"], "--hosts: not together with --as-launched"),
        (["run.sh", "--hosts", "a", "--prelude"], "it needs --trust-job too"),
        (["run.sh", "--hosts", "a", "--select", "RDV001"], "RDV001"),
    ],
)
def test_mistakes(arguments: list[str], says: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["smoke", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and says in err and "Traceback" not in err


def test_check_has_no_spare_worker_to_wait_where_nothing_is_served(folder: Path) -> None:
    with pytest.raises(UsageError, match="--backup: about parameter servers, and nothing says"):
        api.check(["run.sh"], CheckOptions(hosts="a,b", executor="local"), backup=True)


def test_nodes_that_nobody_reaches_leave_it_untold_and_say_why(folder: Path) -> None:
    options = CheckOptions(hosts="node[1-2].invalid", executor="ssh", python="python3")
    recording, report = api.smoke(["run.sh"], options)
    assert (report.exit_code, report.verdict.value) == (3, "incomplete")
    assert {outcome.id[:3] for outcome in report.outcomes} == {"SMK"}
    assert "no node could be reached (" in report.coverage.not_told[0].reason
    assert api.judge(recording).exit_code == 3


def test_the_verb_needs_a_job_in_its_paths(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="nothing to check"):
        api.smoke(["empty"], CheckOptions(hosts="a", executor="local", python=sys.executable))


def test_a_repository_of_jobs_is_refused_before_nodes_are_asked_for_all_of_them(folder: Path) -> None:
    many = folder / "many"
    many.mkdir()
    for number in range(api.MOST_JOBS + 1):
        (many / f"run{number}.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun train{number}.py\n")
    options = CheckOptions(hosts="a", executor="local", python=sys.executable)
    for verb in (api.check, api.smoke):
        with pytest.raises(UsageError, match=r"hold 33 jobs .*name the script"):
            verb(["many"], options)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_job_is_read_and_not_judged_and_its_ranks_train(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs_torch()
    assert cli.run(["lint", "run.sh"]) == 1, "lint has something to say of this job"
    capfd.readouterr()
    code = cli.run(["smoke", "run.sh", *HERE, "--save", "kept.json", "-o", "json"])
    found = json.loads(capfd.readouterr().out)
    assert (code, found["verdict"], found["run"]["verb"]) == (0, "go", "smoke")
    assert {outcome["id"][:3] for outcome in found["outcomes"]} == {"SMK"}
    assert [stage["name"] for stage in found["run"]["stages"]] == ["open", "node", "smoke"]
    recording = load((folder / "kept.json").read_bytes())
    asked = {record.request.probe.partition(":")[0] for record in recording.facts}
    assert "reference_trainer.collective" in asked
    assert len(asked) <= 8, f"only what the run needs is asked: {sorted(asked)}"
    again = api.judge(recording)
    assert (again.exit_code, [o.id for o in again.outcomes]) == (0, [o["id"] for o in found["outcomes"]])


@pytest.mark.smoke
@pytest.mark.slow
def test_servers_and_workers_without_any_job(folder: Path) -> None:
    needs_torch()
    wish = Wish(servers=1, workers=2, mode="ssp", staleness=1)
    options = CheckOptions(hosts="a,b,c", executor="local", python=sys.executable)
    recording, report = api.smoke([], options, wish=wish)
    assert report.exit_code == 0, [outcome for outcome in report.outcomes if outcome.reason]
    ran = [record.request.params for record in recording.facts if record.request.group]
    assert [(params["role"], params["mode"], params["staleness"]) for params in ran] == [
        ("server", "ssp", 1),
        ("worker", "ssp", 1),
        ("worker", "ssp", 1),
    ]
    assert report.run.wish == wish
    passed = {outcome.id: outcome.subject for outcome in report.outcomes if outcome.status.value == "pass"}
    assert "ssp, as wished by --mode, at most 1 steps ahead" in passed["SMK021"]
    shown = {one.id: one for one in report.exhibits}
    steps, places, held = shown["smoke.steps"], shown["servers.placement"], shown["servers.bytes"]
    assert isinstance(steps, Timeline) and [lane.subject for lane in steps.lanes] == [
        "server 0",
        "worker 0",
        "worker 1",
    ]
    times = shown["smoke.step_times"]
    assert isinstance(times, Bars) and [(bar.label, bar.group) for bar in times.bars] == [
        *(("worker 0", "b"), ("worker 1", "c")),
    ]
    assert isinstance(places, Layout) and len(places.places) == 3
    assert isinstance(held, Bars) and [bar.label for bar in held.bars] == ["server 0"] and held.bars[0].value


@pytest.mark.smoke
@pytest.mark.slow
def test_runs_at_the_same_time_do_not_meet_each_other(folder: Path) -> None:
    needs_torch()
    with ExitStack() as held, ThreadPoolExecutor(2) as beside:
        for port in (29500, 6170):
            # Whoever has the default ports: nobody here needs them.
            with suppress(OSError):
                held.enter_context(socket.create_server(("", port)))
        wishes = (Wish(servers=1, workers=1), Wish())
        options = CheckOptions(hosts="a,b", executor="local", python=sys.executable)
        runs = [beside.submit(api.smoke, [], options, wish=wish) for wish in wishes]
        both = [run.result() for run in runs]
    for recording, report in both:
        assert report.exit_code == 0, [outcome for outcome in report.outcomes if outcome.reason]
        assert api.judge(load(save(recording))).outcomes == report.outcomes
    _, ranks = both[1]
    assert "master endpoint: 127.0.0.1, a free port reached by 2 ranks" in [o.subject for o in ranks.outcomes]


@pytest.mark.smoke
@pytest.mark.slow
def test_a_port_that_the_job_names_is_taken_as_it_is(folder: Path) -> None:
    needs_torch()
    with socket.create_server(("", 0)) as held:
        port = held.getsockname()[1]
        (folder / "run.sh").write_text(RUN.replace("{port}", str(port)))
        options = CheckOptions(hosts="a,b", executor="local", python=sys.executable)
        _, report = api.smoke(["run.sh"], options)
    assert report.exit_code == 1
    (finding,) = report.findings
    assert finding.id == "SMK004" and f"cannot listen on port {port}" in finding.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("explode", "there is no drill 'explode'; known are delay, loss"),
        ("kill:node1", "'node1' is nobody: rank2, worker1 or server0 is expected, as in kill:worker1@3"),
        ("loss:server0", "loss is played by a rank or worker, not by a server"),
    ],
)
def test_drills_that_cannot_be(text: str, says: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["smoke", "run.sh", "--hosts", "a,b", "--drill", text]) == 2
    assert says in capfd.readouterr().err


def test_one_process_of_a_run_plays_the_drill() -> None:
    def players(text: str, wish: Wish) -> list[tuple[str, Any]]:
        nodes = tuple(NodeRecord(Node(name, i, "127.0.0.1")) for i, name in enumerate("abc"))
        fleet = Fleet(nodes, wish=replace(wish, drill=read_drill(text)))
        requests = [
            request
            for check in selecting.checks_for(None)
            if check.meta.id in ("SMK001", "SMK021")
            for request in check.plan(job_of(wish), fleet, Facts())
        ]
        named = [(r, f"{r.params.get('role', 'rank')} {r.params.get('index', r.params['rank'])}") for r in requests]
        return [(name, r.params["drill"]) for r, name in named if "drill" in r.params]

    ranks, servers = Wish(), Wish(servers=2, workers=2)
    ((who, drill),) = players("kill", ranks)
    assert (who, drill["kind"]) == ("rank 2", "kill")
    ((who, drill),) = players("stop:rank0@7", ranks)
    assert (who, drill["kind"], drill["step"]) == ("rank 0", "stop", 7)
    assert [who for who, _ in players("flip:server1", servers)] == ["server 1"]
    assert [who for who, _ in players("loss", servers)] == ["worker 1"]
    assert players("kill:worker7", servers) == [] and players("kill:worker0", ranks) == []


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wish", "check", "says"),
    [
        ("kill:worker1", Wish(servers=1, workers=2, mode="async"), "SMK021", "drill: worker 1 on c was killed at "),
        ("loss:rank1", Wish(), "SMK002", "the contribution of rank 1 is missing"),
    ],
)
def test_a_drill_is_named_and_is_no_verdict(text: str, wish: Wish, check: str, says: str, folder: Path) -> None:
    needs_torch()
    options = CheckOptions(hosts="a,b,c", executor="local", python=sys.executable)
    recording, report = api.smoke([], options, wish=replace(wish, drill=read_drill(text)))
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert report.findings and {finding.severity.value for finding in report.findings} == {"info"}
    assert check in {finding.id for finding in report.findings}
    assert all("as expected of the drill" in finding.message for finding in report.findings)
    (named,) = [o.subject for o in report.outcomes if o.id == "SMK031" and o.status.value == "pass"]
    assert says in named
    kept = api.judge(load(save(recording)))
    assert kept.run.wish.drill == read_drill(text)
    shown = page(kept, Style())
    assert f"DRILL {text}: a fault was played in this run" in shown and "DRILL GO" in shown
    assert hosts_of(kept) == Hosts(passing=(), failing=(), untold=("a", "b", "c")), "it says nothing of the nodes"
    assert json.loads(SARIF.render(kept, Style()))["runs"][0]["properties"]["drill"] == text


def test_a_spare_worker_goes_where_the_least_runs_and_is_told_that_it_is_one() -> None:
    def planned(wish: Wish, id: str = "SMK021") -> list[Any]:
        fleet = Fleet(tuple(NodeRecord(Node(name, i, f"10.0.0.{i}")) for i, name in enumerate("abcd")), wish=wish)
        (check,) = (check for check in selecting.checks_for(None) if check.meta.id == id)
        return list(check.plan(job_of(wish), fleet, Facts()))

    wish = Wish(servers=1, workers=2, mode="async", backup=True)
    *others, spare = planned(wish)
    assert planned(wish, "SMK028") == planned(wish) and planned(replace(wish, backup=False), "SMK028") == []
    assert [request.node for request in (*others, spare)] == ["a", "b", "c", "d"]
    assert (spare.params["spare"], spare.params["role"], spare.params["rank"]) == (True, "worker", 3)
    assert {request.params["spares"] for request in (*others, spare)} == {1}
    assert {tuple(request.params["numbers"]["spare"]) for request in (*others, spare)} == {(3,)}
    assert not any("spare" in request.params for request in others)
    for without in (replace(wish, backup=False), replace(wish, mode="sync")):
        assert len(planned(without)) == 3 and not any("spares" in request.params for request in planned(without))
    (drilled,) = [r for r in planned(replace(wish, drill=read_drill("kill"))) if "drill" in r.params]
    assert (drilled.params["role"], drilled.params["index"], "spare" in drilled.params) == ("worker", 1, False)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_run_goes_on(folder: Path) -> None:
    needs_torch()
    options = CheckOptions(hosts="a,b,c,d", executor="local", python=sys.executable)
    wish = Wish(servers=1, workers=2, mode="async", backup=True, drill=read_drill("kill:worker1@7"))
    recording, report = api.smoke([], options, wish=wish)
    assert (report.exit_code, report.verdict.value) == (0, "go"), [f.message for f in report.findings]
    (finding,) = report.findings
    assert (finding.id, finding.severity.value, finding.nodes) == ("SMK028", "info", ("c",))
    assert "worker 1 on c was killed by SIGKILL at step 7 of the phase with known gradients" in finding.message
    assert "spare 0 on d took its place" in finding.message and "the run came to its end" in finding.message
    passed = {outcome.id: outcome.subject for outcome in report.outcomes if outcome.status.value == "pass"}
    assert {"SMK021", "SMK022", "SMK023", "SMK024", "SMK025", "SMK027", "SMK031"} <= set(passed)
    assert "80 pushes, each applied once" in passed["SMK025"] and "spare 0 on d took its place" in passed["SMK031"]
    again = api.judge(load(save(recording)))
    assert [finding.message for finding in again.findings] == [finding.message]


@pytest.mark.smoke
@pytest.mark.slow
def test_a_drill_that_nobody_can_play_leaves_it_untold(folder: Path) -> None:
    needs_torch()
    options = CheckOptions(hosts="a", executor="local", python=sys.executable)
    _, report = api.smoke([], options, wish=Wish(drill=read_drill("kill:rank5")))
    assert (report.exit_code, report.findings) == (3, ())
    assert "nobody could play kill:rank5: rank 0 took part" in [o.reason for o in report.coverage.not_told]

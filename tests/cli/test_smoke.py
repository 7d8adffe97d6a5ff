"""`preflight smoke` over preflight's own agents: its requests, rejected options, and results."""

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

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.engine.report import Hosts, hosts_of
from preflight.model.charts import Bars, Layout, Timeline
from preflight.model.configuration import RunOptions, job_of, parse_injected_fault
from preflight.model.recording import Facts, Fleet, Node, NodeRecord, SmokeOptions
from preflight.model.recording_io import load, save
from preflight.model.requests import probe_name
from preflight.plugins import installed
from preflight.reporters.base import Style
from preflight.reporters.sarif import REPORTER as SARIF
from preflight.reporters.text.full_report import page
from tests.ports import free_port

RUN = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=lo
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$R" --master_addr=localhost --master_port={port} train.py
"""
HERE = ("--on", "local", "--hosts", "a,b", "--python", sys.executable)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a job that lint rejects: its two nodes use localhost for the rendezvous."""
    (tmp_path / "run.sh").write_text(RUN.replace("{port}", str(free_port())))
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs_torch() -> None:
    pytest.importorskip("torch")


class RecordingFacts(Facts):
    """Facts that record which probes were read."""

    def __init__(self) -> None:
        super().__init__(())
        self.read_probes: set[str] = set()

    def each(self, probe: Callable[..., Any]) -> Iterator[Any]:
        """Like the method of `Facts`, and recorded."""
        self.read_probes.add(probe_name(probe))
        return iter(super().each(probe))

    def of(self, probe: Callable[..., Any], node: str) -> Any:
        """Like the method of `Facts`, and recorded."""
        self.read_probes.add(probe_name(probe))
        return super().of(probe, node)

    def observed(self, probe: Callable[..., Any]) -> Any:
        """Like the method of `Facts`, and recorded."""
        self.read_probes.add(probe_name(probe))
        return super().observed(probe)


@pytest.mark.parametrize("smoke_options", [SmokeOptions(), SmokeOptions(servers=2, workers=2)])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.77.0.1"])
def test_smoke_checks_declare_the_probes_that_their_plans_read(smoke_options: SmokeOptions, address: str) -> None:
    checks = [check for check in installed.checks_for(None) if check.when == "smoke"]
    declared = {probe_name(probe) for check in checks for probe in (*check.reads, *check.probes)}
    fleet = Fleet(tuple(NodeRecord(Node(name, i, address)) for i, name in enumerate("ab")), smoke_options=smoke_options)
    read_probes = RecordingFacts()
    for check in checks:
        list(check.plan(job_of(smoke_options), fleet, read_probes))
    assert len(read_probes.read_probes) >= 2
    assert read_probes.read_probes <= declared, "nodes are not asked this where `preflight smoke` is all that runs"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name the job's files, or pass the nodes with --hosts"),
        (["--hosts", "a,b"], "pass --python PATH"),
        (["--hosts", "a", "--python", "python3", "--servers", "2"], "--servers and --workers must be used together"),
        (["run.sh", "--hosts", "a", "--servers", "2", "--workers", "2"], "valid only without PATHS"),
        (["run.sh", "--hosts", "a,b", "--mode", "ssp", "--staleness", "1"], "--mode, --staleness is for parameter"),
        (
            ["--hosts", "a,b", "--python", "python3", "--geo-steps", "2"],
            "--servers N --workers M starts servers and workers",
        ),
        (["run.sh", "--hosts", "a,b", "--backup"], "--backup is for parameter servers"),
        (
            ["--hosts", "a", "--python", "p", "--servers", "1", "--workers", "1", "--backup", "--mode", "sync"],
            "does not work with --mode sync",
        ),
        (["run.sh", "--to", "x"], "--to: only valid with --as-launched"),
        (["run.sh", "--as-launched", "--hosts", "a"], "--hosts: not valid with --as-launched"),
        (["run.sh", "--hosts", "a", "--prelude"], "add --trust-job"),
        (["run.sh", "--hosts", "a", "--select", "RDV001"], "RDV001"),
    ],
)
def test_mistakes(arguments: list[str], expected: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["smoke", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and expected in err and "Traceback" not in err


def test_check_rejects_a_backup_worker_without_parameter_servers(folder: Path) -> None:
    with pytest.raises(UsageError, match="--backup is for parameter servers, but no file"):
        api.check(["run.sh"], RunOptions(hosts="a,b", executor="local", smoke=SmokeOptions(backup=True)))


def test_unreachable_nodes_make_the_smoke_run_incomplete_with_the_reason(folder: Path) -> None:
    options = RunOptions(hosts="node[1-2].invalid", executor="ssh", python="python3")
    recording, report = api.smoke(["run.sh"], options)
    assert (report.exit_code, report.verdict.value) == (3, "incomplete")
    assert {outcome.id[:3] for outcome in report.outcomes} == {"SMK"}
    assert "no node could be reached (" in report.coverage.unknown_outcomes[0].reason
    assert api.judge(recording).exit_code == 3


def test_smoke_needs_a_job_in_its_paths(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="no launch script or configuration was recognized"):
        api.smoke(["empty"], RunOptions(hosts="a", executor="local", python=sys.executable))


def test_too_many_jobs_are_rejected_before_nodes_are_queried(folder: Path) -> None:
    many = folder / "many"
    many.mkdir()
    for number in range(api.MAX_JOBS + 1):
        (many / f"run{number}.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun train{number}.py\n")
    options = RunOptions(hosts="a", executor="local", python=sys.executable)
    for verb in (api.check, api.smoke):
        with pytest.raises(UsageError, match=r"contain 33 jobs .*name the script"):
            verb(["many"], options)


@pytest.mark.thorough
def test_a_job_is_read_but_not_judged_and_its_ranks_train(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs_torch()
    assert main.run(["lint", "run.sh"]) == 1, "lint has something to say of this job"
    capfd.readouterr()
    code = main.run(["smoke", "run.sh", *HERE, "--save", "kept.json", "-o", "json"])
    found = json.loads(capfd.readouterr().out)
    assert (code, found["verdict"], found["run"]["verb"]) == (0, "go", "smoke")
    assert {outcome["id"][:3] for outcome in found["outcomes"]} == {"SMK"}
    assert [stage["name"] for stage in found["run"]["stages"]] == ["open", "node", "smoke"]
    recording = load((folder / "kept.json").read_bytes())
    asked = {record.request.probe.partition(":")[0] for record in recording.facts}
    assert "reference_trainer.collective.rank" in asked
    assert len(asked) <= 8, f"only what the run needs is asked: {sorted(asked)}"
    again = api.judge(recording)
    assert (again.exit_code, [o.id for o in again.outcomes]) == (0, [o["id"] for o in found["outcomes"]])


@pytest.mark.thorough
def test_servers_and_workers_without_any_job(folder: Path) -> None:
    needs_torch()
    smoke_options = SmokeOptions(servers=1, workers=2, mode="ssp", staleness=1)
    options = RunOptions(hosts="a,b,c", executor="local", python=sys.executable)
    recording, report = api.smoke([], replace(options, smoke=smoke_options))
    assert report.exit_code == 0, [outcome for outcome in report.outcomes if outcome.reason]
    ran = [record.request.params for record in recording.facts if record.request.group]
    assert [(params["role"], params["mode"], params["staleness"]) for params in ran] == [
        ("server", "ssp", 1),
        ("worker", "ssp", 1),
        ("worker", "ssp", 1),
    ]
    assert report.run.smoke_options == smoke_options
    passed = {outcome.id: outcome.subject for outcome in report.outcomes if outcome.status.value == "pass"}
    assert "ssp, as set by --mode, at most 1 steps ahead" in passed["SMK021"]
    shown = {one.id: one for one in report.charts}
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


@pytest.mark.thorough
def test_concurrent_runs_do_not_interfere(folder: Path) -> None:
    needs_torch()
    with ExitStack() as held, ThreadPoolExecutor(2) as beside:
        for port in (29500, 6170):
            # Other processes may hold the default ports; this run does not need them.
            with suppress(OSError):
                held.enter_context(socket.create_server(("", port)))
        wishes = (SmokeOptions(servers=1, workers=1), SmokeOptions())
        options = RunOptions(hosts="a,b", executor="local", python=sys.executable)
        runs = [beside.submit(api.smoke, [], replace(options, smoke=smoke_options)) for smoke_options in wishes]
        both = [run.result() for run in runs]
    for recording, report in both:
        assert report.exit_code == 0, [outcome for outcome in report.outcomes if outcome.reason]
        assert api.judge(load(save(recording))).outcomes == report.outcomes
    _, ranks = both[1]
    assert "master endpoint: 127.0.0.1, a free port reached by 2 ranks" in [o.subject for o in ranks.outcomes]


@pytest.mark.thorough
def test_a_port_of_the_job_is_used_unchanged(folder: Path) -> None:
    needs_torch()
    with socket.create_server(("", 0)) as held:
        port = held.getsockname()[1]
        (folder / "run.sh").write_text(RUN.replace("{port}", str(port)))
        options = RunOptions(hosts="a,b", executor="local", python=sys.executable)
        _, report = api.smoke(["run.sh"], options)
    assert report.exit_code == 1
    (finding,) = report.findings
    assert finding.id == "SMK004" and f"cannot listen on port {port}" in finding.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("explode", "unknown fault 'explode'; known faults: delay, loss"),
        ("kill:node1", "'node1' is not a process; expected rank2, worker1 or server0, as in kill:worker1@3"),
        ("loss:server0", "loss can be injected into a rank or worker, not into a server"),
    ],
)
def test_invalid_injected_faults(text: str, expected: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["smoke", "run.sh", "--hosts", "a,b", "--drill", text]) == 2
    assert expected in capfd.readouterr().err


def test_exactly_one_process_gets_the_injected_fault() -> None:
    def players(text: str, smoke_options: SmokeOptions) -> list[tuple[str, Any]]:
        nodes = tuple(NodeRecord(Node(name, i, "127.0.0.1")) for i, name in enumerate("abc"))
        fleet = Fleet(nodes, smoke_options=replace(smoke_options, injected_fault=parse_injected_fault(text)))
        requests = [
            request
            for check in installed.checks_for(None)
            if check.meta.id in ("SMK001", "SMK021")
            for request in check.plan(job_of(smoke_options), fleet, Facts())
        ]
        named = [(r, f"{r.params.get('role', 'rank')} {r.params.get('index', r.params['rank'])}") for r in requests]
        return [(name, r.params["injected_fault"]) for r, name in named if "injected_fault" in r.params]

    ranks, servers = SmokeOptions(), SmokeOptions(servers=2, workers=2)
    ((who, fault),) = players("kill", ranks)
    assert (who, fault["kind"]) == ("rank 2", "kill")
    ((who, fault),) = players("stop:rank0@7", ranks)
    assert (who, fault["kind"], fault["step"]) == ("rank 0", "stop", 7)
    assert [who for who, _ in players("flip:server1", servers)] == ["server 1"]
    assert [who for who, _ in players("loss", servers)] == ["worker 1"]
    assert players("kill:worker7", servers) == [] and players("kill:worker0", ranks) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "smoke_options", "check", "expected"),
    [
        (
            "kill:worker1",
            SmokeOptions(servers=1, workers=2, mode="async"),
            "SMK021",
            "injected fault: worker 1 on c was killed at ",
        ),
        ("loss:rank1", SmokeOptions(), "SMK002", "the contribution of rank 1 is missing"),
    ],
)
def test_an_injected_fault_is_reported_and_gives_no_verdict(
    text: str, smoke_options: SmokeOptions, check: str, expected: str, folder: Path
) -> None:
    needs_torch()
    options = RunOptions(hosts="a,b,c", executor="local", python=sys.executable)
    recording, report = api.smoke(
        [], replace(options, smoke=replace(smoke_options, injected_fault=parse_injected_fault(text)))
    )
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert report.findings and {finding.severity.value for finding in report.findings} == {"info"}
    assert check in {finding.id for finding in report.findings}
    assert all("as expected of the injected fault" in finding.message for finding in report.findings)
    (named,) = [o.subject for o in report.outcomes if o.id == "SMK031" and o.status.value == "pass"]
    assert expected in named
    kept = api.judge(load(save(recording)))
    assert kept.run.smoke_options.injected_fault == parse_injected_fault(text)
    shown = page(kept, Style())
    assert f"FAULT INJECTED ({text}): the options of this run requested it" in shown and "FAULT INJECTED GO" in shown
    assert hosts_of(kept) == Hosts(passing=(), failing=(), unknown=("a", "b", "c")), "it says nothing of the nodes"
    assert json.loads(SARIF.render(kept, Style()))["runs"][0]["properties"]["injected_fault"] == text


def test_a_backup_worker_runs_on_the_least_loaded_node() -> None:
    def planned(smoke_options: SmokeOptions, id: str = "SMK021") -> list[Any]:
        fleet = Fleet(
            tuple(NodeRecord(Node(name, i, f"10.0.0.{i}")) for i, name in enumerate("abcd")),
            smoke_options=smoke_options,
        )
        (check,) = (check for check in installed.checks_for(None) if check.meta.id == id)
        return list(check.plan(job_of(smoke_options), fleet, Facts()))

    smoke_options = SmokeOptions(servers=1, workers=2, mode="async", backup=True)
    *others, spare = planned(smoke_options)
    assert (
        planned(smoke_options, "SMK028") == planned(smoke_options)
        and planned(replace(smoke_options, backup=False), "SMK028") == []
    )
    assert [request.node for request in (*others, spare)] == ["a", "b", "c", "d"]
    assert (spare.params["spare"], spare.params["role"], spare.params["rank"]) == (True, "worker", 3)
    assert {request.params["spares"] for request in (*others, spare)} == {1}
    assert {tuple(request.params["numbers"]["spare"]) for request in (*others, spare)} == {(3,)}
    assert not any("spare" in request.params for request in others)
    for without in (replace(smoke_options, backup=False), replace(smoke_options, mode="sync")):
        assert len(planned(without)) == 3 and not any("spares" in request.params for request in planned(without))
    (faulty,) = [
        r
        for r in planned(replace(smoke_options, injected_fault=parse_injected_fault("kill")))
        if "injected_fault" in r.params
    ]
    assert (faulty.params["role"], faulty.params["index"], "spare" in faulty.params) == ("worker", 1, False)


@pytest.mark.thorough
def test_a_killed_worker_is_replaced_and_the_run_continues(folder: Path) -> None:
    needs_torch()
    options = RunOptions(hosts="a,b,c,d", executor="local", python=sys.executable)
    smoke_options = SmokeOptions(
        servers=1, workers=2, mode="async", backup=True, injected_fault=parse_injected_fault("kill:worker1@7")
    )
    recording, report = api.smoke([], replace(options, smoke=smoke_options))
    assert (report.exit_code, report.verdict.value) == (0, "go"), [f.message for f in report.findings]
    (finding,) = report.findings
    assert (finding.id, finding.severity.value, finding.nodes) == ("SMK028", "info", ("c",))
    assert "worker 1 on c was killed by SIGKILL at step 7 of the phase with known gradients" in finding.message
    assert "spare 0 on d took its place" in finding.message and "the run completed" in finding.message
    passed = {outcome.id: outcome.subject for outcome in report.outcomes if outcome.status.value == "pass"}
    assert {"SMK021", "SMK022", "SMK023", "SMK024", "SMK025", "SMK027", "SMK031"} <= set(passed)
    assert "80 pushes, each applied once" in passed["SMK025"] and "spare 0 on d took its place" in passed["SMK031"]
    again = api.judge(load(save(recording)))
    assert [finding.message for finding in again.findings] == [finding.message]


@pytest.mark.thorough
def test_an_injected_fault_without_a_target_is_unknown(folder: Path) -> None:
    needs_torch()
    options = RunOptions(hosts="a", executor="local", python=sys.executable)
    _, report = api.smoke([], replace(options, smoke=SmokeOptions(injected_fault=parse_injected_fault("kill:rank5"))))
    assert (report.exit_code, report.findings) == (3, ())
    assert "no process could run kill:rank5: rank 0 took part" in [o.reason for o in report.coverage.unknown_outcomes]

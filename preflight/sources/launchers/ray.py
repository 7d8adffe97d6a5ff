"""`ray start` and `ray job submit`.

The options are generated (preflight/tables). Source of defaults and of what excludes what: ray/scripts/scripts.py and
ray/_private/parameter.py, Ray 2.60.
"""

from __future__ import annotations

from preflight.job import Known, Launch, Plain, Strength, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.options import Scanned, generated, scan, text_of
from preflight.sources.launchers.programs import is_python, python_program
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_text, endpoint, state_unknown
from preflight.tables.ray_job_submit import RAY_JOB_SUBMIT
from preflight.tables.ray_start import RAY_START

_LOGGING = {"verbose": "-v --verbose"}
_START = generated(
    RAY_START,
    valued={"other": "--log-style --log-color", "redis_address": "--redis-address", "redis_port": "--redis-port"},
    flags=_LOGGING,
    abbreviations=False,
    interleaved=True,
)
_SUBMIT = generated(
    RAY_JOB_SUBMIT,
    valued={"other": "--log-style --log-color --verify --headers"},
    flags=_LOGGING,
    abbreviations=False,
)
_HEAD_PORT = 6379
#: Ports of single components, as RayParams.update_pre_selected_port compares them.
_PORTS = (
    "object_manager_port",
    "node_manager_port",
    "ray_client_server_port",
    "dashboard_port",
    "dashboard_agent_listen_port",
    "dashboard_agent_grpc_port",
    "runtime_env_agent_port",
    "metrics_export_port",
)


class RayReader:
    """Reads the lines that make a Ray cluster, or send a job to one."""

    name: str = "ray"
    names: tuple[str, ...] = ("ray",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State what kind of node is started, its ports and GPUs; or where the job is sent, and its program."""
        verbs = [text_of(word) for word in line.words[1:3]]
        if verbs[:1] == ["start"]:
            return self._start(line)
        if verbs == ["job", "submit"]:
            return self._submit(line, tree)
        return Reading()

    def _start(self, line: LaunchLine) -> Reading:
        scanned = scan(line.words[2:], _START)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        word = line.words[0]
        head = scanned.last("head")
        address = scanned.last("address", "redis_address")
        if head is not None:
            stating.given("ray_role", head, lambda _: Known("head"))
            port = scanned.last("port", "redis_port")
            if port is not None:
                stating.given("master_port", port, as_int)
            elif not scanned.incomplete:
                spelling = f"{word.spelling} start --head (without --port)"
                stating.say("master_port", Known(_HEAD_PORT), word.span, spelling, strength=Strength.DEFAULT)
            stating.given("master_addr", scanned.last("node_ip_address"), as_text)
        elif not scanned.incomplete:
            stating.say("ray_role", Known("worker"), word.span, f"{word.spelling} start")
            stating.given("ray_port", scanned.last("port"), as_int)
        if address is not None:
            stating.given("rendezvous_endpoint", address, as_text)
            host, number = endpoint(address.value, address.parts)
            stating.given("master_addr", address, lambda _: host)
            if number is not None:
                stating.given("master_port", address, lambda _: number)
        if not scanned.incomplete:
            block = scanned.last("block")
            stating.say("ray_block", Known(block is not None), (block or word).span, (block or word).spelling)
        stating.given("ray_num_gpus", scanned.last("num_gpus"), as_int)
        _state_ports(stating, scanned)
        state_unknown(stating, scanned)
        launch = Launch(
            id=line.launch_id,
            launcher=self.name,
            span=word.span,
            wrappers=line.wrappers,
            condition=line.command.condition,
        )
        return Reading(claims=tuple(stating.claims), launches=(launch,))

    def _submit(self, line: LaunchLine, tree: Tree) -> Reading:
        scanned = scan(line.words[3:], _SUBMIT)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        stating.say("ray_role", Known("submit"), line.words[0].span, line.words[0].spelling)
        stating.given("ray_submit_address", scanned.last("address"), as_text)
        stating.given("working_directory", scanned.last("working_dir"), as_text)
        state_unknown(stating, scanned)
        words, module = list(scanned.rest), False
        if is_python(words):
            found = python_program(words)
            words, module = (list(found.words), found.module) if found is not None else ([], False)
        program = started(line, self.name, words, tree, module=module)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


def _state_ports(stating: Stating, scanned: Scanned) -> None:
    for dest in _PORTS:
        stating.given("ray_port", scanned.last(dest), as_int)
    low, high = scanned.last("min_worker_port"), scanned.last("max_worker_port")
    first: Value = low.value if low is not None else Known(10002)
    last: Value = high.value if high is not None else Known(19999)
    if scanned.last("worker_port_list") is None and (low is not None or high is not None):
        stating.given("ray_worker_ports", low or high, lambda _: lift(_pair, as_int(first), as_int(last)))


def _pair(first: Plain, last: Plain) -> Plain:
    return (str(first), str(last))

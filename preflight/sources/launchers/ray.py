"""`ray start`, `ray job submit`, and `ray submit` to a cluster that `ray up` starts.

The options are generated (preflight/sources/tables). Source of defaults and of options that exclude each other:
ray/scripts/scripts.py and ray/_private/parameter.py, Ray 2.60.
"""

from __future__ import annotations

from dataclasses import replace

from preflight.model.job import Known, Launch, Plain, Reference, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    endpoint,
    state_launcher,
    state_options,
    state_unknown,
)
from preflight.sources.launchers.option_parser import (
    ScannedLine,
    generated_table,
    is_python,
    python_program,
    relative,
    scan,
    table,
    text_of,
)
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_text

_LOGGING = {"verbose": "-v --verbose"}
_START = generated_table(
    load_table("ray_start"),
    valued={"other": "--log-style --log-color", "redis_address": "--redis-address", "redis_port": "--redis-port"},
    flags=_LOGGING,
    abbreviations=False,
    interleaved=True,
)
_SUBMIT = generated_table(
    load_table("ray_job_submit"),
    valued={"other": "--log-style --log-color --verify --headers"},
    flags=_LOGGING,
    abbreviations=False,
)
_SUBMIT_TO_FILE = table(
    {"other": "--log-style --log-color --log-level --cluster-name -n --port-forward -p --args"},
    {"help": "-h --help", "switch": "--stop --start --screen --tmux --no-config-cache", **_LOGGING},
)
_HEAD_PORT = 6379
#: Ports of components that RayParams.update_pre_selected_port requires to be distinct.
_PORTS = (
    *("object_manager_port", "node_manager_port", "ray_client_server_port", "dashboard_port"),
    *("dashboard_agent_listen_port", "dashboard_agent_grpc_port", "runtime_env_agent_port", "metrics_export_port"),
)


class RayReader:
    """Reads the commands that form a Ray cluster or submit a job to one."""

    name: str = "ray"
    names: tuple[str, ...] = ("ray",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the kind of node that is started, its ports and GPUs; or the cluster's address and the program."""
        subcommands = [text_of(word) for word in line.words[1:3]]
        if subcommands[:1] == ["start"]:
            return self._start(line)
        if subcommands == ["job", "submit"]:
            return self._submit(line, tree)
        if subcommands[:1] == ["submit"]:
            return self._submit_to_file(line, tree)
        return Reading()

    def _start(self, line: LaunchLine) -> Reading:
        scanned = scan(line.words[2:], _START)
        if scanned.last("help") is not None:
            return Reading()
        if any(isinstance(each.value, Unresolved) for each in scanned.rest):
            # `ray start` takes options only, so that an unknown word is one of them.
            scanned = replace(scanned, incomplete=True)
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        word = line.words[0]
        head = scanned.last("head")
        address = scanned.last("address", "redis_address")
        if head is not None:
            builder.add_setting("ray_role", head, lambda _: Known("head"))
            port = scanned.last("port", "redis_port")
            if port is not None:
                builder.add_setting("master_port", port, as_int)
            elif not scanned.incomplete:
                spelling = f"{word.spelling} start --head (without --port)"
                builder.add("master_port", Known(_HEAD_PORT), word.span, spelling, strength=Strength.DEFAULT)
            builder.add_setting("master_addr", scanned.last("node_ip_address"), as_text)
        elif not scanned.incomplete:
            builder.add("ray_role", Known("worker"), word.span, f"{word.spelling} start")
            builder.add_setting("ray_port", scanned.last("port"), as_int)
        if address is not None:
            builder.add_setting("rendezvous_endpoint", address, as_text)
            host, number = endpoint(address.value, address.parts)
            builder.add_setting("master_addr", address, lambda _: host)
            if number is not None:
                builder.add_setting("master_port", address, lambda _: number)
        if not scanned.incomplete:
            block = scanned.last("block")
            builder.add("ray_block", Known(block is not None), (block or word).span, (block or word).spelling)
        state_options(builder, "ray-start", scanned.last)
        _state_ports(builder, scanned)
        state_unknown(builder, scanned)
        state_launcher(builder, "ray_start", word, scanned)
        launch = Launch(
            id=line.launch_id,
            launcher=self.name,
            span=word.span,
            wrappers=line.wrappers,
            condition=line.command.condition,
        )
        return Reading(claims=tuple(builder.claims), launches=(launch,))

    def _submit(self, line: LaunchLine, tree: Tree) -> Reading:
        scanned = scan(line.words[3:], _SUBMIT)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        builder.add("ray_role", Known("submit"), line.words[0].span, line.words[0].spelling)
        state_options(builder, "ray-submit", scanned.last)
        state_unknown(builder, scanned)
        state_launcher(builder, "ray_job_submit", line.words[0], scanned)
        words, module = list(scanned.rest), False
        if is_python(words):
            found = python_program(words)
            words, module = (list(found.words), found.module) if found is not None else ([], False)
        program = read_program(line, self.name, words, tree, module=module)
        return program.reading(builder.claims)

    def _submit_to_file(self, line: LaunchLine, tree: Tree) -> Reading:
        scanned = scan(line.words[2:], _SUBMIT_TO_FILE)
        if scanned.last("help") is not None or len(scanned.rest) < 2:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        cluster, *words = scanned.rest
        builder.add("ray_role", Known("submit"), line.words[0].span, line.words[0].spelling)
        target = relative(text_of(cluster) or "", line, tree)
        words = [word for word in words if text_of(word) != "--"]
        file = Reference(target, "cluster", cluster.span, line.scope) if target is not None else None
        return read_program(line, self.name, words, tree).reading(builder.claims, (file,) if file is not None else ())


def _state_ports(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    for dest in _PORTS:
        builder.add_setting("ray_port", scanned.last(dest), as_int)
    low, high = scanned.last("min_worker_port"), scanned.last("max_worker_port")
    first: Value = low.value if low is not None else Known(10002)
    last: Value = high.value if high is not None else Known(19999)
    if scanned.last("worker_port_list") is None and (low is not None or high is not None):
        builder.add_setting("ray_worker_ports", low or high, lambda _: lift(_port_range, as_int(first), as_int(last)))


def _port_range(first: Plain, last: Plain) -> Plain:
    return (str(first), str(last))

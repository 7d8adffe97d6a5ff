"""`python -m paddle.distributed.launch` and `fleetrun`, collective and parameter-server, all generations.

The options are generated (preflight/tables). Sources of the rest: paddle/distributed/launch/context/args_envs.py and
controllers/{collective,ps}.py (PaddlePaddle 3.x), and paddle/distributed/fleet/launch.py (2.0 to 2.2), whose flags 3.x
still takes in its legacy mode. Unlike elsewhere a variable wins over its option: `set_env_in_args` overwrites the
parsed options.
"""

from __future__ import annotations

from preflight.job import Known, Plain, Relation, Strength, Unresolved, Value, alternatives, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.options import Scanned, generated, scan, texts
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import (
    Said,
    Stating,
    as_strings,
    as_text,
    count_of,
    endpoint,
    first_of,
    node_range,
    said,
    said_by,
)
from preflight.tables.paddle_fleet_launch import PADDLE_FLEET_LAUNCH
from preflight.tables.paddle_launch import PADDLE_LAUNCH

_OPTIONS = generated(
    PADDLE_LAUNCH,
    PADDLE_FLEET_LAUNCH,
    renamed={
        "np": "nnodes",
        "gpus": "devices",
        "xpus": "devices",
        "elastic_server": "master",
        "workers": "trainers",
        "worker_num": "trainer_num",
    },
    # Of the launchers of Paddle 1.x (paddle/distributed/launch.py and launch_ps.py, 1.8).
    valued={
        "ips": "--cluster_node_ips",
        "host": "--node_ip",
        "start_port": "--started_port",
        "devices": "--selected_devices",
        "master": "--etcd_server",
        "endpoints": "--endpoints",
        "ranks": "--ranks",
        "rank_mapping": "--enable_rank_mapping",
    },
    flags={"use_paddlecloud": "--use_paddlecloud", "print_config": "--print_config"},
)
#: args_envs.py, `env_args_mapping`.
_VARIABLES = {
    "host": "POD_IP",
    "master": "PADDLE_MASTER",
    "devices": "PADDLE_DEVICES",
    "nnodes": "PADDLE_NNODES",
    "run_mode": "PADDLE_RUN_MODE",
    "nproc_per_node": "PADDLE_NPROC_PER_NODE",
    "job_id": "PADDLE_JOB_ID",
    "rank": "PADDLE_RANK",
    "max_restart": "PADDLE_MAX_RESTART",
    "server_num": "PADDLE_SERVER_NUM",
    "trainer_num": "PADDLE_TRAINER_NUM",
    "servers": "PADDLE_SERVERS_ENDPOINTS",
    "trainers": "PADDLE_TRAINERS_ENDPOINTS",
    "start_port": "PADDLE_START_PORT",
    "ips": "PADDLE_IPS",
}
_PS_ONLY = (
    "servers",
    "trainers",
    "heter_workers",
    "server_num",
    "trainer_num",
    "heter_worker_num",
    "http_port",
)


class PaddleReader:
    """Reads the line of Paddle's launcher."""

    name: str = "paddle"
    names: tuple[str, ...] = (
        "fleetrun",
        "-m paddle.distributed.launch",
        "-m paddle.distributed.fleet.launch",
        "-m paddle.distributed.launch_ps",
        "-m paddle.distributed.launch.main",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes, master or servers and workers, and the program."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(line, self.name, scanned.rest, tree)
        settings = {dest: found for dest in _DESTS if (found := _in_force(dest, scanned, line)) is not None}
        if _is_parameter_server(settings, line):
            _state_servers(stating, settings, line)
        else:
            _state_collective(stating, settings, line, hidden=scanned.incomplete)
        stating.given("rendezvous_id", settings.get("job_id"), as_text)
        stating.given("max_restarts", settings.get("max_restart"), as_int)
        stating.given("backend", settings.get("backend"), as_text)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


_DESTS = tuple(dict.fromkeys(option.dest for option in _OPTIONS.options.values()))


def _in_force(dest: str, scanned: Scanned, line: LaunchLine) -> Said | None:
    environment = line.command.environment
    if dest == "rank" and "PADDLE_TRAINER_ID" in environment:
        return said_by(environment["PADDLE_TRAINER_ID"])
    variable = environment.get(_VARIABLES.get(dest, ""))
    return said_by(variable) or said(scanned.last(dest))


def _is_parameter_server(settings: dict[str, Said], line: LaunchLine) -> bool:
    mode = settings.get("run_mode")
    if mode is not None and texts(mode.value):
        return all(text.startswith("ps") for text in texts(mode.value))
    module = line.words[0].spelling.strip("\"'")
    if module.endswith("launch_ps"):
        return True
    return any(dest in settings and texts(settings[dest].value) != ("",) for dest in _PS_ONLY)


def _state_collective(stating: Stating, settings: dict[str, Said], line: LaunchLine, *, hidden: bool) -> None:
    word = line.words[0]
    ips = settings.get("ips")
    nnodes = settings.get("nnodes")
    if ips is not None and "master" not in settings:
        stating.given("hosts", ips, as_strings)
        stating.given("nodes", ips, lambda value: count_of(as_strings(value)), relation=Relation.REQUIRES)
    elif nnodes is not None:
        smallest, counts = node_range(nnodes.value)
        stating.given("nodes", nnodes, lambda _: counts, relation=Relation.REQUIRES)
        if any(":" in text for text in texts(nnodes.value)):
            stating.given("min_nodes", nnodes, lambda _: smallest)
    elif not hidden:
        spelling = f"{word.spelling} (without --nnodes)"
        stating.say("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
    if "nproc_per_node" in settings:
        stating.given("processes_per_node", settings["nproc_per_node"], as_int)
        # Each process is given one of the listed devices; a process beyond the list has none (launch/controllers).
        stating.given("gpus_per_node", settings.get("devices"), device_count)
    elif "devices" in settings:
        stating.given("processes_per_node", settings["devices"], device_count)
    if any(wrapper in ("srun", "mpirun", "mpiexec") for wrapper in line.wrappers):
        spelling = f"{word.spelling} (is started once on each node and starts the ranks itself)"
        stating.say("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)
    rank = _unless_negative(settings.get("rank"))
    stating.given("node_rank", rank, as_int)
    state_address(stating, settings.get("host"), ips, numbered=rank is not None)
    _state_master(stating, settings)


def state_address(stating: Stating, own: Said | None, ips: Said | None, *, numbered: bool = False) -> None:
    """The node's own address, and its rank: its place in the list of all nodes."""
    stating.given("node_address", own, as_text)
    if own is not None and ips is not None and not numbered:
        place = lift(_place, as_text(own.value), as_strings(ips.value))
        if not isinstance(place, Unresolved):
            stating.given("node_rank", own, lambda _: place)


def _place(own: Plain, nodes: Plain) -> Plain:
    if not isinstance(nodes, tuple) or len(nodes) < 2 or own not in nodes:
        raise ValueError(f"{own} is not in the list of nodes")
    return nodes.index(own)


def _state_master(stating: Stating, settings: dict[str, Said]) -> None:
    master = settings.get("master")
    if master is not None:
        stating.given("rendezvous_endpoint", master, as_text)
        scheme = {text.partition("://")[0] for text in texts(master.value) if "://" in text}
        stating.given("rendezvous_backend", master, lambda _: Known("etcd" if "etcd" in scheme else "http"))
        host, port = endpoint(lift(lambda item: str(item).rpartition("://")[2], master.value), master.parts)
        stating.given("master_addr", master, lambda _: host)
        if port is not None:
            stating.given("master_port", master, lambda _: port)
        return
    ips = settings.get("ips")
    if ips is not None:
        stating.given("master_addr", ips, lambda value: lift(first_of, as_strings(value)))
    stating.given("master_port", settings.get("start_port"), as_int)


def _state_servers(stating: Stating, settings: dict[str, Said], line: LaunchLine) -> None:
    first = next((settings[dest] for dest in ("run_mode", *_PS_ONLY) if dest in settings), None)
    place = first or Said(Known(True), line.words[0].span, line.words[0].spelling, Strength.FLAG)
    stating.given("ps_mode", place, lambda _: Known(True))
    for listed, counted, endpoints, number in (
        ("servers", "server_num", "ps_server_endpoints", "ps_servers"),
        ("trainers", "trainer_num", "ps_worker_endpoints", "ps_workers"),
    ):
        names = settings.get(listed)
        if names is not None and texts(names.value) != ("",):
            stating.given(endpoints, names, as_strings)
            stating.given(number, names, lambda value: count_of(as_strings(value)))
        count = settings.get(counted)
        if count is not None:
            relation = Relation.SETS if names is None else Relation.REQUIRES
            stating.given(number, count, lambda value: _per_node(as_int(value), settings), relation=relation)
    hosts = _hosts_of(settings)
    listed_by = settings.get("servers") or settings.get("trainers")
    if hosts and listed_by is not None:
        stating.given("hosts", listed_by, lambda _: Known(hosts))
        stating.given("nodes", listed_by, lambda _: Known(len(hosts)), relation=Relation.REQUIRES)
    elif "nnodes" in settings:
        stating.given("nodes", settings["nnodes"], lambda value: node_range(value)[1], relation=Relation.REQUIRES)
    stating.given("node_rank", _unless_negative(settings.get("rank")), as_int)
    if not hosts and "ips" in settings:
        stating.given("hosts", settings["ips"], as_strings)
    stating.given("node_address", settings.get("host"), as_text)
    stating.given("gloo_http_port", settings.get("http_port") or settings.get("gloo_port"), as_int)
    _state_master(stating, settings)


def _per_node(count: Value, settings: dict[str, Said]) -> Value:
    """`--server_num` counts those of one node; with `--nnodes` there are as many on each."""
    nnodes = settings.get("nnodes")
    if nnodes is None or "servers" in settings:
        return count
    return lift(lambda each, nodes: int(str(each)) * int(str(nodes)), count, node_range(nnodes.value)[1])


def _hosts_of(settings: dict[str, Said]) -> tuple[str, ...]:
    """The hosts of the endpoint lists in first-seen order; empty where one is unknown."""
    found: list[str] = []
    for dest in ("servers", "trainers"):
        setting = settings.get(dest)
        if setting is None:
            continue
        lists = alternatives(as_strings(setting.value))
        if len(lists) != 1 or not isinstance(lists[0], tuple):
            return ()
        found.extend(str(item).rpartition(":")[0] or str(item) for item in lists[0])
    return tuple(dict.fromkeys(found))


def device_count(value: Value) -> Value:
    """How many devices a list such as `0,1,2` names."""

    def count(item: Plain) -> Plain:
        names = [part for part in str(item).split(",") if part.strip()]
        if not names or not all(part.strip().isdigit() for part in names):
            raise ValueError(f"{item}: no list of device numbers")
        return len(names)

    return lift(count, value)


def _unless_negative(setting: Said | None) -> Said | None:
    """-1 stands for "not given": the launcher then numbers nodes by arrival."""
    if setting is None or texts(setting.value) == ("-1",):
        return None
    if isinstance(setting.value, Unresolved) and not setting.spelling:
        return None
    return setting

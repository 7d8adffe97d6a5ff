"""`python train.py` itself, where srun, mpirun or exported variables make it a rank of a distributed job.

The variables of torch's `env://` rendezvous (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK; documentation
of torch.distributed.init_process_group) and of Paddle's role makers (paddle/distributed/fleet/base/role_maker.py;
TRAINING_ROLE, PADDLE_TRAINER_ID, PADDLE_PSERVERS_IP_PORT_LIST, POD_IP, PADDLE_PORT ...).
TF_CONFIG makes it one of TensorFlow's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from preflight.job import Known, Plain, Relation, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Variable
from preflight.sources.launchers.options import texts
from preflight.sources.launchers.programs import python_program
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_strings, as_text, count_of, endpoint, said_by

_RANKED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
_PADDLE_RANKED = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", "PADDLE_TRAINER_ID")
_PADDLE_PEERS = (
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_MASTER",
    "PADDLE_CURRENT_ENDPOINT",
)
#: Any of these makes a process one of Paddle's collective ranks, where it is no server or trainer.
_PADDLE_COLLECTIVE = ("PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM")


def has_ranks(environment: Mapping[str, Variable]) -> bool:
    """Whether these variables tell a process that it is one of several."""
    if "MASTER_ADDR" in environment and any(name in environment for name in _RANKED):
        return True
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return True
    if any(name in environment for name in ("TRAINING_ROLE", "PADDLE_TRAINERS_NUM", "TF_CONFIG")):
        return True
    return any(name in environment for name in _PADDLE_RANKED) and any(name in environment for name in _PADDLE_PEERS)


class PythonReader:
    """Reads `python train.py` in a distributed context; the caller has found that there is one."""

    name: str = "python"
    names: tuple[str, ...] = ("python", "python3")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State what the variables say about rank, world, rendezvous and roles."""
        found = python_program(line.words)
        if found is None:
            return Reading()
        launcher = next((w for w in reversed(line.wrappers) if w in ("srun", "mpirun", "horovodrun")), self.name)
        program = started(line, launcher, found.words, tree, module=found.module)
        stating = Stating("environment", line.scope, line.command.condition)
        environment = line.command.environment
        if _is_parameter_server(environment):
            _state_parameter_server(stating, environment)
        elif any(name in environment for name in _PADDLE_COLLECTIVE):
            _state_paddle(stating, environment)
        _state_torch(stating, environment)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


def _state_torch(stating: Stating, environment: Mapping[str, Variable]) -> None:
    say = _Variables(stating, environment)
    say("MASTER_ADDR", "master_addr", as_text)
    say("MASTER_PORT", "master_port", as_int)
    say("WORLD_SIZE", "world_size", as_int, relation=Relation.REQUIRES)
    say("RANK", "rank", as_int)
    say("LOCAL_RANK", "local_rank", as_int)
    say("NODE_RANK", "node_rank", as_int)


#: The list of servers, as Paddle's role maker reads it and as the scripts of its 1.x models read it themselves.
_SERVER_LISTS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")


def _first_set(names: tuple[str, ...], environment: Mapping[str, Variable]) -> str:
    """The first of the names that is set; the first of all when none is."""
    return next((name for name in names if name in environment), names[0])


def _is_parameter_server(environment: Mapping[str, Variable]) -> bool:
    return any(name in environment for name in ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", *_SERVER_LISTS))


def _state_parameter_server(stating: Stating, environment: Mapping[str, Variable]) -> None:
    say = _Variables(stating, environment)
    role_name = _first_set(("TRAINING_ROLE", "PADDLE_TRAINING_ROLE"), environment)
    servers_name = _first_set(_SERVER_LISTS, environment)
    say(role_name if role_name in environment else servers_name, "ps_mode", lambda _: Known(True))
    say(role_name, "ps_role", as_text)
    say(servers_name, "ps_server_endpoints", as_strings)
    say(servers_name, "ps_servers", lambda value: count_of(as_strings(value)))
    say("PADDLE_TRAINER_ENDPOINTS", "ps_worker_endpoints", as_strings)
    say("PADDLE_TRAINERS_NUM", "ps_workers", as_int)
    say("PADDLE_MASTER", "rendezvous_endpoint", as_text)
    say("PADDLE_CURRENT_ENDPOINT", "ps_current_endpoint", as_text)
    role = environment.get(role_name)
    address, port = environment.get("POD_IP"), environment.get("PADDLE_PORT")
    # Paddle's role maker reads the two for servers only; a trainer inherits them where one script starts both.
    is_trainer = role is not None and texts(role.value) == ("TRAINER",)
    own: Value | None = None
    if address is not None and port is not None:
        own = lift(lambda host, number: f"{host}:{number}", address.value, port.value)
        if "PADDLE_CURRENT_ENDPOINT" not in environment and not is_trainer:
            say("POD_IP", "ps_current_endpoint", lambda _: own or address.value)
    if role is not None and texts(role.value) in (("PSERVER",),):
        # A server finds its index by looking its own endpoint up in the list.
        servers = environment.get(servers_name)
        if own is not None and servers is not None:
            index = lift(_index_of, own, as_strings(servers.value))
            if not isinstance(index, Unresolved):
                say("POD_IP", "ps_index", lambda _: index)
    else:
        say("PADDLE_TRAINER_ID", "ps_index", as_int)


def _state_paddle(stating: Stating, environment: Mapping[str, Variable]) -> None:
    say = _Variables(stating, environment)
    say("PADDLE_TRAINER_ID", "rank", as_int)
    say("PADDLE_TRAINERS_NUM", "world_size", as_int, relation=Relation.REQUIRES)
    # The list makes as many ranks as it has entries; the number alone only says how many are waited for.
    relation = Relation.SETS if "PADDLE_TRAINERS_NUM" in environment else Relation.REQUIRES
    say("PADDLE_TRAINER_ENDPOINTS", "world_size", lambda v: count_of(as_strings(v)), relation=relation)
    if "PADDLE_MASTER" in environment:
        host, port = endpoint(environment["PADDLE_MASTER"].value)
        say("PADDLE_MASTER", "rendezvous_endpoint", as_text)
        say("PADDLE_MASTER", "master_addr", lambda _: host)
        if port is not None:
            say("PADDLE_MASTER", "master_port", lambda _: port)


class _Variables:
    """States a quantity from a variable, when there is one."""

    def __init__(self, stating: Stating, environment: Mapping[str, Variable]) -> None:
        self._stating = stating
        self._environment = environment

    def __call__(
        self,
        name: str,
        quantity: str,
        convert: Callable[[Value], Value],
        *,
        relation: Relation = Relation.SETS,
    ) -> None:
        self._stating.given(quantity, said_by(self._environment.get(name)), convert, relation=relation)


def _index_of(own: Plain, servers: Plain) -> Plain:
    if not isinstance(servers, tuple) or own not in servers:
        raise ValueError(f"{own} is not in the list of servers")
    return servers.index(own)

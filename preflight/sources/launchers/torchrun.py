"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`.

The options are generated (preflight/tables). Source of defaults and precedence: torch/distributed/run.py, launch.py and
argparse_util.py of torch 2.13.
An option wins over `PET_<OPTION>` in the environment, and that over the default. torchrun does *not* read
MASTER_ADDR or MASTER_PORT: without `--master-addr` the rendezvous of `--nnodes=2` is at 127.0.0.1, whatever the
script exports.
"""

from __future__ import annotations

from preflight.job import Known, Relation, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Variable
from preflight.sources.launchers.options import generated, scan, texts
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import (
    Said,
    Stating,
    as_text,
    endpoint,
    node_range,
    said,
    said_by,
    state_choices,
    state_unknown,
)
from preflight.tables.torch_launch import TORCH_LAUNCH
from preflight.tables.torchrun import TORCHRUN

_LEGACY = "torch.distributed.launch"
_OPTIONS = generated(TORCHRUN, TORCH_LAUNCH)
#: What torchrun takes when neither option nor variable says anything.
_STATIC_PORT = 29500
_C10D_PORT = 29400
_DEVICE_WORDS = ("gpu", "cpu", "auto", "xpu")


class TorchrunReader:
    """Reads the line of torchrun and its older spellings."""

    name: str = "torchrun"
    names: tuple[str, ...] = (
        "torchrun",
        "-m torch.distributed.run",
        "-m torch.distributed.launch",
        "-m torch.distributed.elastic.run",
        # Descendants of the older one, with the same options and some more.
        "-m bagua.distributed.launch",
        "-m bagua.distributed.run",
        "-m oneflow.distributed.launch",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes, rendezvous and program of the line."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        launcher = line.words[0].spelling.strip("\"'")
        legacy = launcher.endswith((_LEGACY, "torch/distributed/launch.py")) and scanned.last("use_env") is None
        stating = Stating("torchrun", line.scope, line.command.condition)
        program = started(
            line,
            _LEGACY if legacy else self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        settings = _Settings(line, {given.dest: said(given) for given in scanned.given}, scanned.incomplete)
        if not launcher.startswith(("bagua", "oneflow")):
            state_unknown(stating, scanned)
            state_choices(stating, scanned, TORCHRUN)
        _state_counts(stating, settings, line)
        _state_rendezvous(stating, settings)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


class _Settings:
    """Options and PET_ variables in force; `hidden` when the line may hold more options than were seen."""

    def __init__(self, line: LaunchLine, options: dict[str, Said | None], hidden: bool) -> None:
        self._options = options
        self._environment = line.command.environment
        self.hidden = hidden
        self.word = line.words[0]

    def get(self, dest: str) -> Said | None:
        """The setting: option before variable."""
        return self._options.get(dest) or said_by(self._variable(dest))

    def _variable(self, dest: str) -> Variable | None:
        return self._environment.get(f"PET_{dest.upper()}")

    @property
    def standalone(self) -> bool:
        """Whether a single-node rendezvous was asked for."""
        if self._options.get("standalone") is not None:
            return True
        variable = self._variable("standalone")
        return variable is not None and texts(variable.value) not in ((), ("0",), ("",))

    def default(self, stating: Stating, quantity: str, value: Value, option: str, *, relation: Relation) -> None:
        """State a default; the launcher's own word is its place."""
        if self.hidden:
            return
        spelling = f"{self.word.spelling} (without {option})"
        stating.say(quantity, value, self.word.span, spelling, strength=Strength.DEFAULT, relation=relation)


def _state_counts(stating: Stating, settings: _Settings, line: LaunchLine) -> None:
    nnodes = settings.get("nnodes")
    if nnodes is None:
        settings.default(stating, "nodes", Known(1), "--nnodes", relation=Relation.REQUIRES)
    else:
        smallest, counts = node_range(nnodes.value)
        stating.given("nodes", nnodes, lambda _: counts, relation=Relation.REQUIRES)
        if any(":" in text for text in texts(nnodes.value)):
            stating.given("min_nodes", nnodes, lambda _: smallest)
    nproc = settings.get("nproc_per_node")
    if nproc is None:
        settings.default(stating, "processes_per_node", Known(1), "--nproc-per-node", relation=Relation.SETS)
    else:
        stating.given("processes_per_node", nproc, _processes)
    one_each = nproc is not None and texts(nproc.value) == ("1",)
    if not one_each and any(wrapper in _PER_TASK for wrapper in line.wrappers):
        word = settings.word
        spelling = f"{word.spelling} (is started once on each node and starts the ranks itself)"
        stating.say("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)
    stating.given("max_restarts", settings.get("max_restarts"), as_int)
    stating.given("node_rank", settings.get("node_rank"), as_int)


_PER_TASK = ("srun", "mpirun", "mpiexec")


def _processes(value: Value) -> Value:
    found = texts(value)
    if any(text in _DEVICE_WORDS for text in found):
        return Unresolved(f"{found[0]}: as many processes as the node has devices")
    return as_int(value)


def _state_rendezvous(stating: Stating, settings: _Settings) -> None:
    if settings.standalone:
        flag = settings.get("standalone")
        place = flag or Said(Known(True), settings.word.span, settings.word.spelling, Strength.FLAG)
        stating.given("standalone", place, lambda _: Known(True))
        stating.given("rendezvous_backend", place, lambda _: Known("c10d"))
        return
    backend = settings.get("rdzv_backend")
    stating.given("rendezvous_backend", backend, as_text)
    stating.given("rendezvous_conf", settings.get("rdzv_conf"), as_text)
    stating.given("local_addr", settings.get("local_addr"), as_text)
    stating.given("rendezvous_id", settings.get("rdzv_id"), as_text)
    if backend is None:
        settings.default(stating, "rendezvous_backend", Known("static"), "--rdzv-backend", relation=Relation.SETS)
    kinds = texts(backend.value) if backend is not None else ("static",)
    if kinds == ("static",) and settings.get("node_rank") is None:
        settings.default(stating, "node_rank", Known(0), "--node-rank", relation=Relation.SETS)
    given = settings.get("rdzv_endpoint")
    if kinds and (kinds != ("static",) or (given is not None and texts(given.value) != ("",))):
        stating.given("unused_master_addr", settings.get("master_addr"), as_text)
        stating.given("unused_master_port", settings.get("master_port"), as_int)
    if given is not None and texts(given.value) != ("",):
        _state_endpoint(stating, settings, given, kinds)
    elif kinds == ("static",):
        _state_master(stating, settings)
    elif kinds == ("c10d",):
        settings.default(stating, "master_addr", Known("localhost"), "--rdzv-endpoint", relation=Relation.SETS)
        settings.default(stating, "master_port", Known(_C10D_PORT), "--rdzv-endpoint", relation=Relation.SETS)


def _state_endpoint(stating: Stating, settings: _Settings, given: Said, kinds: tuple[str, ...]) -> None:
    stating.given("rendezvous_endpoint", given, as_text)
    host, port = endpoint(given.value, given.parts)
    stating.given("master_addr", given, lambda _: host)
    if port is not None:
        stating.given("master_port", given, lambda _: port)
    elif kinds == ("c10d",):
        spelling = f"{given.spelling} (no port: c10d takes {_C10D_PORT})"
        stating.say("master_port", Known(_C10D_PORT), given.span, spelling, strength=Strength.DEFAULT)


def _state_master(stating: Stating, settings: _Settings) -> None:
    address = settings.get("master_addr")
    nnodes = settings.get("nnodes")
    if settings.get("master_port") is None and (nnodes is None or texts(nnodes.value) in (("1",), ("1:1",))):
        # One node and no port: torchrun takes localhost and any free port, as with --standalone.
        stating.given("master_addr", address, as_text)
        return
    if address is None:
        settings.default(stating, "master_addr", Known("127.0.0.1"), "--master-addr", relation=Relation.SETS)
    else:
        stating.given("master_addr", address, lambda value: lift(lambda item: str(item).strip("[]"), value))
    port = settings.get("master_port")
    if port is None:
        settings.default(stating, "master_port", Known(_STATIC_PORT), "--master-port", relation=Relation.SETS)
    else:
        stating.given("master_port", port, as_int)

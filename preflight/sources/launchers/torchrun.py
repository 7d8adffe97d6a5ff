"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`.

The options are generated (preflight/sources/tables). Source of defaults and precedence: torch/distributed/run.py,
launch.py and argparse_util.py of torch 2.13. An option overrides `PET_<OPTION>` in the environment, which overrides the
default. torchrun does *not* read MASTER_ADDR or MASTER_PORT: without `--master-addr` the rendezvous of `--nnodes=2` is
at 127.0.0.1, whatever the script exports.
"""

from __future__ import annotations

from preflight.model.job import Known, Relation, Strength, Unresolved, Value, as_int, lift
from preflight.model.job.value import Symbol
from preflight.sources.base import LaunchLine, Reading, Tree, Variable
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    Setting,
    endpoint,
    node_range,
    option_setting,
    rejected_range,
    state_choices,
    state_launcher,
    state_single_start,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import generated_table, scan, texts
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_text

_LEGACY = "torch.distributed.launch"
_OPTIONS = generated_table(load_table("torchrun"))
_LEGACY_OPTIONS = generated_table(load_table("torchrun"), load_table("torch_launch"))
#: Ports that torchrun uses when neither an option nor a variable sets one.
_STATIC_PORT = 29500
_C10D_PORT = 29400
#: Launchers with torchrun's options and further ones.
_EXTENDED = ("bagua", "oneflow", "dlrover", "hyperpodrun")
#: Launchers whose ranks use the job's own master, which the operator starts.
_OWN_RENDEZVOUS = ("dlrover", "hyperpodrun")
_DEVICE_WORDS = ("gpu", "cpu", "auto", "xpu")


class TorchrunReader:
    """Reads the command line of torchrun and its older forms."""

    name: str = "torchrun"
    names: tuple[str, ...] = (
        "torchrun",
        "-m torch.distributed.run",
        "-m torch.distributed.launch",
        "-m torch.distributed.elastic.run",
        # Derived from torch.distributed.launch, with further options.
        "-m bagua.distributed.launch",
        "-m bagua.distributed.run",
        "-m oneflow.distributed.launch",
        # DLRover's and Amazon SageMaker HyperPod's, which take torchrun's options and some of their own.
        "dlrover-run",
        "-m dlrover.trainer.torch.main",
        "hyperpodrun",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes, rendezvous and program of the line."""
        launcher = line.words[0].spelling.strip("\"'")
        older = launcher.endswith(("distributed.launch", "distributed/launch.py"))
        scanned = scan(line.words[1:], _LEGACY_OPTIONS if older else _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        legacy = launcher.endswith((_LEGACY, "torch/distributed/launch.py")) and scanned.last("use_env") is None
        builder = ClaimBuilder("torchrun", line.scope, line.command.condition)
        program = read_program(
            line,
            _LEGACY if legacy else self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        settings = _Settings(line, {given.dest: option_setting(given) for given in scanned.given}, scanned.incomplete)
        if not launcher.rpartition("/")[2].startswith(_EXTENDED):
            state_unknown(builder, scanned)
            state_choices(builder, scanned, load_table("torchrun"))
            state_launcher(builder, "torchrun", line.words[0], scanned, line.command.environment, "PET_")
        if legacy and not scanned.incomplete:
            # torch/distributed/run.py passes it unless --use-env is given.
            word = line.words[0]
            builder.add("setting.torchrun.legacy", Known(True), word.span, word.spelling)
            builder.add_default("rank_argument", Known("--local-rank={local_rank}"), word, "--use-env")
        _state_counts(builder, settings, line)
        if not launcher.rpartition("/")[2].startswith(_OWN_RENDEZVOUS):
            _state_rendezvous(builder, settings)
        return program.reading(builder.claims)


class _Settings:
    """The options and PET_ variables that apply; `hidden` says that the line may have further options."""

    def __init__(self, line: LaunchLine, options: dict[str, Setting | None], hidden: bool) -> None:
        self._options = options
        self._environment = line.command.environment
        self.hidden = hidden
        self.word = line.words[0]

    def get(self, dest: str) -> Setting | None:
        """The setting from the option, otherwise from the variable."""
        return self._options.get(dest) or variable_setting(self._variable(dest))

    def _variable(self, dest: str) -> Variable | None:
        return self._environment.get(f"PET_{dest.upper()}")

    @property
    def standalone(self) -> bool:
        """Whether a single-node rendezvous was requested."""
        if self._options.get("standalone") is not None:
            return True
        variable = self._variable("standalone")
        return variable is not None and texts(variable.value) not in ((), ("0",), ("",))

    def default(self, builder: ClaimBuilder, quantity: str, value: Value, option: str, *, relation: Relation) -> None:
        """State a default, located at the launcher's word."""
        if self.hidden:
            return
        builder.add_default(quantity, value, self.word, option, relation=relation)


def _state_counts(builder: ClaimBuilder, settings: _Settings, line: LaunchLine) -> None:
    nnodes = settings.get("nnodes")
    if nnodes is None:
        settings.default(builder, "nodes", Known(1), "--nnodes", relation=Relation.REQUIRES)
    else:
        smallest, counts = node_range(nnodes.value)
        builder.add_setting("nodes", nnodes, lambda _: counts, relation=Relation.REQUIRES)
        if any(":" in text for text in texts(nnodes.value)):
            builder.add_setting("min_nodes", nnodes, lambda _: smallest)
        rejected = rejected_range(nnodes.value)
        if rejected is not None:
            builder.add_setting("rejected_node_range", nnodes, lambda _: Known(rejected))
    nproc = settings.get("nproc_per_node")
    if nproc is None:
        settings.default(builder, "processes_per_node", Known(1), "--nproc-per-node", relation=Relation.SETS)
    else:
        builder.add_setting("processes_per_node", nproc, _processes)
    one_each = nproc is not None and texts(nproc.value) == ("1",)
    if not one_each:
        state_single_start(builder, line)
    builder.add_setting("max_restarts", settings.get("max_restarts"), as_int)
    builder.add_setting("node_rank", settings.get("node_rank"), as_int)


def _processes(value: Value) -> Value:
    found = texts(value)
    if any(text in _DEVICE_WORDS for text in found):
        return Unresolved(f"{found[0]}: {Symbol.GPU_COUNT.value}")
    return as_int(value)


def _state_rendezvous(builder: ClaimBuilder, settings: _Settings) -> None:
    if settings.standalone:
        flag = settings.get("standalone")
        place = flag or Setting(Known(True), settings.word.span, settings.word.spelling, Strength.FLAG)
        builder.add_setting("standalone", place, lambda _: Known(True))
        builder.add_setting("rendezvous_backend", place, lambda _: Known("c10d"))
        return
    backend = settings.get("rdzv_backend")
    builder.add_setting("rendezvous_backend", backend, as_text)
    builder.add_setting("rendezvous_conf", settings.get("rdzv_conf"), as_text)
    builder.add_setting("local_addr", settings.get("local_addr"), as_text)
    builder.add_setting("rendezvous_id", settings.get("rdzv_id"), as_text)
    if backend is None:
        settings.default(builder, "rendezvous_backend", Known("static"), "--rdzv-backend", relation=Relation.SETS)
    kinds = texts(backend.value) if backend is not None else ("static",)
    if kinds == ("static",) and settings.get("node_rank") is None:
        settings.default(builder, "node_rank", Known(0), "--node-rank", relation=Relation.SETS)
    given = settings.get("rdzv_endpoint")
    if kinds and (kinds != ("static",) or (given is not None and texts(given.value) != ("",))):
        builder.add_setting("unused_master_addr", settings.get("master_addr"), as_text)
        builder.add_setting("unused_master_port", settings.get("master_port"), as_int)
    if given is not None and texts(given.value) != ("",):
        _state_endpoint(builder, given, kinds)
    elif kinds == ("static",):
        _state_master(builder, settings)
    elif kinds == ("c10d",):
        settings.default(builder, "master_addr", Known("localhost"), "--rdzv-endpoint", relation=Relation.SETS)
        settings.default(builder, "master_port", Known(_C10D_PORT), "--rdzv-endpoint", relation=Relation.SETS)


def _state_endpoint(builder: ClaimBuilder, given: Setting, kinds: tuple[str, ...]) -> None:
    builder.add_setting("rendezvous_endpoint", given, as_text)
    host, port = endpoint(given.value, given.parts)
    builder.add_setting("master_addr", given, lambda _: host)
    if port is not None:
        builder.add_setting("master_port", given, lambda _: port)
    elif kinds == ("c10d",):
        spelling = f"{given.spelling} (no port: c10d uses {_C10D_PORT})"
        builder.add("master_port", Known(_C10D_PORT), given.span, spelling, strength=Strength.DEFAULT)


def _state_master(builder: ClaimBuilder, settings: _Settings) -> None:
    address = settings.get("master_addr")
    nnodes = settings.get("nnodes")
    if settings.get("master_port") is None and (nnodes is None or texts(nnodes.value) in (("1",), ("1:1",))):
        # With one node and no port, torchrun uses localhost and any free port, as with --standalone.
        builder.add_setting("master_addr", address, as_text)
        return
    if address is None:
        settings.default(builder, "master_addr", Known("127.0.0.1"), "--master-addr", relation=Relation.SETS)
    else:
        builder.add_setting("master_addr", address, lambda value: lift(lambda item: str(item).strip("[]"), value))
    port = settings.get("master_port")
    if port is None:
        settings.default(builder, "master_port", Known(_STATIC_PORT), "--master-port", relation=Relation.SETS)
    else:
        builder.add_setting("master_port", port, as_int)

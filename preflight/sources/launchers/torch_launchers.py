"""Launchers of PyTorch: torchrun in its older and newer forms, TorchX, Lightning's fabric, Composer, Colossal-AI and
Determined's.

The options are generated (preflight/sources/tables). Source of defaults and precedence: torch/distributed/run.py,
launch.py and argparse_util.py of torch 2.13. An option overrides `PET_<OPTION>` in the environment, which overrides the
default. torchrun does *not* read MASTER_ADDR or MASTER_PORT: without `--master-addr` the rendezvous of `--nnodes=2` is
at 127.0.0.1, whatever the script exports.

The options are generated (preflight/sources/tables), except those of TorchX and Determined. Sources of their meaning,
their defaults and their precedence:

- TorchX 0.7: torchx/components/dist.py and cli/cmd_run.py
- Lightning: lightning/fabric/cli.py, `_torchrun_launch`
- Composer: composer/cli/launcher.py. An option overrides the variable of its name (NODE_RANK, MASTER_ADDR, ...).
- Colossal-AI: colossalai/cli/launcher/run.py
- Determined 0.38: determined/launch/torch_distributed.py, horovod.py and deepspeed.py. The launcher gets nodes, slots
  and addresses from the cluster, so the experiment's `slots_per_trial` is the number of ranks. `--trial` names a class
  instead of a program.
"""

from __future__ import annotations

from preflight.model.job import Known, Plain, Relation, Strength, Unresolved, Value, as_int, is_whole_number, lift
from preflight.model.job.value import SETTING_PREFIX, Symbol
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
    state_options,
    state_single_start,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import (
    ScannedLine,
    declared_table,
    file_references,
    generated_table,
    scan,
    table,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_strings, as_text, count_of

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
        builder.add_setting("processes_per_node", nproc, _torchrun_processes)
    one_each = nproc is not None and texts(nproc.value) == ("1",)
    if not one_each:
        state_single_start(builder, line)
    state_options(builder, "torchrun", settings.get)


def _torchrun_processes(value: Value) -> Value:
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
    state_options(builder, "torchrun-rendezvous", settings.get, settings.word, hidden=settings.hidden)
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


_RUN = declared_table("torchx-run")
_DDP = declared_table("torchx-ddp")
_COMPONENTS = ("dist.ddp", "dist.spmd", "torchx.components.dist:ddp")


class TorchxReader:
    """Reads the command line of torchx when it starts one of its distributed components."""

    name: str = "torchx"
    names: tuple[str, ...] = ("torchx",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes and program."""
        if len(line.words) < 3 or text_of(line.words[1]) != "run":
            return Reading()
        outer = scan(line.words[2:], _RUN)
        if not outer.rest or text_of(outer.rest[0]) not in _COMPONENTS:
            return Reading()
        inner = scan(outer.rest[1:], _DDP)
        program, module = inner.last("script"), inner.last("module")
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        size = inner.last("nodes")
        if size is not None:
            builder.add_setting("nodes", size, lambda value: lift(_nodes, value))
            builder.add_setting("nodes", size, lambda value: lift(_nodes, value), relation=Relation.REQUIRES)
            builder.add_setting("processes_per_node", size, lambda value: lift(_processes, value))
        state_options(builder, self.name, inner.last)
        given = ScannedLine((*outer.given, *inner.given), (), outer.incomplete or inner.incomplete)
        state_launcher(builder, "torchx", line.words[0], given)
        chosen = program or module
        words = [word for word in outer.rest if chosen is not None and text_of(word) in texts(chosen.value)]
        started = read_program(line, self.name, [*words[:1], *inner.rest], tree, module=program is None)
        return started.reading(builder.claims)


def _nodes(item: Plain) -> Plain:
    """The nodes in `2x8` and `1:2x8`; a number alone counts the processes of one node."""
    nodes, times, _ = str(item).partition("x")
    return int(nodes.rpartition(":")[2]) if times else 1


def _processes(item: Plain) -> Plain:
    _, times, processes = str(item).partition("x")
    return int(processes if times else str(item))


_FABRIC_OPTIONS = generated_table(load_table("fabric_run"), abbreviations=False)
_FABRIC_PORT = 29400


class FabricReader:
    """Reads the command line of Lightning Fabric's launcher."""

    name: str = "fabric"
    names: tuple[str, ...] = ("fabric", "lightning", "-m lightning", "-m lightning.fabric.cli", "-m lightning_fabric")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, devices, node rank and the address of the store; other subcommands launch nothing."""
        words = list(line.words[1:])
        if not words or text_of(words[0]) != "run":
            return Reading()
        words = words[1:]
        if words and text_of(words[0]) == "model":
            words = words[1:]
        scanned = scan(words, _FABRIC_OPTIONS)
        if scanned.last("help") is not None or not scanned.rest:
            return Reading()
        # Fabric also accepts its options after the script; the script's own options are ignored here.
        after_script = scan(scanned.rest[1:], _FABRIC_OPTIONS)
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(line, self.name, scanned.rest, tree)

        word, hidden = line.words[0], scanned.incomplete or after_script.incomplete
        state_options(
            builder, self.name, lambda dest: scanned.last(dest) or after_script.last(dest), word, hidden=hidden
        )
        nodes = scanned.last("num_nodes") or after_script.last("num_nodes")
        builder.add_setting("processes_per_node", scanned.last("devices") or after_script.last("devices"), _devices)
        several = nodes is not None and texts(nodes.value) not in (("1",), ())
        for dest, quantity, default in (
            ("main_address", "master_addr", Known("127.0.0.1")),
            ("main_port", "master_port", Known(_FABRIC_PORT)),
        ):
            found = scanned.last(dest) or after_script.last(dest)
            if found is not None:
                builder.add_setting(quantity, found, as_int if quantity == "master_port" else as_text)
            elif several and not hidden:
                builder.add_default(quantity, default, word, f"--{dest.replace('_', '-')}")
        state_single_start(builder, line, ("srun", "mpirun", "pdsh", "clush"))
        return program.reading(builder.claims)


def _devices(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item)
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not is_whole_number(text):
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return value if isinstance(value, Unresolved) else lift(count, value)


_COMPOSER_OPTIONS = generated_table(load_table("composer"))
_COMPOSER_VARIABLES = {
    "nproc": "LOCAL_WORLD_SIZE",
    "world_size": "WORLD_SIZE",
    "base_rank": "BASE_RANK",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


class ComposerReader:
    """Reads the command line of composer."""

    name: str = "composer"
    names: tuple[str, ...] = ("composer", "-m composer.cli.launcher", "-m composer")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State processes, world size, node rank and the address of the store."""
        scanned = scan(line.words[1:], _COMPOSER_OPTIONS)
        if scanned.last("help", "version") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module_mode") is not None,
            python=scanned.last("command_mode") is None,
        )
        found = {dest: _setting_in_force(dest, scanned, line) for dest in _COMPOSER_VARIABLES}
        state_options(builder, self.name, found.get)
        _state_world(builder, found["world_size"], found["nproc"], line, hidden=scanned.incomplete)
        state_unknown(builder, scanned)
        for dest, setting in {**_switches(scanned), **found}.items():
            builder.add_setting(f"{SETTING_PREFIX}composer_launch.{dest}", setting, _as_written)
        if scanned.incomplete:
            first = line.words[0]
            hidden = Unresolved("further options")
            builder.add(f"{SETTING_PREFIX}composer_launch.(call)", hidden, first.span, first.spelling)
        return program.reading(builder.claims)


def _switches(scanned: ScannedLine) -> dict[str, Setting | None]:
    return {dest: option_setting(scanned.last(dest)) for dest in ("module_mode", "command_mode")}


def _as_written(value: Value) -> Value:
    """A number where the text is one; a switch stays true."""
    return lift(lambda item: int(item) if isinstance(item, str) and item.isdigit() else item, value)


def _setting_in_force(dest: str, scanned: ScannedLine, line: LaunchLine) -> Setting | None:
    return option_setting(scanned.last(dest)) or variable_setting(
        line.command.environment.get(_COMPOSER_VARIABLES[dest])
    )


def _state_world(
    builder: ClaimBuilder, world: Setting | None, processes: Setting | None, line: LaunchLine, *, hidden: bool
) -> None:
    """State the world size and the number of nodes it needs; one node when it is not set."""
    if world is None:
        if not hidden:
            builder.add_default("nodes", Known(1), line.words[0], "--world_size", relation=Relation.REQUIRES)
        return
    total = as_int(world.value)
    builder.add_setting("world_size", world, lambda _: total, relation=Relation.REQUIRES)
    if processes is not None:
        group_size: Value = as_int(processes.value)
        builder.add_setting("nodes", world, lambda _: lift(_quotient, total, group_size), relation=Relation.REQUIRES)


def _quotient(total: Plain, group_size: Plain) -> Plain:
    groups, rest = divmod(int(str(total)), int(str(group_size)))
    if rest or not groups:
        raise ValueError(f"{total} ranks cannot be divided into groups of {group_size}")
    return groups


_COLOSSALAI_OPTIONS = generated_table(load_table("colossalai_run"), abbreviations=False, single_dash=True)


class ColossalReader:
    """Reads the command line of Colossal-AI's launcher."""

    name: str = "colossalai"
    names: tuple[str, ...] = ("colossalai",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts and the address of the store; refer to the hostfile."""
        if len(line.words) < 2 or text_of(line.words[1]) != "run":
            return Reading()
        scanned = scan(line.words[2:], _COLOSSALAI_OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(line, self.name, scanned.rest, tree, module=scanned.last("m") is not None)
        hosts, nodes = scanned.last("host"), scanned.last("num_nodes")
        if hosts is not None and texts(hosts.value) != ("",):
            builder.add_setting("hosts", hosts, as_strings, strength=Strength.SCHEDULER)
            builder.add_setting("nodes", hosts, lambda value: count_of(as_strings(value)), strength=Strength.SCHEDULER)
        if nodes is not None and texts(nodes.value) != ("-1",):
            builder.add_setting("nodes", nodes, as_int, relation=Relation.AT_LEAST)
        state_options(builder, self.name, scanned.last, line.words[0], hidden=scanned.incomplete)
        state_unknown(builder, scanned)
        state_launcher(builder, "colossalai_run", line.words[0], scanned)
        return program.reading(builder.claims, file_references(scanned.last("hostfile"), "hostfile", line, tree))


_DETERMINED_OPTIONS = table({"trial": "--trial", "other": "--hvd-args"}, {"flag": "--autohorovod"}, abbreviations=False)


class DeterminedReader:
    """Reads the command line of Determined's launch layers."""

    name: str = "determined"
    names: tuple[str, ...] = (
        "-m determined.launch.torch_distributed",
        "-m determined.launch.horovod",
        "-m determined.launch.deepspeed",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the program that runs on every slot."""
        scanned = scan(line.words[1:], _DETERMINED_OPTIONS)
        started = read_program(line, self.name, scanned.rest, tree, python=False)
        return started.reading()

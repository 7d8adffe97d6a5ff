"""Launchers of PyTorch: torchrun, `accelerate launch`, `deepspeed`, TorchX, Lightning's fabric, Composer and others.

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

import re
from collections.abc import Iterator

from preflight._util.secret_names import is_secret
from preflight.model.job import (
    Known,
    Plain,
    Reference,
    Relation,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    is_whole_number,
    lift,
)
from preflight.model.job.value import SETTING_PREFIX, Symbol
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree
from preflight.sources.configs.hugging_face import (
    ACCELERATE_ROLE,
    EACH_MACHINE,
    PARALLEL_SIZES,
    free_port,
    fsdp_setting,
    starts_by_deepspeed,
)
from preflight.sources.formats.structured import document_of
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    rejected_range,
    state_all_gpus,
    state_choices,
    state_endpoint,
    state_launcher,
    state_node_range,
    state_options,
    state_single_start,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    declared_options,
    declared_table,
    file_named,
    file_references,
    paths_of,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import StartedProgram, read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_strings, as_text, count_of

_LEGACY = "torch.distributed.launch"
_OPTIONS = declared_table("torchrun")
_LEGACY_OPTIONS = declared_table("torch-launch")
#: The port that torchrun uses with c10d when neither an option nor a variable sets one.
_C10D_PORT = 29400
#: Launchers with torchrun's options and further ones.
_EXTENDED = ("bagua", "oneflow", "dlrover", "hyperpodrun")
#: Launchers whose ranks use the job's own master, which the operator starts.
_OWN_RENDEZVOUS = ("dlrover", "hyperpodrun")
_DEVICE_WORDS = ("gpu", "cpu", "auto", "xpu")


def read_torchrun(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of torchrun and its older forms: nodes, processes, rendezvous and program."""
    launcher = line.words[0].spelling.strip("\"'")
    older = launcher.endswith(("distributed.launch", "distributed/launch.py"))
    scanned = scan(line.words[1:], _LEGACY_OPTIONS if older else _OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    legacy = launcher.endswith((_LEGACY, "torch/distributed/launch.py")) and scanned.last("use_env") is None
    builder = ClaimBuilder("torchrun", line.scope, line.command.condition)
    program = _program_of(line, _LEGACY if legacy else "torchrun", scanned, tree)
    settings = _Settings(line, scanned)
    if not launcher.rpartition("/")[2].startswith(_EXTENDED):
        state_unknown(builder, scanned)
        state_choices(builder, scanned, load_table("torchrun"))
        state_launcher(builder, "torchrun", line.words[0], scanned, line.command.environment, "PET_")
    if legacy and not scanned.incomplete:
        # torch/distributed/run.py passes it unless --use-env is given.
        word = line.words[0]
        builder.add("setting.torchrun.legacy", Known(True), word)
        builder.add_default("rank_argument", Known("--local-rank={local_rank}"), word, "--use-env")
    _state_counts(builder, settings, line)
    if not launcher.rpartition("/")[2].startswith(_OWN_RENDEZVOUS):
        _state_rendezvous(builder, settings)
    return program.reading(builder.claims)


def _program_of(line: LaunchLine, launcher: str, scanned: ScannedLine, tree: Tree) -> StartedProgram:
    """Return the program after the options, which say whether it is a module or needs no interpreter."""
    module, command = scanned.last("module", "module_mode"), scanned.last("no_python", "command_mode")
    return read_program(line, launcher, scanned.rest, tree, module=module is not None, python=command is None)


class _Settings:
    """The options and PET_ variables that apply; `hidden`: whether the line may have further options."""

    def __init__(self, line: LaunchLine, scanned: ScannedLine) -> None:
        self._scanned = scanned
        self._environment = line.command.environment
        self.hidden = scanned.incomplete
        self.word = line.words[0]

    def get(self, dest: str) -> GivenOption | None:
        """Return the option, otherwise the variable."""
        return self._scanned.last(dest) or variable_setting(self._environment.get(f"PET_{dest.upper()}"))

    @property
    def standalone(self) -> GivenOption | None:
        """Return the option that requests a single-node rendezvous."""
        given = self.get("standalone")
        is_off = given is not None and self._scanned.last("standalone") is None
        return None if given is not None and is_off and texts(given.value) in ((), ("0",), ("",)) else given

    def default(
        self,
        builder: ClaimBuilder,
        quantity: str,
        value: Plain,
        option: str,
        *,
        relation: Relation = Relation.SETS,
    ) -> None:
        """Add a claim for a default, located at the launcher's word."""
        if not self.hidden:
            builder.add_default(quantity, Known(value), self.word, option, relation=relation)


def _state_counts(builder: ClaimBuilder, settings: _Settings, line: LaunchLine) -> None:
    nnodes = settings.get("nnodes")
    if nnodes is None:
        settings.default(builder, "nodes", 1, "--nnodes", relation=Relation.REQUIRES)
    else:
        state_node_range(builder, nnodes)
        rejected = rejected_range(nnodes.value)
        if rejected is not None:
            builder.add_setting("rejected_node_range", nnodes, lambda _: Known(rejected))
    nproc = settings.get("nproc_per_node")
    if nproc is None:
        settings.default(builder, "processes_per_node", 1, "--nproc-per-node")
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
    if settings.standalone is not None:
        builder.add_setting("standalone", settings.standalone, lambda _: Known(True))
        builder.add_setting("rendezvous_backend", settings.standalone, lambda _: Known("c10d"))
        return
    backend = settings.get("rdzv_backend")
    state_options(builder, "torchrun-rendezvous", settings.get, settings.word, hidden=settings.hidden)
    kinds = texts(backend.value) if backend is not None else ("static",)
    if kinds == ("static",) and settings.get("node_rank") is None:
        settings.default(builder, "node_rank", 0, "--node-rank")
    given = settings.get("rdzv_endpoint")
    if kinds and (kinds != ("static",) or (given is not None and texts(given.value) != ("",))):
        builder.add_setting("unused_master_addr", settings.get("master_addr"), as_text)
        builder.add_setting("unused_master_port", settings.get("master_port"), as_int)
    if given is not None and texts(given.value) != ("",):
        _state_endpoint(builder, given, kinds)
    elif kinds == ("static",):
        _state_master(builder, settings)
    elif kinds == ("c10d",):
        settings.default(builder, "master_addr", "localhost", "--rdzv-endpoint")
        settings.default(builder, "master_port", _C10D_PORT, "--rdzv-endpoint")


def _state_endpoint(builder: ClaimBuilder, given: GivenOption, kinds: tuple[str, ...]) -> None:
    if state_endpoint(builder, given) is None and kinds == ("c10d",):
        spelling = f"{given.spelling} (no port: c10d uses {_C10D_PORT})"
        builder.add("master_port", Known(_C10D_PORT), given, spelling, strength=Strength.DEFAULT)


def _state_master(builder: ClaimBuilder, settings: _Settings) -> None:
    nnodes = settings.get("nnodes")
    if settings.get("master_port") is None and (nnodes is None or texts(nnodes.value) in (("1",), ("1:1",))):
        # With one node and no port, torchrun uses localhost and any free port, as with --standalone.
        builder.add_setting("master_addr", settings.get("master_addr"), as_text)
    else:
        state_options(builder, "torchrun-master", settings.get, settings.word, hidden=settings.hidden)


_RUN = declared_table("torchx-run")
_DDP = declared_table("torchx-ddp")
_COMPONENTS = ("dist.ddp", "dist.spmd", "torchx.components.dist:ddp")


def read_torchx(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of torchx when it starts one of its distributed components: sizes and program."""
    if len(line.words) < 3 or text_of(line.words[1]) != "run":
        return Reading()
    outer = scan(line.words[2:], _RUN)
    if not outer.rest or text_of(outer.rest[0]) not in _COMPONENTS:
        return Reading()
    inner = scan(outer.rest[1:], _DDP)
    program, module = inner.last("script"), inner.last("module")
    builder = ClaimBuilder("torchx", line.scope, line.command.condition)
    size = inner.last("nodes")
    if size is not None:
        builder.add_setting("nodes", size, lambda value: lift(_nodes, value))
        builder.add_setting("nodes", size, lambda value: lift(_nodes, value), relation=Relation.REQUIRES)
        builder.add_setting("processes_per_node", size, lambda value: lift(_processes, value))
    state_options(builder, "torchx", inner.last)
    given = ScannedLine((*outer.given, *inner.given), (), outer.incomplete or inner.incomplete)
    state_launcher(builder, "torchx", line.words[0], given)
    chosen = program or module
    words = [word for word in outer.rest if chosen is not None and text_of(word) in texts(chosen.value)]
    started = read_program(line, "torchx", [*words[:1], *inner.rest], tree, module=program is None)
    return started.reading(builder.claims)


def _nodes(item: Plain) -> Plain:
    """Return the nodes in `2x8` and `1:2x8`; a number alone counts the processes of one node."""
    nodes, times, _ = str(item).partition("x")
    return int(nodes.rpartition(":")[2]) if times else 1


def _processes(item: Plain) -> Plain:
    _, times, processes = str(item).partition("x")
    return int(processes if times else str(item))


_FABRIC_OPTIONS = declared_table("fabric")


def read_fabric(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of Lightning Fabric's launcher: nodes, devices, node rank and the address of the store.

    Other subcommands launch nothing.
    """
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
    given = ScannedLine((*after_script.given, *scanned.given))
    hidden = scanned.incomplete or after_script.incomplete
    builder = ClaimBuilder("fabric", line.scope, line.command.condition)
    program = read_program(line, "fabric", scanned.rest, tree)
    state_options(builder, "fabric", given.last, line.words[0], hidden=hidden)
    nodes = given.last("num_nodes")
    several = nodes is not None and texts(nodes.value) not in (("1",), ())
    state_options(builder, "fabric-address", given.last, line.words[0], hidden=hidden or not several)
    state_single_start(builder, line, ("srun", "mpirun", "pdsh", "clush"))
    return program.reading(builder.claims)


_COMPOSER_OPTIONS = declared_table("composer")
_COMPOSER_VARIABLES: dict[str, str] = declared_options("composer")["variables"]


def read_composer(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of composer: processes, world size, node rank and the address of the store."""
    scanned = scan(line.words[1:], _COMPOSER_OPTIONS)
    if scanned.last("help", "version") is not None:
        return Reading()
    builder = ClaimBuilder("composer", line.scope, line.command.condition)
    program = _program_of(line, "composer", scanned, tree)
    environment = line.command.environment
    found = {
        dest: scanned.last(dest) or variable_setting(environment.get(name))
        for dest, name in _COMPOSER_VARIABLES.items()
    }
    state_options(builder, "composer", found.get)
    _state_world(builder, found["world_size"], found["nproc"], line, hidden=scanned.incomplete)
    state_unknown(builder, scanned)
    for dest in ("module_mode", "command_mode"):
        builder.add_setting(f"{SETTING_PREFIX}composer_launch.{dest}", scanned.last(dest))
    for dest, setting in found.items():
        builder.add_setting(f"{SETTING_PREFIX}composer_launch.{dest}", setting, _number_if_one)
    if scanned.incomplete:
        first = line.words[0]
        hidden = Unresolved("further options")
        builder.add(f"{SETTING_PREFIX}composer_launch.(call)", hidden, first)
    return program.reading(builder.claims)


def _number_if_one(value: Value) -> Value:
    return lift(lambda item: int(item) if isinstance(item, str) and item.isdigit() else item, value)


def _state_world(
    builder: ClaimBuilder, world: GivenOption | None, processes: GivenOption | None, line: LaunchLine, *, hidden: bool
) -> None:
    """Add claims for the world size and the number of nodes it needs; one node when it is not set."""
    builder.add_setting("world_size", world, as_int, relation=Relation.REQUIRES)
    if world is not None and processes is not None:
        nodes = lift(_quotient, as_int(world.value), as_int(processes.value))
        builder.add_setting("nodes", world, lambda _: nodes, relation=Relation.REQUIRES)
    elif world is None and not hidden:
        builder.add_default("nodes", Known(1), line.words[0], "--world_size", relation=Relation.REQUIRES)


def _quotient(total: Plain, group_size: Plain) -> Plain:
    groups, rest = divmod(int(str(total)), int(str(group_size)))
    if rest or not groups:
        raise ValueError(f"{total} ranks cannot be divided into groups of {group_size}")
    return groups


_COLOSSALAI_OPTIONS = declared_table("colossalai")


def read_colossalai(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of Colossal-AI's launcher: hosts, counts, the address of the store, and the hostfile."""
    if len(line.words) < 2 or text_of(line.words[1]) != "run":
        return Reading()
    scanned = scan(line.words[2:], _COLOSSALAI_OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    builder = ClaimBuilder("colossalai", line.scope, line.command.condition)
    program = read_program(line, "colossalai", scanned.rest, tree, module=scanned.last("m") is not None)
    hosts, nodes = scanned.last("host"), scanned.last("num_nodes")
    if hosts is not None and texts(hosts.value) != ("",):
        builder.add_setting("hosts", hosts, as_strings, strength=Strength.SCHEDULER)
        builder.add_setting("nodes", hosts, lambda value: count_of(as_strings(value)), strength=Strength.SCHEDULER)
    if nodes is not None and texts(nodes.value) != ("-1",):
        builder.add_setting("nodes", nodes, as_int, relation=Relation.AT_LEAST)
    state_options(builder, "colossalai", scanned.last, line.words[0], hidden=scanned.incomplete)
    state_unknown(builder, scanned)
    state_launcher(builder, "colossalai_run", line.words[0], scanned)
    return program.reading(builder.claims, file_references(scanned.last("hostfile"), "hostfile", line, tree))


_DETERMINED_OPTIONS = declared_table("determined")


def read_determined(line: LaunchLine, tree: Tree) -> Reading:
    """Read the program that Determined's launch layers run on every slot."""
    scanned = scan(line.words[1:], _DETERMINED_OPTIONS)
    started = read_program(line, "determined", scanned.rest, tree, python=False)
    return started.reading()


# `accelerate launch` and the `deepspeed` launcher, which accelerate may start in turn.
#
# The options are generated (preflight/sources/tables). Sources of precedence and meaning:
# accelerate/commands/launch.py (`_validate_launch_command`) and utils/launch.py of accelerate 1.15. An option
# overrides the configuration file, which overrides the default; no variable sets a default. `--num_processes` counts
# the processes of all machines: each machine starts `num_processes // num_machines`. Without `--config_file`, the
# file in the user's cache may set anything, so settings missing on the line are unknown; only `--num_machines` is
# assumed to be 1, and findings say so.
#
# The options are generated (preflight/sources/tables). Source of defaults: deepspeed/launcher/runner.py. It ignores
# MASTER_ADDR and MASTER_PORT in the environment; without `--master_addr` it uses the address of the first host of the
# hostfile.


_ACCELERATE_OPTIONS = declared_table("accelerate")
#: The section of the configuration file that has the keys that options with this beginning override.
_SECTIONS = {
    "fsdp_": "fsdp_config",
    "megatron_lm_": "megatron_lm_config",
    "parallelism_config_": "parallelism_config",
    **dict.fromkeys(("zero_stage", "zero3_", "offload_", "gradient_", "deepspeed_"), "deepspeed_config"),
}
#: Switches for a `distributed_type`, the first effective one.
_DISTRIBUTED_TYPES = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "multi_gpu": "MULTI_GPU",
    "tpu": "XLA",
    "cpu": "CPU",
}
_TYPES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}


def read_accelerate(line: LaunchLine, tree: Tree) -> Reading:
    """Read `accelerate launch`: machines, processes, rendezvous, precision, files; other subcommands launch nothing."""
    words = line.words[1:]
    if not line.words[0].spelling.strip("\"'").endswith("launch"):
        if not words or text_of(words[0]) != "launch":
            return Reading()
        words = words[1:]
    scanned = scan(words, _ACCELERATE_OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    launcher = "deepspeed" if _starts_deepspeed(scanned, line, tree) else "accelerate"
    program = _program_of(line, launcher, scanned, tree)
    builder = ClaimBuilder("accelerate", line.scope, line.command.condition)
    _state_size(builder, scanned, line)
    _state_machine_rendezvous(builder, scanned, line)
    _state_training(builder, scanned)
    _state_options(builder, scanned)
    state_unknown(builder, scanned)
    state_choices(builder, scanned, load_table("accelerate_launch"))
    inner = ClaimBuilder("deepspeed", line.scope, line.command.condition)
    state_options(inner, "accelerate-deepspeed", scanned.last)
    files = [("config_file", ACCELERATE_ROLE)]
    # They are read only with one of these options (accelerate/commands/launch.py), or where the user's default
    # configuration file turns DeepSpeed on.
    if scanned.last("use_deepspeed") is not None or scanned.last("config_file") is not None or scanned.incomplete:
        files += [("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile")]
    references = [r for dest, role in files for r in file_references(scanned.last(dest), role, line, tree)]
    return program.reading((*builder.claims, *inner.claims), references)


def _state_options(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    """Add claims for every option as `setting.accelerate_launch.NAME`; a switch is true, and any other value a text.

    Those that override a key of a section of the configuration file count as that key, too.
    """
    last = {option.dest: option for option in scanned.given}
    for dest, option in last.items():
        if not is_secret(dest):
            value = lift(lambda item: item if isinstance(item, bool) else str(item), option.value)
            builder.add(f"{SETTING_PREFIX}accelerate_launch.{dest}", value, option)
            section = next((name for start, name in _SECTIONS.items() if dest.startswith(start)), "")
            if section:
                builder.add(f"{SETTING_PREFIX}accelerate.{section}.{dest}", value, option)
    switch = next((dest for dest in _TYPES if dest in last), "")
    if switch:
        kind = lift(lambda item: _TYPES[switch] if item is True else None, last[switch].value)
        builder.add(f"{SETTING_PREFIX}accelerate.distributed_type", kind, last[switch])
    if scanned.incomplete:
        first = next(iter(scanned.given), None)
        if first is not None:
            hidden = Unresolved("further options")
            builder.add(f"{SETTING_PREFIX}accelerate_launch.(call)", hidden, first)


def _state_size(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    processes, machines = scanned.last("num_processes"), scanned.last("num_machines")
    state_options(builder, "accelerate", scanned.last, line.words[0], hidden=scanned.incomplete)
    if machines is None and scanned.last("config_file") is None and not scanned.incomplete:
        word = line.words[0]
        builder.add_default("nodes", Known(1), word, "--num_machines", relation=Relation.REQUIRES)
        if processes is None and all(scanned.last(name) is None for name in ("gpu_ids", "cpu")):
            unknown = Unresolved("the GPUs of the host, unless the user's own default configuration sets a number")
            builder.add_default("processes_per_node", unknown, word, "--num_processes")
    alone = processes is not None and texts(processes.value) == ("1",)
    if not alone:
        state_single_start(builder, line, place="machine")
    devices = scanned.last("gpu_ids")
    if devices is not None and texts(devices.value) != ("all",):
        builder.add_setting("env.CUDA_VISIBLE_DEVICES", devices, as_text)


def _state_machine_rendezvous(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    builder.add_setting("master_port", scanned.last("main_process_port"), free_port)
    is_static = _single_text(scanned, "rdzv_backend") in ("", "static")
    if is_static and not scanned.incomplete and scanned.last("machine_rank") is None:
        builder.add_default("node_rank", Known(0), line.words[0], "--machine_rank")


def _state_training(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    for flag, kind in _DISTRIBUTED_TYPES.items():
        switch = scanned.last(flag)
        if switch is not None:
            builder.add("distributed_type", Known(kind), switch)
    for given in scanned.given:
        parallel = (PARALLEL_SIZES[given.dest], as_int) if given.dest in PARALLEL_SIZES else None
        setting = fsdp_setting(given.dest) if given.dest.startswith("fsdp_") else parallel
        if setting is not None and given is scanned.last(given.dest):
            quantity, reader = setting
            builder.add_setting(quantity, given, reader)


def _starts_deepspeed(scanned: ScannedLine, line: LaunchLine, tree: Tree) -> bool:
    """Return whether accelerate starts the `deepspeed` launcher, which reaches the other machines itself."""
    machines, launcher = _single_text(scanned, "num_machines"), _single_text(scanned, "deepspeed_multinode_launcher")
    if scanned.last("use_deepspeed") is not None:
        return is_whole_number(machines) and int(machines) > 1 and launcher not in EACH_MACHINE
    given = scanned.last("config_file")
    files = [file_named(path, line, tree) for path in paths_of(given.value, given.parts)] if given is not None else []
    roots = [document_of(file).root for file in files if file is not None]
    return any(root is not None and starts_by_deepspeed(root, machines, launcher) for root in roots)


def _single_text(scanned: ScannedLine, dest: str) -> str:
    """Return the value of an option on the line; empty if there is none or it is unknown."""
    given = scanned.last(dest)
    found = texts(given.value) if given is not None else ()
    return found[0] if len(found) == 1 else ""


_DEEPSPEED_OPTIONS = declared_table("deepspeed")


def read_deepspeed(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of the deepspeed launcher: hosts, counts, the address of the store, and its files."""
    scanned = scan(line.words[1:], _DEEPSPEED_OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    builder = ClaimBuilder("deepspeed", line.scope, line.command.condition)
    program = _program_of(line, "deepspeed", scanned, tree)
    state_unknown(builder, scanned)
    state_choices(builder, scanned, load_table("deepspeed_runner"))
    state_launcher(builder, "deepspeed_launcher", line.words[0], scanned)
    _state_machine_counts(builder, scanned)
    state_options(builder, "deepspeed", scanned.last, line.words[0], hidden=scanned.incomplete)
    _state_defaults(builder, scanned, line)
    hostfile = file_references(scanned.last("hostfile"), "hostfile", line, tree)
    script = tree.read(line.command.span.path)
    if isinstance(script, SourceFile) and _WRITES_ENVIRONMENT.search(script.text):
        builder.add("forwarded_variables", Unresolved("the script writes .deepspeed_env"), line.words[0])
    return program.reading(builder.claims, (*hostfile, *_environment(line, tree)))


#: A script that writes the file of variables which deepspeed exports on every node, or names another one.
_WRITES_ENVIRONMENT = re.compile(r"(?:>|\btee\b)[^\n|;]*\.deepspeed_env|\bDS_ENV_FILE=")


def _state_defaults(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    """Add claims for the effect of missing options: one machine, and `--local_rank` for each process."""
    if scanned.incomplete:
        return
    word = line.words[0]
    here = all(scanned.last(option) is None for option in ("hostfile", "include", "num_nodes", "no_ssh", "force_multi"))
    if here:
        # /job/hostfile would be read, which exists only on machines that were prepared for it.
        builder.add_default("starts_here", Known(True), word, "--hostfile")
        gpus = scanned.last("num_gpus")
        if (gpus is None or _is_default(gpus)) and scanned.last("exclude") is None:
            state_all_gpus(builder, word, "--num_gpus")
    launcher = scanned.last("launcher")
    if scanned.last("no_local_rank") is not None:
        return
    # On several machines only the launcher of pdsh passes it; those of MPI and Slurm start the script itself.
    argument: Value = Known("--local_rank={local_rank}")
    if launcher is not None and texts(launcher.value) != ("pdsh",):
        if isinstance(launcher.value, Unresolved):
            argument = launcher.value
        elif here:
            argument = Unresolved("whether the machine has /job/hostfile")
        else:
            return
    builder.add_default("rank_argument", argument, word, "--no_local_rank")


def _state_machine_counts(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    nodes = scanned.last("num_nodes")
    if nodes is not None and not _is_default(nodes):
        # deepspeed takes the first N hosts of the hostfile, whatever the allocation is.
        builder.add_setting("nodes", nodes, as_int, strength=Strength.SCHEDULER)
        builder.add_setting("nodes", nodes, as_int, relation=Relation.AT_LEAST)
    gpus = scanned.last("num_gpus")
    if gpus is not None and not _is_default(gpus):
        builder.add_setting("processes_per_node", gpus, as_int)
    for option in ("include", "exclude"):
        builder.add_setting(f"{option}d_slots", scanned.last(option), lambda value: lift(_entries, value))
    include = scanned.last("include")
    if include is None or texts(include.value) == ("",):
        return
    builder.add_setting("hosts", include, lambda value: lift(_included_hosts, value))
    builder.add_setting("nodes", include, lambda value: lift(lambda item: len(_included_hosts(item)), value))
    if any(":" in text for text in texts(include.value)):
        builder.add_setting("processes_per_node", include, _included_slots)


def _is_default(given: GivenOption) -> bool:
    """Return whether the value is -1, which means "not given"."""
    return texts(given.value) == ("-1",)


def _entries(item: Plain) -> tuple[str, ...]:
    return tuple(part for part in str(item).split("@") if part)


def _included_hosts(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.partition(":")[0] for part in _entries(item)))


def _included_slots(value: Value) -> Value:
    """Return the number of slots in `worker-0:0,1@worker-1:0,1`, when it is the same on every host."""
    found = []
    for item in alternatives(value):
        counts = {len(set(part.partition(":")[2].split(","))) if ":" in part else 0 for part in _entries(item)}
        if len(counts) != 1 or 0 in counts:
            return Unresolved("a different number of slots on each host")
        found.append(Known(counts.pop()))
    return found[0] if len(found) == 1 else Unresolved("one of several --include lists")


def _environment(line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """Refer to `.deepspeed_env` beside the launch: deepspeed exports its variables on every node."""
    file = file_named(".deepspeed_env", line, tree)
    if file is not None:
        yield Reference(file.path, "environment", line.words[0].span, line.scope)

"""`accelerate launch` and the `deepspeed` launcher, which accelerate may start in turn.

The options are generated (preflight/sources/tables). Sources of precedence and meaning: accelerate/commands/launch.py
(`_validate_launch_command`) and utils/launch.py of accelerate 1.15. An option overrides the configuration file, which
overrides the default; no variable sets a default. `--num_processes` counts the processes of all machines: each machine
starts `num_processes // num_machines`. Without `--config_file`, the file in the user's cache may set anything, so
settings missing on the line are unknown; only `--num_machines` is assumed to be 1, and findings say so.

The options are generated (preflight/sources/tables). Source of defaults: deepspeed/launcher/runner.py. It ignores
MASTER_ADDR and MASTER_PORT in the environment; without `--master_addr` it uses the address of the first host of the
hostfile.
"""

from __future__ import annotations

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
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree
from preflight.sources.configs.accelerate_config import EACH_MACHINE, ROLE, free_port, starts_by_deepspeed
from preflight.sources.configs.hugging_face import fsdp_setting
from preflight.sources.formats.structured import document_of
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_all_gpus,
    state_choices,
    state_launcher,
    state_options,
    state_single_start,
    state_unknown,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    file_references,
    generated_table,
    paths_of,
    relative,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_text

_OPTIONS = generated_table(load_table("accelerate_launch"), abbreviations=False)
_PARALLEL = {
    "megatron_lm_tp_degree": "tensor_parallel_size",
    "megatron_lm_pp_degree": "pipeline_parallel_size",
    "megatron_lm_context_parallel_size": "context_parallel_size",
    "megatron_lm_expert_model_parallel_size": "expert_parallel_size",
    "parallelism_config_tp_size": "tensor_parallel_size",
    "parallelism_config_cp_size": "context_parallel_size",
}

#: The section of the configuration file that has the keys that options with this beginning override.
_SECTIONS = {
    "fsdp_": "fsdp_config",
    "megatron_lm_": "megatron_lm_config",
    "parallelism_config_": "parallelism_config",
    **dict.fromkeys(("zero_stage", "zero3_", "offload_", "gradient_", "deepspeed_"), "deepspeed_config"),
}
#: Switches for a `distributed_type`, the first in force.
_DISTRIBUTED_TYPES = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "multi_gpu": "MULTI_GPU",
    "tpu": "XLA",
    "cpu": "CPU",
}
_TYPES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}


class AccelerateReader:
    """Reads `accelerate launch`; the other subcommands launch nothing."""

    name: str = "accelerate"
    names: tuple[str, ...] = (
        "accelerate",
        "accelerate-launch",
        "-m accelerate.commands.launch",
        "-m accelerate.commands.accelerate_cli",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State machines, processes, rendezvous and precision of the line, and refer to its files."""
        words = line.words[1:]
        if not line.words[0].spelling.strip("\"'").endswith("launch"):
            if not words or text_of(words[0]) != "launch":
                return Reading()
            words = words[1:]
        scanned = scan(words, _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        program = read_program(
            line,
            "deepspeed" if _starts_deepspeed(scanned, line, tree) else self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        _state_size(builder, scanned, line)
        _state_rendezvous(builder, scanned, line)
        _state_training(builder, scanned)
        _state_options(builder, scanned)
        if program.launch.launcher == self.name:
            state_unknown(builder, scanned)
            state_choices(builder, scanned, load_table("accelerate_launch"))
        inner = ClaimBuilder("deepspeed", line.scope, line.command.condition)
        state_options(inner, "accelerate-deepspeed", scanned.last)
        files = [("config_file", ROLE)]
        # They are read only with one of these options (accelerate/commands/launch.py), or where the user's default
        # configuration file turns DeepSpeed on.
        if scanned.last("use_deepspeed") is not None or scanned.last("config_file") is not None or scanned.incomplete:
            files += [("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile")]
        references = [r for dest, role in files for r in file_references(scanned.last(dest), role, line, tree)]
        return program.reading((*builder.claims, *inner.claims), references)


def _state_options(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    """State every option as `setting.accelerate_launch.NAME`; a switch is true, and any other value a text.

    Those that override a key of a section of the configuration file count as that key, too.
    """
    last = {option.dest: option for option in scanned.given}
    for dest, option in last.items():
        if not is_secret(dest):
            value = lift(lambda item: item if isinstance(item, bool) else str(item), option.value)
            builder.add(f"{SETTING_PREFIX}accelerate_launch.{dest}", value, option.span, option.spelling)
            section = next((name for start, name in _SECTIONS.items() if dest.startswith(start)), "")
            if section:
                builder.add(f"{SETTING_PREFIX}accelerate.{section}.{dest}", value, option.span, option.spelling)
    switch = next((dest for dest in _TYPES if dest in last), "")
    if switch:
        kind = lift(lambda item: _TYPES[switch] if item is True else None, last[switch].value)
        builder.add(f"{SETTING_PREFIX}accelerate.distributed_type", kind, last[switch].span, last[switch].spelling)
    if scanned.incomplete:
        first = next(iter(scanned.given), None)
        if first is not None:
            hidden = Unresolved("further options")
            builder.add(f"{SETTING_PREFIX}accelerate_launch.(call)", hidden, first.span, first.spelling)


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


def _state_rendezvous(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    builder.add_setting("master_port", scanned.last("main_process_port"), free_port)
    if (
        not scanned.incomplete
        and scanned.last("machine_rank") is None
        and _single_text(scanned, "rdzv_backend") in ("", "static")
    ):
        builder.add_default("node_rank", Known(0), line.words[0], "--machine_rank")


def _state_training(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    for flag, kind in _DISTRIBUTED_TYPES.items():
        switch = scanned.last(flag)
        if switch is not None:
            builder.add("distributed_type", Known(kind), switch.span, switch.spelling)
    for given in scanned.given:
        parallel = (_PARALLEL[given.dest], as_int) if given.dest in _PARALLEL else None
        setting = fsdp_setting(given.dest) if given.dest.startswith("fsdp_") else parallel
        if setting is not None and given is scanned.last(given.dest):
            quantity, reader = setting
            builder.add_setting(quantity, given, reader)


def _starts_deepspeed(scanned: ScannedLine, line: LaunchLine, tree: Tree) -> bool:
    """Whether accelerate starts the `deepspeed` launcher, which reaches the other machines itself."""
    machines, launcher = _single_text(scanned, "num_machines"), _single_text(scanned, "deepspeed_multinode_launcher")
    if scanned.last("use_deepspeed") is not None:
        return is_whole_number(machines) and int(machines) > 1 and launcher not in EACH_MACHINE
    for target in _configurations(scanned, line, tree):
        file = tree.read(target)
        root = document_of(file).root if isinstance(file, SourceFile) else None
        if root is not None and starts_by_deepspeed(root, machines, launcher):
            return True
    return False


def _single_text(scanned: ScannedLine, dest: str) -> str:
    """The value that the line gives an option; empty if it gives none or an unknown one."""
    given = scanned.last(dest)
    found = texts(given.value) if given is not None else ()
    return found[0] if len(found) == 1 else ""


def _configurations(scanned: ScannedLine, line: LaunchLine, tree: Tree) -> tuple[str, ...]:
    given = scanned.last("config_file")
    found = (relative(path, line, tree) for path in paths_of(given.value, given.parts)) if given is not None else ()
    return tuple(target for target in found if target is not None)


#: The last two belong to DeeperSpeed, the fork that gpt-neox uses.
_DEEPSPEED_OPTIONS = generated_table(
    load_table("deepspeed_runner"), valued={"comment": "--comment", "account": "--account"}
)


class DeepSpeedReader:
    """Reads the command line of the deepspeed launcher."""

    name: str = "deepspeed"
    names: tuple[str, ...] = ("deepspeed", "ds", "deepspeed.pt", "-m deepspeed.launcher.runner", "-m deepspeed")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts and the address of the store; refer to the hostfile and the configuration."""
        scanned = scan(line.words[1:], _DEEPSPEED_OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        state_unknown(builder, scanned)
        state_choices(builder, scanned, load_table("deepspeed_runner"))
        state_launcher(builder, "deepspeed_launcher", line.words[0], scanned)
        _state_counts(builder, scanned)
        state_options(builder, self.name, scanned.last, line.words[0], hidden=scanned.incomplete)
        _state_defaults(builder, scanned, line)
        hostfile = file_references(scanned.last("hostfile"), "hostfile", line, tree)
        return program.reading(builder.claims, (*hostfile, *_environment(line, tree)))


def _state_defaults(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    """State what holds without options: one machine, and `--local_rank` for each process."""
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


def _state_counts(builder: ClaimBuilder, scanned: ScannedLine) -> None:
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
    """Whether the value is -1, which means "not given"."""
    return texts(given.value) == ("-1",)


def _entries(item: Plain) -> tuple[str, ...]:
    return tuple(part for part in str(item).split("@") if part)


def _included_hosts(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.partition(":")[0] for part in str(item).split("@") if part))


def _included_slots(value: Value) -> Value:
    """The number of slots in `worker-0:0,1@worker-1:0,1`, when it is the same on every host."""
    found = []
    for item in alternatives(value):
        counts = {
            len(set(part.partition(":")[2].split(","))) if ":" in part else 0 for part in str(item).split("@") if part
        }
        if len(counts) != 1 or 0 in counts:
            return Unresolved("a different number of slots on each host")
        found.append(Known(counts.pop()))
    return found[0] if len(found) == 1 else Unresolved("one of several --include lists")


def _environment(line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """Refer to `.deepspeed_env` beside the launch: deepspeed exports its variables on every node."""
    target = relative(".deepspeed_env", line, tree)
    if target is not None and isinstance(tree.read(target), SourceFile):
        yield Reference(target, "environment", line.words[0].span, line.scope)

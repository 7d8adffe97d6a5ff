"""`accelerate launch`: one agent on each machine, or DeepSpeed's own launcher where that is asked for.

Options are generated (preflight/tables). Source of precedence, and of what is done with them:
accelerate/commands/launch.py (`_validate_launch_command`) and utils/launch.py of accelerate 1.15. An option wins over
the configuration file, and that over the default; no variable gives a default. `--num_processes` counts over all
machines: each machine starts `num_processes // num_machines`. Without `--config_file` the file in the user's cache may
say anything, so what the line does not say is not known; only one machine is taken by default, which findings say.
"""

from __future__ import annotations

from preflight.job import Known, Reference, Relation, Strength, as_int
from preflight.sources import fsdp
from preflight.sources.accelerate_config import EACH_MACHINE, ROLE, free_port, starts_by_deepspeed
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers.options import Scanned, generated, scan, text_of, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_text, state_choices, state_unknown
from preflight.sources.structured import document_of
from preflight.tables.accelerate_launch import ACCELERATE_LAUNCH

_OPTIONS = generated(ACCELERATE_LAUNCH, abbreviations=False)
#: What starts one agent for each task.
_PER_TASK = ("srun", "mpirun", "mpiexec")
_PARALLEL = {
    "megatron_lm_tp_degree": "tensor_parallel_size",
    "megatron_lm_pp_degree": "pipeline_parallel_size",
    "megatron_lm_context_parallel_size": "context_parallel_size",
    "megatron_lm_expert_model_parallel_size": "expert_parallel_size",
    "parallelism_config_tp_size": "tensor_parallel_size",
    "parallelism_config_cp_size": "context_parallel_size",
}


class AccelerateReader:
    """Reads the line of `accelerate launch`; the other subcommands start nothing."""

    name: str = "accelerate"
    names: tuple[str, ...] = (
        "accelerate",
        "accelerate-launch",
        "-m accelerate.commands.launch",
        "-m accelerate.commands.accelerate_cli",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State machines, processes, meeting place, precision and sections of the line; refer to its files."""
        words = line.words[1:]
        if not line.words[0].spelling.strip("\"'").endswith("launch"):
            if not words or text_of(words[0]) != "launch":
                return Reading()
            words = words[1:]
        scanned = scan(words, _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        program = started(
            line,
            "deepspeed" if _by_deepspeed(scanned, line, tree) else self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        stating = Stating(self.name, line.scope, line.command.condition)
        _state_size(stating, scanned, line)
        _state_meeting(stating, scanned, line)
        _state_training(stating, scanned)
        if program.launch.launcher == self.name:
            state_unknown(stating, scanned)
            state_choices(stating, scanned, ACCELERATE_LAUNCH)
        inner = Stating("deepspeed", line.scope, line.command.condition)
        inner.given("zero_stage", scanned.last("zero_stage"), as_int)
        inner.given("gradient_accumulation_steps", scanned.last("gradient_accumulation_steps"), as_int)
        return Reading(
            claims=(*stating.claims, *inner.claims, *program.claims),
            launches=(program.launch,),
            references=(*_files(scanned, line, tree), *program.references),
        )


def _state_size(stating: Stating, scanned: Scanned, line: LaunchLine) -> None:
    processes = scanned.last("num_processes")
    stating.given("world_size", processes, as_int)
    machines = scanned.last("num_machines")
    stating.given("nodes", machines, as_int, relation=Relation.REQUIRES)
    if machines is None and scanned.last("config_file") is None and not scanned.incomplete:
        word = line.words[0]
        spelling = f"{word.spelling} (without --num_machines)"
        stating.say("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
    stating.given("node_rank", scanned.last("machine_rank"), as_int)
    stating.given("max_restarts", scanned.last("max_restarts"), as_int)
    alone = processes is not None and texts(processes.value) == ("1",)
    if not alone and any(wrapper in _PER_TASK for wrapper in line.wrappers):
        word = line.words[0]
        spelling = f"{word.spelling} (is started once on each machine and starts the ranks itself)"
        stating.say("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)
    devices = scanned.last("gpu_ids")
    if devices is not None and texts(devices.value) != ("all",):
        stating.given("env.CUDA_VISIBLE_DEVICES", devices, as_text)


def _state_meeting(stating: Stating, scanned: Scanned, line: LaunchLine) -> None:
    stating.given("master_addr", scanned.last("main_process_ip"), as_text)
    stating.given("master_port", scanned.last("main_process_port"), free_port)
    backend = scanned.last("rdzv_backend")
    if backend is not None:
        stating.given("rendezvous_backend", backend, as_text)
    elif not scanned.incomplete:
        # What a configuration says of it is never looked at.
        word = line.words[0]
        spelling = f"{word.spelling} (without --rdzv_backend)"
        stating.say("rendezvous_backend", Known("static"), word.span, spelling, strength=Strength.DEFAULT)
    if (
        not scanned.incomplete
        and scanned.last("machine_rank") is None
        and _told(scanned, "rdzv_backend") in ("", "static")
    ):
        word = line.words[0]
        spelling = f"{word.spelling} (without --machine_rank)"
        stating.say("node_rank", Known(0), word.span, spelling, strength=Strength.DEFAULT)


def _state_training(stating: Stating, scanned: Scanned) -> None:
    stating.given("mixed_precision", scanned.last("mixed_precision"), as_text)
    stating.given("multinode_launcher", scanned.last("deepspeed_multinode_launcher"), as_text)
    for flag, kind in (("use_deepspeed", "DEEPSPEED"), ("use_fsdp", "FSDP"), ("multi_gpu", "MULTI_GPU")):
        _given_as(stating, scanned, flag, kind)
    for given in scanned.given:
        quantity = fsdp.quantity_of(given.dest) if given.dest.startswith("fsdp_") else _PARALLEL.get(given.dest)
        if quantity is not None and given is scanned.last(given.dest):
            stating.given(quantity, given, fsdp.reading_of(quantity) if quantity.startswith("fsdp_") else as_int)


def _given_as(stating: Stating, scanned: Scanned, flag: str, kind: str) -> None:
    stating.given("distributed_type", scanned.last(flag), lambda _: Known(kind))


def _by_deepspeed(scanned: Scanned, line: LaunchLine, tree: Tree) -> bool:
    """Whether `deepspeed` is started, which reaches the other machines itself."""
    machines, launcher = _told(scanned, "num_machines"), _told(scanned, "deepspeed_multinode_launcher")
    if scanned.last("use_deepspeed") is not None:
        return machines.isdigit() and int(machines) > 1 and launcher not in EACH_MACHINE
    for target in _configurations(scanned, line, tree):
        file = tree.read(target)
        root = document_of(file).root if isinstance(file, SourceFile) else None
        if root is not None and starts_by_deepspeed(root, machines, launcher):
            return True
    return False


def _told(scanned: Scanned, dest: str) -> str:
    """What the line says of an option; empty where it says nothing that is known."""
    given = scanned.last(dest)
    found = texts(given.value) if given is not None else ()
    return found[0] if len(found) == 1 else ""


def _configurations(scanned: Scanned, line: LaunchLine, tree: Tree) -> tuple[str, ...]:
    given = scanned.last("config_file")
    found = (relative(path, line, tree) for path in paths_of(given.value, given.parts)) if given is not None else ()
    return tuple(target for target in found if target is not None)


def _files(scanned: Scanned, line: LaunchLine, tree: Tree) -> tuple[Reference, ...]:
    found = []
    for dest, role in (("config_file", ROLE), ("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile")):
        given = scanned.last(dest)
        for path in paths_of(given.value, given.parts) if given is not None else ():
            target = relative(path, line, tree)
            if given is not None and target is not None:
                found.append(Reference(target, role, given.span, line.scope))
    return tuple(found)

"""Lines that submit a job (`sbatch`, `sky launch`, ...), batch headers other than Slurm's, and the steps of a script.

The options are generated (preflight/sources/tables). Source of defaults and of options that exclude each other:
ray/scripts/scripts.py and ray/_private/parameter.py, Ray 2.60.

`for i in 0 1; do sbatch node.sbatch $i; done` starts the nodes of one job if each submission gives its own node rank,
rank or role. Any other submission is a separate job and is read with its own file.

Sources: sky/client/cli/command.py (SkyPilot 0.14), dstack/_internal/cli/commands/apply.py (dstack 0.20), mcli's run
command. The task file determines what runs. If the line itself changes nodes, GPUs or variables, the file alone does
not determine the job, and remains a separate job.

Source: xpk/parser/workload.py and core/system_characteristics.py of xpk 0.16. A slice is named by its topology
(`tpu7x-4x4x8`) or by its tensor cores (`v5p-256`), of which a chip has one or two. Every host has four chips, except
for the slice of a single chip. JAX starts one process on each host.

Their options are converted to the names of Slurm's, so that one reader states the claims of every header. Sources:
qsub(1B) of OpenPBS 23 and Torque 6, bsub(1) of LSF 10.1, qsub(1) of Grid Engine 8, qsub(1) of Cobalt, flux-batch(1).
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util import toml
from preflight._util.budget import note_skipped, spend
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import (
    Claim,
    Known,
    Launch,
    Reference,
    Relation,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    is_whole_number,
    lift,
)
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers import slurm
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_endpoint,
    state_launcher,
    state_options,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    declared_table,
    file_named,
    is_python,
    join_spans,
    known_prefix,
    line_of,
    python_program,
    relative,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.launchers.wrappers import Wrapper, exported_names, program_name, strip_wrappers
from preflight.sources.orchestrators import task_role
from preflight.sources.value_readers import as_text, product_of

_START = declared_table("ray-start")
_SUBMIT = declared_table("ray-job-submit")
_SUBMIT_TO_FILE = declared_table("ray-submit")
_HEAD_PORT = 6379
#: Ports of components that RayParams.update_pre_selected_port requires to be distinct.
_PORTS = (
    *("object_manager_port", "node_manager_port", "ray_client_server_port", "dashboard_port"),
    *("dashboard_agent_listen_port", "dashboard_agent_grpc_port", "runtime_env_agent_port", "metrics_export_port"),
)


def read_ray(line: LaunchLine, tree: Tree) -> Reading:
    """Read the commands that form a Ray cluster or submit a job to one: the kind of node that is started, its ports and
    GPUs, or the cluster's address and the program.
    """
    subcommands = [text_of(word) for word in line.words[1:3]]
    if subcommands[:1] == ["start"]:
        return _ray_start(line)
    if subcommands == ["job", "submit"]:
        return _ray_submit(line, tree)
    if subcommands[:1] == ["submit"]:
        return _ray_submit_to_file(line, tree)
    return Reading()


def _ray_start(line: LaunchLine) -> Reading:
    scanned = scan(line.words[2:], _START)
    if scanned.last("help") is not None:
        return Reading()
    if any(isinstance(each.value, Unresolved) for each in scanned.rest):
        # `ray start` takes options only, so that an unknown word is one of them.
        scanned = replace(scanned, incomplete=True)
    builder = ClaimBuilder("ray", line.scope, line.command.condition)
    word = line.words[0]
    head = scanned.last("head")
    if head is not None:
        builder.add_setting("ray_role", head, lambda _: Known("head"))
        port = scanned.last("port", "redis_port")
        if port is not None:
            builder.add_setting("master_port", port, as_int)
        elif not scanned.incomplete:
            spelling = f"{word.spelling} start --head (without --port)"
            builder.add("master_port", Known(_HEAD_PORT), word, spelling, strength=Strength.DEFAULT)
        builder.add_setting("master_addr", scanned.last("node_ip_address"), as_text)
    elif not scanned.incomplete:
        builder.add("ray_role", Known("worker"), word, f"{word.spelling} start")
        builder.add_setting("ray_port", scanned.last("port"), as_int)
    state_endpoint(builder, scanned.last("address", "redis_address"))
    if not scanned.incomplete:
        block = scanned.last("block")
        builder.add("ray_block", Known(block is not None), block or word)
    state_options(builder, "ray-start", scanned.last)
    _state_ports(builder, scanned)
    state_unknown(builder, scanned)
    state_launcher(builder, "ray_start", word, scanned)
    launch = Launch(
        id=line.launch_id,
        launcher="ray",
        span=word.span,
        wrappers=line.wrappers,
        condition=line.command.condition,
    )
    return Reading(claims=tuple(builder.claims), launches=(launch,))


def _ray_submit(line: LaunchLine, tree: Tree) -> Reading:
    scanned = scan(line.words[3:], _SUBMIT)
    if scanned.last("help") is not None:
        return Reading()
    builder = ClaimBuilder("ray", line.scope, line.command.condition)
    builder.add("ray_role", Known("submit"), line.words[0])
    state_options(builder, "ray-submit", scanned.last)
    state_unknown(builder, scanned)
    state_launcher(builder, "ray_job_submit", line.words[0], scanned)
    words, module = list(scanned.rest), False
    if is_python(words):
        found = python_program(words)
        words, module = (list(found.words), found.module) if found is not None else ([], False)
    program = read_program(line, "ray", words, tree, module=module)
    return program.reading(builder.claims)


def _ray_submit_to_file(line: LaunchLine, tree: Tree) -> Reading:
    scanned = scan(line.words[2:], _SUBMIT_TO_FILE)
    if scanned.last("help") is not None or len(scanned.rest) < 2:
        return Reading()
    builder = ClaimBuilder("ray", line.scope, line.command.condition)
    cluster, *words = scanned.rest
    builder.add("ray_role", Known("submit"), line.words[0])
    target = relative(text_of(cluster) or "", line, tree)
    words = [word for word in words if text_of(word) != "--"]
    file = Reference(target, "cluster", cluster.span, line.scope) if target is not None else None
    return read_program(line, "ray", words, tree).reading(builder.claims, (file,) if file is not None else ())


def _state_ports(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    for dest in _PORTS:
        builder.add_setting("ray_port", scanned.last(dest), as_int)
    low, high = scanned.last("min_worker_port"), scanned.last("max_worker_port")
    first: Value = low.value if low is not None else Known(10002)
    last: Value = high.value if high is not None else Known(19999)
    if scanned.last("worker_port_list") is None and (low is not None or high is not None):
        ports = lift(lambda *each: tuple(map(str, each)), as_int(first), as_int(last))
        builder.add_setting("ray_worker_ports", low or high, lambda _: ports)


#: Quantities that identify the part of a job that a launch is.
_PARTS = ("node_rank", "rank", "given_rank", "ps_index")


def split(commands: Sequence[Command], path: str) -> tuple[list[Command], list[Command]]:
    """Divide the commands of a script into its own and those of batch scripts that it submits."""
    own: list[Command] = []
    submitted: list[Command] = []
    for command in commands:
        elsewhere = bool(command.submitter) and command.span.path != path
        (submitted if elsewhere else own).append(command)
    return own, submitted


def parts_of_one_job(commands: Sequence[Command], tree: Tree) -> Reading:
    """Return the launches of submitted scripts that are parts of one job, with their claims; none otherwise."""
    from preflight.sources.launchers.launch_lines import read_commands

    if not commands:
        return Reading()
    reading = read_commands(commands, {}, tree, batch=False)
    by_program: dict[tuple[str, str], list[Launch]] = {}
    for launch in reading.launches:
        if any(_identifies_part(claim, launch) for claim in reading.claims):
            by_program.setdefault((launch.launcher, launch.program), []).append(launch)
    kept = [launch for group in by_program.values() if len(group) > 1 for launch in group]
    scopes = {launch.scope for launch in kept}
    return replace(
        reading,
        launches=tuple(kept),
        claims=tuple(claim for claim in reading.claims if claim.scope in scopes),
        references=tuple(reference for reference in reading.references if reference.scope in scopes),
        notes=(),
    )


def _identifies_part(claim: Claim, launch: Launch) -> bool:
    known = claim.quantity in _PARTS and isinstance(claim.value, Known)
    # A rank in the submitted script itself was not chosen by the caller.
    given = claim.origin is None or claim.origin.path != launch.span.path
    return (
        known and claim.scope == launch.scope and claim.strength > Strength.DEFAULT and given and "$" in claim.spelling
    )


#: The orchestrator of each program.
_ORCHESTRATORS = {"sky": "skypilot", "dstack": "dstack", "mcli": "mcli"}
#: The program, and the words after it that start a task.
_SUBMITTING_WORDS = {
    "sky": (("launch",), ("exec",), ("jobs", "launch"), ("spot", "launch")),
    "dstack": (("apply",), ("run",)),
    "mcli": (("run",),),
}
#: Options that change the requests of the file.
_CHANGING_OPTIONS = (
    *("--num-nodes", "--gpus", "--env", "--env-file", "--instance-type", "-e", "--gpu", "--nodes", "--gpu-type"),
    *("--command",),
)
_SUFFIXES = (".yaml", ".yml")


def submitted_task(command: Command, tree: Tree) -> Reading:
    """Return a reference to the task file that a line submits, which counts as it stands if each word is known; empty
    for any other line.
    """
    stripped = strip_wrappers(command)
    words = [text_of(word) or "" for word in stripped.words[:4]]
    program = posixpath.basename(words[0]) if words else ""
    verbs = _SUBMITTING_WORDS.get(program)
    if verbs is None or not any(tuple(words[1 : len(verb) + 1]) == verb for verb in verbs):
        return Reading()
    if any(known_prefix(word).partition("=")[0] in _CHANGING_OPTIONS for word in stripped.words[1:]):
        return Reading()
    line = line_of(command, stripped.words)
    for word in stripped.words[2:]:
        for text in texts(word.value):
            file = file_named(text, line, tree) if text.lower().endswith(_SUFFIXES) else None
            if file is not None:
                builder = ClaimBuilder(program, condition=command.condition)
                if all(text_of(word) is not None for word in stripped.words):
                    builder.add("submitted_task", Known(file.path), word)
                reference = Reference(file.path, task_role(_ORCHESTRATORS[program]), word.span)
                return Reading(claims=tuple(builder.claims), references=(reference,))
    return Reading()


def applied_clusters(command: Command, tree: Tree) -> Iterator[Reference]:
    """Yield references to the manifests of Ray clusters that a line creates: `kubectl apply -f cluster.yaml`."""
    words = strip_wrappers(command).words
    names = [text_of(word) or "" for word in words]
    if posixpath.basename(names[0] if names else "") != "kubectl" or not {"apply", "create"}.intersection(names[1:]):
        return
    line = line_of(command, words)
    for before, name, word in zip(names, names[1:], words[1:], strict=False):
        given = name if before in ("-f", "--filename") else name.partition("--filename=")[2]
        file = file_named(given, line, tree) if given.lower().endswith(_SUFFIXES) else None
        if file is not None and "kind: RayCluster" in file.text:
            yield Reference(file.path, "manifest", word.span)


_OPTIONS = declared_table("xpk")
_ACTIONS = ("create", "create-pathways")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2, "tpu7x": 2, "v5litepod": 1, "v6e": 1}
_CHIPS_PER_HOST = 4
#: Launchers that start the ranks of a host themselves: their own line is the launch.
_LAUNCHERS = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|mpirun)\b")


def read_xpk(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of xpk if it creates a workload: the hosts that it takes, and one process on each."""
    words = line.words[1:]
    if len(words) < 2 or text_of(words[0]) != "workload" or text_of(words[1]) not in _ACTIONS:
        return Reading()
    scanned = scan(words[2:], _OPTIONS)
    command = scanned.last("command")
    if command is not None and _LAUNCHERS.search(command.spelling):
        return Reading()
    builder = ClaimBuilder("xpk", line.scope, line.command.condition)
    nodes = scanned.last("nodes")
    device = scanned.last("device")
    if nodes is not None:
        builder.add_setting("nodes", nodes, as_int)
    elif device is not None:
        builder.add_setting("nodes", device, lambda value: _hosts(value, scanned.last("slices")))
    if device is not None:
        spelling = f"{line.words[0].spelling} (one process on each host)"
        builder.add("processes_per_node", Known(1), line.words[0], spelling, strength=Strength.DEFAULT)
    started = read_program(line, "xpk", (), tree)
    return started.reading(builder.claims)


def _hosts(device: Value, slices: GivenOption | None) -> Value:
    """Return the hosts of all slices of a type of device."""
    count: Value = as_int(slices.value) if slices is not None else Known(1)
    if isinstance(device, Unresolved) or isinstance(count, Unresolved):
        parts = [device.why if isinstance(device, Unresolved) else str(texts(device)[:1])]
        parts += [count.why] if isinstance(count, Unresolved) else []
        return Unresolved(f"the hosts of the slices: {', '.join(parts)}")
    return lift(lambda name, number: _hosts_of(str(name)) * int(str(number)), device, count)


def _hosts_of(name: str) -> int:
    """Return the hosts of one slice.

    Raises:
        ValueError: it is not a TPU of a known generation.
    """
    match = re.fullmatch(r"(\w+)-(\d+(?:x\d+)*)", name)
    if match is None or match[1] not in _CORES_PER_CHIP:
        raise ValueError(f"{name} is not a known TPU slice")
    sizes = [int(size) for size in match[2].split("x")]
    chips = math.prod(sizes) if len(sizes) > 1 else sizes[0] // _CORES_PER_CHIP[match[1]]
    return max(1, chips // _CHIPS_PER_HOST)


_LINE = re.compile(
    r"^(?:(?P<pbs>#PBS)|(?P<lsf>#BSUB)|(?P<sge>#\$)|(?P<cobalt>#COBALT)|(?P<flux>#\s?flux:))"
    r"[ \t]+(?P<options>\S.*)"
)
#: Options with their value: `-l select=2`, `-R "span[ptile=4]"`, `--nodes=4`, `-N4` (flux).
_OPTION = re.compile(r"""(?P<name>--?[A-Za-z_]+)(?:[= \t]*(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*|))""")
#: Directives of one script; comments and blank lines between them do not count.
_MAX_LINES = 400
_DIRECTIVE = re.compile(r"^#(?:PBS|BSUB|\$|COBALT|\s?flux:)[ \t]", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{|\$\{?\w|<\w+>|\{ ?\w+ ?\}")
#: A chunk with at least this many GPUs is taken to be a whole node.
_WHOLE_NODE = 4


class BatchHeader(NamedTuple):
    """The header of a script. `scheduler` is also the source of its claims; `options` has its options by name."""

    scheduler: str
    options: dict[str, GivenOption]


def batch_header(file: SourceFile) -> BatchHeader | None:
    """Parse the header of a script for a scheduler other than Slurm; None if it has none."""
    if not _DIRECTIVE.search(file.text):
        return None
    options: dict[str, GivenOption] = {}
    scheduler = ""
    read = 0
    for number, raw in enumerate(file.text.split("\n"), start=1):
        match = _LINE.match(raw.rstrip("\r")) if raw.startswith("#") else None
        if match is None:
            continue
        read += 1
        if read > _MAX_LINES:
            note_skipped(f"directives for the scheduler after the first {_MAX_LINES} were not read")
            break
        spend()
        name = next(key for key in ("pbs", "lsf", "sge", "cobalt", "flux") if match[key])
        if scheduler and name != scheduler:
            continue
        scheduler = name
        for option in _OPTION.finditer(match["options"].rstrip()):
            start = match.start("options") + option.start()
            stop = match.start("options") + option.end()
            span = Span(file.path, number, start + 1, number, stop + 1, raw[:MAX_SNIPPET_LENGTH])
            value = (option["value"] or "").strip("\"'")
            for dest, text in _read_option(scheduler, option["name"], value):
                found: Value = Known(text)
                if _PLACEHOLDER.search(value):
                    found = Unresolved(f"{value} is replaced before the script is submitted")
                elif not text:
                    found = Unresolved("the batch header does not determine it")
                options[dest] = GivenOption(dest, found, span, option[0].strip())
    if not scheduler:
        return None
    _combine_options(options, scheduler)
    return BatchHeader(scheduler, options)


def _combine_options(options: dict[str, GivenOption], scheduler: str) -> None:
    """Derive what two options together determine, and drop what one alone does not determine."""
    chunks, place = options.pop("chunks", None), options.pop("place", None)
    if chunks is not None:
        scattered = place is not None and isinstance(place.value, Known) and "scatter" in str(place.value.value)
        gpus = options.get("gpus_per_node")
        is_whole_node = gpus is not None and isinstance(gpus.value, Known) and int(str(gpus.value.value)) >= _WHOLE_NODE
        single_chunk = chunks.value == Known("1")
        value = (
            chunks.value
            if scattered or is_whole_node or single_chunk
            else Unresolved("several chunks may share a host")
        )
        options["nodes"] = GivenOption("nodes", value, chunks.span, chunks.spelling)
        if not (scattered or is_whole_node or single_chunk):
            options.pop("gpus_per_node", None)
    slots, slots_per_host = options.pop("slots", None), options.pop("ptile", None)
    if slots is not None and slots_per_host is not None:
        # Without ptile, jobs on one host often start more processes than they have slots.
        options["mpi_slots"] = GivenOption("mpi_slots", slots.value, slots.span, slots.spelling)
    if scheduler == "lsf" and "nodes" not in options and slots is not None and slots_per_host is not None:
        total, tile = slots.value, slots_per_host.value
        if isinstance(total, Known) and isinstance(tile, Known):
            count, rest = divmod(int(str(total.value)), max(int(str(tile.value)), 1))
            options["nodes"] = GivenOption(
                "nodes", Known(str(count + bool(rest))), slots_per_host.span, slots_per_host.spelling
            )


def _read_option(scheduler: str, name: str, value: str) -> Iterator[tuple[str, str]]:
    """Read an option of a header as options of Slurm's, with their values."""
    if name == "-l" and scheduler in _RESOURCES:
        yield from _RESOURCES[scheduler](value)
        return
    for row in _HEADER_OPTIONS[scheduler]:
        match = re.search(row["value"], value) if name in row["names"] else None
        if match is not None:
            yield row["states"], row.get("written", "{}").format(match[1])
            return


def _pbs_resources(value: str) -> Iterator[tuple[str, str]]:
    for item in value.split(","):
        key, _, given = item.strip().partition("=")
        if key == "select":
            yield from _pbs_select(given)
        elif key == "nodes":
            yield from _torque_nodes(given)
        elif key == "walltime":
            yield "time", given
        elif key == "place":
            yield "place", given


def _pbs_select(value: str) -> Iterator[tuple[str, str]]:
    """Parse `2:ncpus=64:ngpus=4:mpiprocs=4:mem=200gb`; several kinds of chunk are joined by `+`."""
    kinds = [kind.split(":") for kind in value.split("+")]
    counts = ["1" if "=" in kind[0] else kind[0] for kind in kinds]
    known = all(is_whole_number(count) and len(count) < 7 for count in counts)
    yield "chunks", str(sum(int(count) for count in counts)) if known else ""
    resources = [dict(part.split("=", 1) for part in kind if "=" in part) for kind in kinds]
    slots_per_host = [resource.get("mpiprocs", "") for resource in resources]
    if known and all(is_whole_number(number) and len(number) < 7 for number in slots_per_host):
        yield (
            "mpi_slots",
            str(sum(int(count) * int(number) for count, number in zip(counts, slots_per_host, strict=True))),
        )
    for key, dest in (("ngpus", "gpus_per_node"), ("mem", "mem")):
        found = {resource.get(key, "") for resource in resources}
        if len(found) == 1 and (text := found.pop()) and (key == "mem" or is_whole_number(text)):
            yield dest, text


def _torque_nodes(value: str) -> Iterator[tuple[str, str]]:
    """Parse `4:ppn=8:gpus=2`; a list of host names yields nothing."""
    if "+" in value:
        return
    first, *rest = value.split(":")
    if is_whole_number(first) and len(first) < 7:
        yield "nodes", first
        for part in rest:
            key, _, number = part.partition("=")
            if key == "gpus" and is_whole_number(number):
                yield "gpus_per_node", number
            elif key == "ppn" and is_whole_number(number) and len(number) < 7:
                yield "mpi_slots", str(int(first) * int(number))


def _sge_resources(value: str) -> Iterator[tuple[str, str]]:
    for item in value.split(","):
        key, _, given = item.partition("=")
        if key in ("h_rt", "s_rt"):
            yield "time", given if ":" in given else f"0:{given}"


_RESOURCES = {"pbs": _pbs_resources, "sge": _sge_resources}
_HEADER_OPTIONS = toml.beside(__file__, "batch_headers.toml")


# Job steps of a script: what each srun starts, training or not, and whether its failure is noticed.
#
# Each step has its own scope, with the name of a launch on the same line. The claims of a step are located at its
# `srun`, or at the option that makes them.


#: Steps read from one script.
_MAX_STEPS = 200
_MAX_SPELLING = 100
#: Programs that reach the nodes of an allocation by themselves.
_REMOTE_STARTERS = toml.words(__file__, "words.toml", "remote-starters")
#: Commands that end at once.
_INSTANT = frozenset(("echo", "printf", "date", "cd", "export", "set", "true", ":", "unset", "mkdir", "ls", "hostname"))
_SIGNAL = re.compile(r"(?:SIG)?([A-Z]+[0-9]?)|([0-9]+)")
_SIGNAL_NAMES = {"2": "INT", "10": "USR1", "12": "USR2", "15": "TERM", "0": "EXIT", "18": "CONT", "1": "HUP"}


def state_steps(
    commands: Sequence[Command], header: Mapping[str, GivenOption], text: str, launches: Sequence[Launch] = ()
) -> tuple[Claim, ...]:
    """Return the claims about the steps of one script, and about how it waits for them.

    Args:
        commands: the evaluated commands.
        header: the options of the `#SBATCH` header; empty if there is none.
        text: the script, for constructs that are in no command (`${PIPESTATUS[0]}`).
        launches: the launches of the script; a step has the scope of the launch that it starts.
    """
    claims: list[Claim] = []
    seen: dict[str, int] = {}
    others = {launch.id for launch in launches if "srun" not in (launch.launcher, *launch.wrappers)}
    keeps_status = "PIPESTATUS" in text
    pipefail: set[int] = {0} if re.match(r"#!.*\bpipefail\b", text) else set()
    for command in commands:
        shell = id(command.outer) if command.outer is not None else 0
        words = [text_of(word) or "" for word in command.words]
        if words and words[0] == "set" and "pipefail" in words:
            before = words[words.index("pipefail") - 1]
            pipefail.discard(shell) if before.startswith("+") else pipefail.add(shell)
        claims.extend(_wait_claims(command, words))
        claims.extend(_setup_claims(command, words))
        srun = next((w for w in strip_wrappers(command).wrappers if w.name == "srun" and w.command is command), None)
        if srun is not None and len(seen) < _MAX_STEPS:
            key = f"{command.span.path}:{command.span.line}"
            seen[key] = seen.get(key, 0) + 1
            step = key if seen[key] == 1 else f"{key}#{seen[key]}"
            # `srun mkdir /scratch && torchrun train.py` is a step and, beside it, a launch.
            scope = Scope(launch=f"{step} srun" if step in others else step)
            hides = not keeps_status and shell not in pipefail
            claims.extend(_step_claims(command, srun, header, scope, hides=hides))
        elif seen and command.outer is None and is_python(command.words):
            builder = ClaimBuilder("shell", Scope(), command.condition)
            builder.add("program_beside_steps", Known(True), command.span, command.words[0].spelling)
            claims.extend(builder.claims)
    claims.extend(_left_behind(commands))
    return tuple(dict.fromkeys(claims))


def state_waits(commands: Sequence[Command]) -> Iterator[Claim]:
    """Yield claims about where a script waits for all that it has started in the background."""
    for command in commands:
        if command.outer is None and [text_of(word) for word in command.words] == ["wait"]:
            builder = ClaimBuilder("shell", Scope(), command.condition)
            builder.add("background_awaited", Known(True), command.span, "wait", strength=Strength.FLAG)
            yield from builder.claims


def _left_behind(commands: Sequence[Command]) -> Iterator[Claim]:
    """Yield a claim about the last command of a script if it is in the background and nothing after it takes time."""
    own = [command for command in commands if command.outer is None]
    for command in reversed(own):
        words = [text_of(word) or "" for word in command.words]
        if command.background and words:
            builder = ClaimBuilder("shell", Scope(), command.condition)
            spelling = _spelling(command)
            builder.add("left_behind", Known(True), command.span, spelling, strength=Strength.FLAG)
            yield from builder.claims
        if not words or posixpath.basename(words[0]) not in _INSTANT:
            return


def _step_claims(
    command: Command, srun: Wrapper, header: Mapping[str, GivenOption], scope: Scope, *, hides: bool
) -> tuple[Claim, ...]:
    builder = ClaimBuilder("srun", scope, command.condition)
    words = strip_wrappers(command).words
    spelling = _spelling(command)
    span = join_spans(srun.word.span, command.words[-1].span)

    def add(quantity: str, value: Value, shown: str = spelling) -> None:
        builder.add(quantity, value, span, shown, strength=Strength.SCHEDULER)

    add("step", _program(command))
    if is_python(words):
        program = python_program(words)
        if program is not None and program.module:
            add("step_module", program.words[0].value)
    state_launcher(builder, "srun", srun.word, srun.scanned)
    export = srun.scanned.last("export")
    names = exported_names(export) if export is not None else None
    if export is not None and names != []:
        listed: Value = (
            Known(",".join(names))
            if names is not None
            else Unresolved(f"{export.spelling}: the names are known only at run time")
        )
        builder.add(f"{SETTING_PREFIX}srun.export_names", listed, export)
    options = slurm.from_options(srun.scanned.given)
    unknown_options = Unresolved("options of srun that are known only at run time") if srun.scanned.incomplete else None
    _state_sizes(builder, options, header, unknown_options)
    cores = srun.scanned.last("cpus_per_task") or variable_setting(command.environment.get("SRUN_CPUS_PER_TASK"))
    if cores is not None:
        builder.add_setting("step_cpus_per_task", cores, as_int)
    elif unknown_options is not None:
        add("step_cpus_per_task", unknown_options)
    elif "cpus_per_gpu" in options or "cpu_bind" in options:
        option = options.get("cpus_per_gpu") or options["cpu_bind"]
        why = Unresolved(f"{option.spelling} determines the cores")
        builder.add("step_cpus_per_task", why, option, strength=Strength.SCHEDULER)
    gpus = next((options[name] for name in ("gpus", "gpus_per_node", "gres") if name in options), None)
    if gpus is not None:
        shown = str(gpus.value.value) if isinstance(gpus.value, Known) else ""
        value = Known(shown) if shown else Unresolved("the GPUs of the step are known only at run time")
        builder.add("step_gpus", value, gpus, strength=Strength.SCHEDULER)
    add("step_background", Known(command.background))
    where = srun.scanned.last("nodelist")
    if where is not None:
        builder.add("step_placed", Known(where.spelling), where)
    if command.repeated:
        add("step_repeated", Known(True))
    if command.pipe:
        add("step_pipe", Known(posixpath.basename(command.pipe)))
        add("step_pipe_hides_failure", Known(hides))
    kills = _kills_on_failure(command, srun)
    add("step_kills_on_failure", Known(True) if kills else unknown_options or Known(False))
    return tuple(builder.claims)


def _state_sizes(
    builder: ClaimBuilder,
    options: Mapping[str, GivenOption],
    header: Mapping[str, GivenOption],
    unknown_options: Unresolved | None,
) -> None:
    """Add claims for the nodes and tasks of a step; its own options override the header's."""
    # Fewer tasks than nodes need fewer nodes.
    if "ntasks" in options and options["ntasks"].value in (Known("1"), Known(1)):
        task_count = options["ntasks"]
        builder.add("step_nodes", Known(1), task_count, strength=Strength.SCHEDULER)
    else:
        nodes = options.get("nodes") or header.get("nodes")
        if nodes is not None:
            value = (
                unknown_options
                if unknown_options is not None and "nodes" not in options
                else slurm.nodes_of(nodes.value)
            )
            builder.add("step_nodes", value, nodes, strength=Strength.SCHEDULER)
    _state_tasks(builder, options, header, unknown_options)


def _state_tasks(
    builder: ClaimBuilder,
    options: Mapping[str, GivenOption],
    header: Mapping[str, GivenOption],
    unknown_options: Unresolved | None,
) -> None:
    """Add claims for the tasks of a step, in total and per node, from whichever of the two is given."""
    tasks = options.get("ntasks") or (None if {"nodes", "ntasks_per_node"} & set(options) else header.get("ntasks"))
    per_node = options.get("ntasks_per_node") or header.get("ntasks_per_node")
    node_count = options.get("nodes") or header.get("nodes")
    nodes: Value = slurm.nodes_of(node_count.value) if node_count is not None else Known(1)
    if tasks is not None:
        own_tasks, total = tasks, as_int(tasks.value)
        on_one = lift(lambda a, b: -(-int(str(a)) // int(str(b))), total, nodes)
    elif per_node is not None:
        own_tasks, on_one = per_node, as_int(per_node.value)
        total = lift(product_of, on_one, nodes)
    else:
        return
    own = "ntasks" in options or "ntasks_per_node" in options
    for quantity, value in (("step_tasks", total), ("step_tasks_per_node", on_one)):
        known = value if unknown_options is None or own else unknown_options
        builder.add(quantity, known, own_tasks, strength=Strength.SCHEDULER)


def _program(command: Command) -> Value:
    """Return the name of the program that srun starts; for `bash -c '...'`, the first word of the code."""
    words = strip_wrappers(command).words
    if not words:
        return Unresolved("an unknown program")
    name = program_name(words)
    if name in ("bash", "sh") and len(words) > 2 and (text_of(words[1]) or "").startswith("-"):
        inside = (text_of(words[2]) or "").split()
        return Known(posixpath.basename(inside[0])) if inside else Unresolved("code that is known only at run time")
    return Known(name) if name else Unresolved(f"`{words[0].spelling[:40]}`, which is known only at run time")


def _kills_on_failure(command: Command, srun: Wrapper) -> bool:
    given = srun.scanned.last("kill")
    if given is not None:
        return "0" not in alternatives(given.value)
    if any((text_of(word) or "").startswith("-K") for word in srun.scanned.unknown):
        return True
    variable = command.environment.get("SLURM_KILL_BAD_EXIT")
    return variable is not None and variable.value not in (Known("0"), Known(""))


def _spelling(command: Command) -> str:
    """Return a command on one line, shortened."""
    return " ".join(" ".join(word.spelling.split()) for word in command.words)[:_MAX_SPELLING]


def _setup_claims(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """Return claims about the directories that the script creates, the programs that reach nodes, and whether it
    requeues itself.
    """
    if not words or command.outer is not None:
        return ()
    builder = ClaimBuilder("shell", Scope(), command.condition)
    spelling = _spelling(command)
    name = posixpath.basename(words[0])
    if name in _REMOTE_STARTERS:
        builder.add("reaches_nodes", Known(name), command.span, spelling)
    elif words[0] == "mkdir":
        for word in words[1:]:
            if word and not word.startswith("-"):
                builder.add("directory_made", Known(word.rstrip("/")), command.span, spelling)
    elif words[:2] == ["scontrol", "requeue"]:
        builder.add("requeues_itself", Known(True), command.span, spelling)
    return tuple(builder.claims)


def _wait_claims(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """Return claims about the script's own `wait` and `trap` commands; a shell inside srun waits for its own
    processes.
    """
    if not words or command.outer is not None or words[0] not in ("wait", "trap"):
        return ()
    builder = ClaimBuilder("shell", Scope(), command.condition)
    spelling = _spelling(command)

    def add(quantity: str, value: Value) -> None:
        builder.add(quantity, value, command.span, spelling, strength=Strength.FLAG, relation=Relation.SETS)

    if words[0] == "wait":
        if len(words) == 1:
            add("plain_wait", Known(True))
        else:
            add("failure_watch", Known("wait"))
        return tuple(builder.claims)
    for word in words[2:]:
        match = _SIGNAL.fullmatch(word.upper())
        if match is None:
            continue
        signal = match[1] or _SIGNAL_NAMES.get(match[2], match[2])
        if signal in ("EXIT", "ERR", "CHLD"):
            add("failure_watch", Known(f"trap {signal}"))
        add("trapped_signal", Known(signal))
    return tuple(builder.claims)

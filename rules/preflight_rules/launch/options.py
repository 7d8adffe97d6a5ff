"""Launcher options: unknown options, invalid values, options after the program, hostfiles and lists of hosts."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Launch, NoteKind, Strength, Unresolved, is_whole_number, unparsed_number
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, quoted, why_unresolved
from preflight.sources.tables import Generated, Row, load_table
from preflight_rules.launches import is_placeholder
from preflight_rules.settings.tables import in_range, pinned, release

#: Launchers that stop at an unknown option, with their tables of options.
_STRICT_LAUNCHERS: dict[str, tuple[str, ...]] = {
    "torchrun": ("torchrun",),
    "torch.distributed.launch": ("torchrun", "torch_launch"),
    "deepspeed": ("deepspeed_runner",),
    "accelerate": ("accelerate_launch",),
    "composer": ("composer",),
    "colossalai": ("colossalai_run",),
    "ray": ("ray_start", "ray_job_submit"),
}
#: Programs before a launch whose own options are judged as a launcher's are.
_STARTERS: dict[str, tuple[str, ...]] = {"horovodrun": ("horovodrun",), "accelerate": ("accelerate_launch",)}
#: Bounds of numbers, the lower and the upper one, that a program checks after its parser (horovod 0.28,
#: runner/common/util/config_parser.py).
_BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "horovodrun": {
        **dict.fromkeys(
            (
                *("fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "autotune_warmup_samples"),
                *("autotune_steps_per_sample", "autotune_bayes_opt_max_samples", "stall_check_warning_time_seconds"),
                *("stall_check_shutdown_time_seconds", "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds"),
            ),
            (0, math.inf),
        ),
        "autotune_gaussian_process_noise": (0, 1),
    }
}
#: Choices that a parser takes from another module (horovod 0.28, runner/common/util/config_parser.py).
_CHOICES = {"horovodrun": {"log_level": ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")}}
#: Names of the same setting in different launchers.
_SYNONYMS = (
    ("nproc_per_node", "num_gpus", "nproc"),
    ("nnodes", "num_nodes", "num_machines"),
    ("node_rank", "machine_rank"),
    ("master_addr", "main_process_ip"),
    ("master_port", "main_process_port"),
    ("max_restarts",),
    ("hostfile", "deepspeed_hostfile"),
)
#: Similarity from which an unknown option is treated as a misspelling.
_MISSPELLING_SIMILARITY = 0.8


@rule(
    "LCH001",
    "launcher-option-unknown",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no launcher rejects unknown options",
)
def launcher_option_unknown(job: Job) -> Iterator[Verdict]:
    """A launcher is given an option that its parser does not know.

    What it checks: Every option before the program is declared by the launcher's own parser (abbreviations count where
    the launcher accepts them). An option that resembles a known one, or is another launcher's name for it, is an error;
    any other is a warning, because a newer version may have it.

    Why it matters: The launcher stops with its usage text on every node, after the job has waited for them.

    Example: `torchrun --nproc_pernode=8 train.py`, or `deepspeed --nproc_per_node=8 train.py`.

    Fix: Write the option as the launcher spells it, or put it after the program if it is the program's own.

    Known limits: The tables are those of the versions that the message names. Options that the caller adds are unknown.
    """
    for launch in job.launches:
        if _STRICT_LAUNCHERS.get(launch.launcher) is None and not any(name in _STARTERS for name in launch.wrappers):
            continue
        claims = [c for c in job.about("unknown_option", launch.scope) if c.scope.launch == launch.id]
        for claim in claims:
            program, tables = _tables(launch, claim)
            if _is_abbreviation(job, program, texts(claim.value)[0], tables):
                yield passed(launch.id)
            else:
                yield _unknown_option_finding(job, launch, claim, program, tables)
        if not claims and not launch.program and launch.launcher != "ray":
            yield unknown(launch.id, "cannot determine where the program starts on this line", at=launch)
        elif not claims:
            yield passed(launch.id)


#: The release since which a launcher refuses abbreviated options (accelerate/commands/launch.py, `allow_abbrev`).
_WHOLE_SINCE = {"accelerate": "0.18"}


def _is_abbreviation(job: Job, program: str, name: str, tables: Sequence[Generated]) -> bool:
    """Return whether the pinned release accepts `name` as an abbreviation, because only one option begins with it."""
    version = pinned(job, tables[0].distribution) if program in _WHOLE_SINCE else ""
    spellings = [spelling for table in tables for spelling in table.spellings()]
    matches = {spelling.replace("_", "-") for spelling in spellings if spelling.startswith(name)}
    return bool(version) and release(version) < release(_WHOLE_SINCE[program]) and len(matches) == 1


def _is_known_release(job: Job, table: Generated) -> bool:
    """Return whether the job's files pin a launcher release that the table covers."""
    version = pinned(job, table.distribution)
    return bool(version) and in_range(version, "", table.newest) is True


def _tables(launch: Launch, claim: Claim) -> tuple[str, tuple[Generated, ...]]:
    """Return the program that reads an option, and its tables."""
    if claim.source in _STARTERS:
        program, names = claim.source, _STARTERS[claim.source]
    else:
        program, names = launch.launcher, _STRICT_LAUNCHERS.get(launch.launcher, ())
    return program, tuple(map(load_table, names))


def _unknown_option_finding(
    job: Job, launch: Launch, claim: Claim, program: str, tables: tuple[Generated, ...]
) -> Verdict:
    name = texts(claim.value)[0]
    intended = _intended_option(name, tables)
    versions = f"{tables[0].distribution} {tables[0].newest}"
    return failed(
        launch.id,
        f"{program} has no option {quoted(claim)} ({versions})"
        + (f"; it has {intended}." if intended else ", and stops at an unknown option."),
        at=claim,
        also=((launch, "started here"),),
        remedy=f"Write {intended}."
        if intended
        else "Remove it, or move it after the program if it belongs to the program.",
        severity=None if intended or _is_known_release(job, tables[0]) else Severity.WARNING,
        fix=make_fix(f"write {intended} for {name}", replace_text(claim, name, intended), safe=False)
        if intended
        else None,
    )


def _intended_option(name: str, tables: tuple[Generated, ...]) -> str:
    """Return the launcher's own option that `name` is probably meant to be; empty if no option is similar."""
    spellings = sorted({spelling for table in tables for spelling in table.spellings()})
    bare_name = name.lstrip("-").replace("-", "_")
    # Names may differ only in `-` and `_`.
    for spelling in spellings:
        if spelling.startswith("--") and spelling.lstrip("-").replace("-", "_") == bare_name:
            return spelling
    for group in _SYNONYMS:
        if bare_name in group:
            for other in group:
                if f"--{other}" in spellings:
                    return f"--{other}"
    negated = ("--no-", "--no_")
    long = [spelling for spelling in spellings if spelling.startswith("--") and not spelling.startswith(negated)]
    matches = difflib.get_close_matches(name, long, n=1, cutoff=_MISSPELLING_SIMILARITY)
    return matches[0] if matches else ""


#: Counts that ARG001 judges, by launcher.
_COUNT_OPTIONS = {
    "torchrun": ("node_rank", "max_restarts", "nnodes", "nproc_per_node"),
    "deepspeed": ("num_nodes", "num_gpus", "node_rank", "max_restarts"),
}


@rule(
    "LCH008",
    "launcher-option-value-refused",
    severity=Severity.ERROR,
    otherwise="no launcher option with a fixed set of choices is given",
)
def launcher_option_value_refused(job: Job) -> Iterator[Verdict]:
    """A launcher option is given a value that is not one of its choices.

    What it checks: Options of torchrun, deepspeed and accelerate that take one of a few words, or a number, are given a
    valid value.

    Why it matters: The launcher stops with "invalid choice" or "invalid int value" before any rank starts.

    Example: `accelerate launch --mixed_precision fp61 train.py`.

    Fix: Write one of the words that the finding lists.

    Known limits: The words are those of the launcher versions that `preflight` knows; a newer version may accept more,
    so a word that resembles none of them is a warning unless the job's files pin a known release.
    """
    for launch in job.launches:
        for claim in job.about("chosen_value", launch.scope):
            program, tables = _tables(launch, claim)
            rows = [row for table in tables if (row := _option_row(claim, table)) is not None]
            if not rows:
                continue
            if any(text.startswith("--") or _is_program(launch, text) for text in texts(claim.value)):
                yield _missing_value_verdict(launch, claim, program)
                continue
            if (
                not rows[0].choices
                and program == launch.launcher
                and rows[0].dest in _COUNT_OPTIONS.get(launch.launcher, ())
            ):
                # ARG001 judges these options.
                continue
            words = rows[0].choices or _CHOICES.get(program, {}).get(rows[0].dest, ())
            if undecided_verdict := undecided(launch.id, (claim,), launch):
                yield undecided_verdict
            elif any(text in words for text in texts(claim.value)):
                yield passed(launch.id)
            elif not words:
                yield _number_verdict(launch, claim, rows[0], program)
            else:
                is_known_release = _is_known_release(job, tables[0])
                yield _refused_choice_finding(launch, claim, words, program, is_known_release=is_known_release)


def _option_row(claim: Claim, table: Generated) -> Row | None:
    return table.find(claim.spelling.replace("=", " ").split()[0])


def _is_program(launch: Launch, text: str) -> bool:
    """Return whether the value of the last option is the program, which the launch then lacks."""
    return not launch.program and text.endswith(".py")


def _missing_value_verdict(launch: Launch, claim: Claim, program: str) -> Verdict:
    name, _, following = " ".join(claim.spelling.split()).partition(" ")
    if following.startswith("--"):
        fault = f"but the option {following} follows: {program} stops with `expected one argument`"
    else:
        fault = f"so it consumes `{following}`, and {program} stops because no program is left"
    return failed(
        launch.id, f"`{name}` needs a value, {fault}.", at=claim, remedy=f"Give {name} a value, or remove it."
    )


def _number_verdict(launch: Launch, claim: Claim, row: Row, program: str) -> Verdict:
    """Return the verdict on whether the parser can convert the value to a number that the program accepts."""
    convert = int if row.kind == "int" else float
    low, high = _BOUNDS.get(program, {}).get(row.dest, (-math.inf, math.inf))
    is_out_of_range = False
    for text in texts(claim.value):
        try:
            # An option may take several numbers.
            values = [convert(word) for word in text.split()] or [convert(text)]
        except ValueError:
            continue
        if all(low <= number <= high for number in values):
            return passed(launch.id)
        is_out_of_range = True
    if is_out_of_range:
        allowed = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        return failed(
            launch.id,
            f"{quoted(claim)} is out of range: {program} accepts only a number {allowed}, so it stops.",
            at=claim,
            remedy=f"Write a number {allowed}.",
        )
    return failed(
        launch.id,
        f"{quoted(claim)} is not {'a whole number' if row.kind == 'int' else 'a number'}: {program} stops with"
        f" `invalid {row.kind} value`.",
        at=claim,
        remedy=f"Write {'a whole number' if row.kind == 'int' else 'a number'}.",
    )


def _refused_choice_finding(
    launch: Launch, claim: Claim, words: tuple[str, ...], program: str, *, is_known_release: bool
) -> Verdict:
    matches = difflib.get_close_matches(texts(claim.value)[0], words, n=1)
    return failed(
        launch.id,
        f"{quoted(claim)} is not one of the choices of {program}: {', '.join(words)}.",
        at=claim,
        remedy=f"Write {matches[0]}." if matches else f"Write one of {', '.join(words)}.",
        severity=None if matches or is_known_release else Severity.WARNING,
    )


#: Options that set how many processes a launcher starts; after the program they do not reach the launcher. Hardly any
#: program has an option of `_LAUNCHER_ONLY`.
_LAUNCHER_ONLY = {
    "torchrun": ("nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "standalone"),
    "torch.distributed.launch": ("nproc_per_node",),
    "accelerate": ("num_processes", "num_machines", "main_process_ip", "main_process_port"),
    "paddle": ("nproc_per_node",),
}
_LAUNCHER_LIKELY = {
    "torchrun": ("nnodes", "max_restarts", "master_addr", "master_port"),
    "torch.distributed.launch": ("nnodes", "master_addr", "master_port"),
    "deepspeed": ("num_gpus", "num_nodes", "hostfile", "include", "exclude"),
    "accelerate": ("machine_rank", "mixed_precision"),
    "paddle": ("gpus", "devices", "nnodes", "master", "ips"),
}
#: Options of wrappers that hardly any program has.
_WRAPPER_ONLY = {
    "srun": (
        *("ntasks_per_node", "cpus_per_task", "gres", "gpus_per_task", "gpus_per_node", "gpu_bind", "cpu_bind"),
        *("kill_on_bad_exit", "container_image", "container_mounts", "nodelist"),
    ),
    "mpirun": ("mca", "map_by", "bind_to", "allow_run_as_root", "oversubscribe", "report_bindings"),
}


@rule(
    "LCH002",
    "launcher-option-behind-program",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launcher starts a known program",
)
def launcher_option_behind_program(job: Job) -> Iterator[Verdict]:
    """A launcher option comes after the program, so it is passed to the program instead of the launcher.

    What it checks: Options that only the launcher knows (`--nproc_per_node`, `--rdzv_endpoint`, `--num_gpus`,
    `--num_processes`), and those of srun and mpirun before it (`--gres`, `--mca`), come before the program. An option
    that the program's own parser declares is the program's. Options of `docker run`, `podman run` and `apptainer exec`
    come before the image.

    Why it matters: Everything after the program is passed to the program. The launcher uses its default (one process,
    one node), and the program stops at the option or ignores it.

    Example: `torchrun train.py --nproc_per_node 8`.

    Fix: Move it before the program.

    Known limits: If the program's own parser cannot be followed, only options that hardly any program has are reported.
    An option between an image and no known program may be one of the image's entrypoint.
    """
    for claim in job.about("option_behind_image"):
        yield _behind_image_verdict(claim)
    for launch in job.launches:
        certain, possible = _LAUNCHER_ONLY.get(launch.launcher, ()), _LAUNCHER_LIKELY.get(launch.launcher, ())
        of_wrappers = {name: wrapper for wrapper in launch.wrappers for name in _WRAPPER_ONLY.get(wrapper, ())}
        certain = (*certain, *of_wrappers)
        if not launch.program or not (certain or possible):
            continue
        if any(claim.scope.launch == launch.id for claim in job.about("unknown_option", launch.scope)):
            # The word after an unknown option may be its value instead of the program.
            yield unknown(launch.id, "an option before the program is unknown", at=launch)
            continue
        declared = job.about("declared_options", launch.scope)
        option_lists = [value for claim in declared for value in claim.alternatives if isinstance(value, tuple)]
        known_names = {_bare_name(str(name)) for options in option_lists for name in options}
        options = [text.partition("=")[0] for text in launch.arguments if text and text.startswith("--")]
        known_names |= _launcher_options(job, launch)
        options = [
            text
            for text in options
            if _bare_name(text) in (*certain, *possible) and _bare_name(text) not in known_names
        ]
        # The programs of Paddle's suites have no option of the launcher (ppcls, ppocr, ppdet: `-c FILE -o KEY=VALUE`).
        is_suite_program = "-c" in launch.arguments and re.search(r"(?:^|/)tools/\w+\.py$", launch.program) is not None
        certain_options = [text for text in options if declared or is_suite_program or _bare_name(text) in certain]
        if certain_options:
            starter = of_wrappers.get(_bare_name(certain_options[0]), launch.launcher)
            yield failed(
                launch.id,
                f"`{certain_options[0]}` comes after `{launch.program}`, so the program gets it, not {starter}:"
                f" {'the launcher' if starter == launch.launcher else starter} uses its default.",
                at=launch,
                also=((declared[0], "declares no such option"),) if declared else (),
                remedy=f"Move `{certain_options[0]}` before `{launch.program}`.",
            )
        elif options or (None in launch.arguments and not declared):
            yield unknown(launch.id, "cannot determine which options the program accepts", at=launch)
        else:
            yield passed(launch.id)


def _behind_image_verdict(claim: Claim) -> Verdict:
    subject = claim.scope.launch
    if isinstance(claim.value, Unresolved):
        return unknown(subject, f"{quoted(claim)} comes after the image: {claim.value.why}", at=claim)
    return failed(
        subject,
        f"{quoted(claim)} comes after the image, so it is not an option of the engine: the container would run it as"
        " its program.",
        at=claim,
        remedy=f"Move {quoted(claim)} before the image.",
    )


def _launcher_options(job: Job, launch: Launch) -> set[str]:
    """Return the options before the program, which may be repeated for the program."""
    return {
        _bare_name(claim.spelling.partition("=")[0].partition(" ")[0])
        for claim in job.claims
        if claim.scope.launch == launch.id and claim.strength is Strength.FLAG and claim.source != "arguments"
    }


def _bare_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


#: Variables that set a proxy for gRPC and HTTP clients, and variables that list exceptions from it.
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy", "ALL_PROXY")
_EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@rule(
    "LCH003",
    "proxy-without-exceptions",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="nothing in the job uses HTTP or gRPC between nodes",
)
def proxy_without_exceptions(job: Job) -> Iterator[Verdict]:
    """A proxy is set for a job whose nodes talk to each other over HTTP or gRPC, and `no_proxy` is not set.

    What it checks: If `http_proxy` or `https_proxy` is exported for Ray, TensorFlow's servers (TF_CONFIG), Paddle's
    parameter servers or an etcd rendezvous, `no_proxy` is also set.

    Why it matters: gRPC and HTTP clients send requests for the head node, the parameter server or etcd to the proxy,
    which cannot reach it: "Socket closed", "UNAVAILABLE", a dashboard that never responds.

    Example: `export https_proxy=http://proxy:3128` above `ray start --head --port=6379`.

    Fix: `export no_proxy=localhost,127.0.0.1,.cluster.local,10.0.0.0/8`, with the names and addresses of the nodes.

    Known limits: Newer Ray disables proxies for gRPC, but not for the dashboard and `ray job submit`. Whether
    `no_proxy` contains the right hosts is not checked; torch's TCP store and NCCL use no proxy.
    """
    for launch in job.launches:
        user = _proxy_user(job, launch)
        if not user:
            continue
        proxies = [c for name in _PROXIES for c in job.setting(f"env.{name}", launch.scope) if texts(c.value) != ("",)]
        exceptions = [c for name in _EXCEPTIONS for c in job.setting(f"env.{name}", launch.scope)]
        unresolved = why_unresolved(proxies[:1], launch)
        if not proxies or exceptions:
            yield passed(launch.id)
        elif unresolved is not None:
            yield unknown(launch.id, f"{quoted(proxies[0])} is unknown: {unresolved[1]}", at=proxies[0])
        else:
            yield failed(
                launch.id,
                f"{quoted(proxies[0])} applies to {user}, and no_proxy is not set, so its nodes connect to each "
                "other through the proxy.",
                at=proxies[0],
                also=((launch, "started with the proxy"),),
                remedy="Export no_proxy with the names and addresses of the nodes, or unset the proxy before the"
                " launch.",
            )


def _proxy_user(job: Job, launch: Launch) -> str:
    """Return what connects the nodes of a launch over gRPC or HTTP, for display; empty if nothing does."""
    if launch.launcher == "ray":
        return "Ray"
    if job.setting("env.TF_CONFIG", launch.scope):
        return "TensorFlow's servers"
    if job.about("ps_role", launch.scope) or job.about("transpiler", launch.scope):
        return "Paddle's parameter servers"
    kinds = texts(job_value(job.setting("rendezvous_backend", launch.scope)))
    return "the etcd rendezvous" if any(text.startswith("etcd") for text in kinds) else ""


_LAUNCHERS = frozenset(("torchrun", "deepspeed", "paddle"))
_COUNT_QUANTITIES = ("nodes", "processes_per_node", "node_rank", "max_restarts", "ps_servers", "ps_workers")


@rule(
    "ARG001",
    "launcher-count-not-a-number",
    severity=Severity.ERROR,
    fix="safe",
    otherwise="no launch line passes a number to a launcher",
)
def launcher_count_not_a_number(job: Job) -> Iterator[Verdict]:
    """A launcher option that expects a whole number is given another value.

    What it checks: The numbers of nodes, processes, servers, trainers and restarts, and the node rank, that a launch
    line gives are whole numbers, or one of the words that the launcher also accepts. A placeholder (`<rank>`,
    `NODE_RANK`) is a warning.

    Why it matters: The launcher stops on that node with "invalid int value", while the nodes with a correct line wait
    for it.

    Example: `fleetrun --nnodes=2 --trainer_num =1 train.py`, where the space makes the value "=1".

    Fix: Write the number directly after `=`, or after a space.

    Known limits: Only options of the launcher itself are judged, not those of the script.
    """
    for launch in job.launches:
        for claim in distinct(c for quantity in _COUNT_QUANTITIES for c in job.about(quantity, launch.scope)):
            if claim.source not in _LAUNCHERS or claim.strength is not Strength.FLAG or claim.scope.launch != launch.id:
                continue
            word = unparsed_number(claim.value)
            is_submitted = SUBMISSION in launch.wrappers or not _SUBMITTED.isdisjoint(launch.wrappers)
            if word is not None and ("{{" in word or ("$" in word and is_submitted)):
                yield unknown(launch.id, f"{quoted(claim)} is a placeholder", at=claim)
                continue
            unresolved = why_unresolved((claim,), launch)
            if word is None and unresolved is not None:
                yield unknown(launch.id, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
            elif word is None:
                yield passed(launch.id)
            else:
                is_blank = not word or is_placeholder(word)
                yield failed(
                    launch.id,
                    f"{quoted(claim)} gives {word!r}, but {launch.launcher} expects a whole number"
                    + (": it looks like a placeholder." if is_blank else "."),
                    at=claim,
                    remedy="Write a whole number"
                    + (", without spaces around the `=`." if word.startswith("=") else "."),
                    severity=Severity.WARNING if is_blank else None,
                    fix=_joined_value_fix(claim, word),
                )


#: Programs that pass a command line to a shell on another machine.
_SUBMITTED = frozenset(("ssh", "bsub", "qsub", "sbatch", "sky", "pdsh", "clush"))


def _joined_value_fix(claim: Claim, word: str) -> Fix | None:
    """Return a fix that removes the space in `--trainer_num =1`."""
    space = re.search(rf"\s+{re.escape(word)}$", claim.spelling) if re.fullmatch(r"=\d+", word) else None
    if space is None:
        return None
    return make_fix("remove the space before =", replace_text(claim, space[0], word), safe=True)


# Hostfiles, lists of hosts, and what deepspeed's `--include` and `--exclude` select of them.


@rule(
    "HST001", "host-listed-twice", severity=Severity.ERROR, otherwise="no list of hosts is given to deepspeed or Paddle"
)
def host_listed_twice(job: Job) -> Iterator[Verdict]:
    """A list of hosts names a host twice.

    What it checks: The hosts of a hostfile that deepspeed reads, and of Paddle's `--ips`, are all different.

    Why it matters: DeepSpeed stops with "Hostfile contains multiple entries". Elsewhere two nodes' worth of ranks start
    on one host, and another host is missing.

    Example: Two lines `worker-1 slots=8` in a hostfile.

    Fix: Write each host once, with all its slots.

    Known limits: For MPI several lines for one host are the normal way to give it several slots, so nothing is
    reported.
    """
    for launch in (launch for launch in job.launches if launch.launcher in ("deepspeed", "paddle")):
        for claim in (claim for claim in job.value_claims("hosts", launch.scope) if claim.source != "slurm"):
            verdict = undecided(launch.id, (claim,), launch)
            lists = [value for value in claim.alternatives if isinstance(value, tuple)]
            if verdict is None and lists and all(is_placeholder(str(host)) for hosts in lists for host in hosts):
                verdict = unknown(launch.id, f"{quoted(claim)} names placeholders instead of hosts", at=claim)
            elif verdict is None and lists and all(len(set(hosts)) < len(hosts) for hosts in lists):
                verdict = _duplicate_finding(launch.id, claim, tuple(str(host) for host in lists[0]))
            yield verdict or passed(launch.id)


def _duplicate_finding(subject: str, claim: Claim, hosts: tuple[str, ...]) -> Verdict:
    host = next(host for host in hosts if hosts.count(host) > 1)
    lines = [line for line in claim.because if line.scope.node == host]
    place = lines[1] if len(lines) > 1 else claim
    is_hostfile = claim.source == "hostfile"
    return failed(
        subject,
        f"{host} is listed {hosts.count(host)} times"
        + (": DeepSpeed stops with 'Hostfile contains multiple entries'." if is_hostfile else f" in {quoted(claim)}."),
        at=place,
        also=((lines[0], "first entry"),) if len(lines) > 1 else (),
        remedy=f"List {host} once, with all its slots." if is_hostfile else f"List {host} once.",
        severity=None if is_hostfile else Severity.WARNING,
    )


@rule("HST002", "host-without-slots", severity=Severity.WARNING, otherwise="no hostfile sets slots")
def host_without_slots(job: Job) -> Iterator[Verdict]:
    """A hostfile gives a host zero slots.

    What it checks: `slots=` of every host of a hostfile is above 0.

    Why it matters: No rank is started on that host, although it is counted as a node of the job.

    Example: `worker-2 slots=0`.

    Fix: Set the host's number of GPUs, or remove the host.

    Known limits: Whether the host has as many GPUs as slots is checked by `preflight check`.
    """
    for claim in distinct(job.about("host_slots")):
        slot_counts = numbers(claim.value)
        if (unresolved := why_unresolved((claim,))) is not None:
            yield unknown(claim.scope.node, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
        elif slot_counts and max(slot_counts) < 1:
            yield failed(
                claim.scope.node,
                f"{quoted(claim)} gives {claim.scope.node} zero slots, so no rank starts there.",
                at=claim,
                remedy=f"Give {claim.scope.node} as many slots as it has GPUs, or remove the line.",
            )
        else:
            yield passed(claim.scope.node)
    read_paths = {file.path for file in job.files}
    for reference in (r for r in job.references if r.role == "hostfile" and r.target not in read_paths):
        yield unknown(reference.target, f"hostfile {reference.target} was not read", at=reference.span)


@rule(
    "HST003",
    "hostfile-missing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch names a hostfile",
)
def hostfile_missing(job: Job) -> Iterator[Verdict]:
    """A launch names a hostfile that does not exist.

    What it checks: A hostfile that a launch line refers to by a path inside the root exists.

    Why it matters: deepspeed prints "Unable to find hostfile, will proceed with training with local resources only" and
    trains on one node, while the others are paid for.

    Example: `deepspeed --hostfile=hostfile train.py` with no file `hostfile` next to the script.

    Fix: Correct the path, or add the file.

    Known limits: A hostfile that is written when the job starts, by something other than the launch script itself, does
    not exist yet; a path outside the root is not checked.
    """
    references = {reference.target: reference for reference in job.references if reference.role == "hostfile"}
    read_paths = {file.path for file in job.files}
    for target, reference in references.items():
        missing = [
            note
            for note in job.notes
            if note.kind is NoteKind.MISSING and (note.span == reference.span or note.span.path == target)
        ]
        launch = next((run for run in job.launches if run.id == reference.scope.launch), None)
        subject = reference.scope.launch or job.name
        is_deepspeed = launch is not None and launch.launcher == "deepspeed"
        if target in read_paths:
            yield passed(subject)
        elif missing and any(target in texts(claim.value) for claim in job.about("produced_hostfile")):
            yield unknown(subject, f"the script writes hostfile {target} when it runs", at=reference.span)
        elif missing:
            yield failed(
                subject,
                f"hostfile {target} does not exist"
                + (": deepspeed then trains on this node alone and only logs a warning." if is_deepspeed else "."),
                at=reference.span,
                remedy=f"Add {target}, or correct the path.",
            )
        else:
            yield unknown(subject, f"hostfile {target} was not read", at=reference.span)


_FILTERS = ("included_slots", "excluded_slots")


@rule(
    "HST004",
    "filter-names-unknown-host-or-slot",
    severity=Severity.ERROR,
    otherwise="no launch selects hosts from a hostfile",
)
def filter_names_unknown_host_or_slot(job: Job) -> Iterator[Verdict]:
    """`--include` or `--exclude` of deepspeed names a host or slot that the hostfile does not have.

    What it checks: Every host of `--include` and `--exclude` is in the hostfile that the launch is given, and every
    slot is below that host's `slots=`.

    Why it matters: DeepSpeed stops before anything starts: "No slot '2' specified on host 'w1'". Slots count from 0 and
    name devices, so a hostfile with `slots=2` has only 0 and 1, regardless of the machine's other devices.

    Example: `w1 slots=2` in the hostfile and `--include=w1:2,3`.

    Fix: List every device of the machine in the hostfile (`w1 slots=4`), and select with --include.

    Known limits: Without a hostfile, DeepSpeed uses the devices of the machine, which the files do not show.
    """
    for launch in job.launches:
        slots = {c.scope.node: c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)}
        for quantity in _FILTERS:
            for claim in job.value_claims(quantity, launch.scope):
                if launch.launcher != "deepspeed" or not slots:
                    continue
                undecided_verdict = undecided(launch.id, (claim, *slots.values()), launch)
                yield undecided_verdict or _entries_verdict(launch, claim, slots)


def _entries_verdict(launch: Launch, claim: Claim, slots: dict[str, Claim]) -> Verdict:
    if len(claim.alternatives) != 1 or not isinstance(claim.alternatives[0], tuple):
        return unknown(launch.id, f"{quoted(claim)} has several values", at=claim)
    for entry in claim.alternatives[0]:
        host, _, slot_text = str(entry).partition(":")
        if host not in slots:
            return failed(
                launch.id,
                f"{quoted(claim)} names {host}, which is not in the hostfile: DeepSpeed fails at startup.",
                at=claim,
                also=((next(iter(slots.values())), "the hostfile"),),
                remedy=f"Name one of {', '.join(sorted(slots)[:8])}, or add {host} to the hostfile.",
            )
        slot_counts = numbers(slots[host].value)
        missing = [
            part
            for part in slot_text.split(",")
            if is_whole_number(part) and slot_counts and int(part) >= max(slot_counts)
        ]
        if missing:
            return failed(
                launch.id,
                f"{quoted(claim)} names slot {missing[0]} of {host}, but {quoted(slots[host])} gives the host slots "
                f"0 to {max(slot_counts) - 1}: DeepSpeed fails at startup.",
                at=claim,
                also=((slots[host], f"{joined(slot_counts)} slots"),),
                remedy=f"Give {host} as many slots as it has GPUs, and select among them with --include.",
            )
    return passed(launch.id)


@rule("HST005", "filter-beside-count", severity=Severity.ERROR, otherwise="no deepspeed launch selects hosts or slots")
def filter_beside_count(job: Job) -> Iterator[Verdict]:
    """deepspeed is given both a filter of hosts and a number of nodes or GPUs.

    What it checks: A deepspeed line has either `--include` or `--exclude`, or `--num_nodes` or `--num_gpus`, but not
    both kinds.

    Why it matters: DeepSpeed stops with "Cannot specify num_nodes/gpus with include/exclude".

    Example: `deepspeed --include localhost:0,1 --num_gpus 2 train.py`.

    Fix: Remove the counts; the filter already determines them.

    Known limits: None known.
    """
    for launch in job.launches:
        filters = [claim for quantity in _FILTERS for claim in job.about(quantity, launch.scope)]
        if launch.launcher != "deepspeed" or not filters:
            continue
        counts = [
            claim
            for quantity in ("nodes", "processes_per_node")
            for claim in job.about(quantity, launch.scope)
            if claim.source == "deepspeed" and claim.spelling.startswith(("--num_nodes", "--num_gpus"))
        ]
        undecided_verdict = undecided(launch.id, (filters[0], *counts[:1]), launch) if counts else None
        if undecided_verdict is not None:
            yield undecided_verdict
        elif counts:
            yield failed(
                launch.id,
                f"{quoted(filters[0])} and {quoted(counts[0])} are mutually exclusive: DeepSpeed fails at startup.",
                at=counts[0],
                also=((filters[0], "the filter"),),
                remedy=f"Remove {quoted(counts[0])}; the filter already determines the count.",
            )
        else:
            yield passed(launch.id)

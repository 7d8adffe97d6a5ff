"""What a launcher's own parser takes: unknown options, and options that stand where it does not look."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight.tables.accelerate_launch import ACCELERATE_LAUNCH
from preflight.tables.colossalai_run import COLOSSALAI_RUN
from preflight.tables.composer import COMPOSER
from preflight.tables.deepspeed_runner import DEEPSPEED_RUNNER
from preflight.tables.ray_job_submit import RAY_JOB_SUBMIT
from preflight.tables.ray_start import RAY_START
from preflight.tables.row import Generated, Row
from preflight.tables.torch_launch import TORCH_LAUNCH
from preflight.tables.torchrun import TORCHRUN
from preflight_rules.reading import job_value, quoted, texts, undecided, why_unresolved

#: The launchers that stop at an option they do not know, each with its tables.
_STRICT: dict[str, tuple[Generated, ...]] = {
    "torchrun": (TORCHRUN,),
    "torch.distributed.launch": (TORCHRUN, TORCH_LAUNCH),
    "deepspeed": (DEEPSPEED_RUNNER,),
    "accelerate": (ACCELERATE_LAUNCH,),
    "composer": (COMPOSER,),
    "colossalai": (COLOSSALAI_RUN,),
    "ray": (RAY_START, RAY_JOB_SUBMIT),
}
#: What different launchers call one thing.
_SYNONYMS = (
    ("nproc_per_node", "num_gpus", "nproc"),
    ("nnodes", "num_nodes", "num_machines"),
    ("node_rank", "machine_rank"),
    ("master_addr", "main_process_ip"),
    ("master_port", "main_process_port"),
    ("max_restarts",),
    ("hostfile", "deepspeed_hostfile"),
)
#: How alike two names must be to be taken for one.
_ALIKE = 0.8


@rule(
    "LCH001",
    "launcher-option-unknown",
    severity=Severity.ERROR,
    fix="unsafe",
    profile="gate",
    evidence=(
        "https://docs.python.org/3/library/argparse.html",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "huggingface/accelerate#1489",
    ),
)
def launcher_option_unknown(job: Job) -> Iterator[Verdict]:
    """A launcher is given an option that its parser does not know.

    What it checks:
        Every option in front of the program is one of the launcher's, as its own parser declares them (abbreviations
        count where it takes them). One that resembles a known option, or is another launcher's name for it, is an
        error; any other is a warning, because a newer version may have it.

    Why it matters:
        The launcher stops with its usage text on every node, after the job has waited for them.

    Example:
        `torchrun --nproc_pernode=8 train.py`, or `deepspeed --nproc_per_node=8 train.py`.

    Fix:
        Write the option as the launcher calls it, or put it behind the program if it belongs to that.

    Known limits:
        The tables are those of the versions that the message names. Options that come from outside are not known.

    Evidence:
        Python documentation, argparse; torchrun documentation; huggingface/accelerate#1489.
    """
    met = False
    for launch in job.launches:
        tables = _STRICT.get(launch.launcher)
        if tables is None:
            continue
        met = True
        claims = [c for c in job.about("unknown_option", launch.scope) if c.scope.launch == launch.id]
        for claim in claims:
            yield _unknown_option(launch, claim, tables)
        if not claims and not launch.program and launch.launcher != "ray":
            yield unknown(launch.id, "where the program stands on this line cannot be told", at=launch)
        elif not claims:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launcher that is strict about its options")


def _unknown_option(launch: Launch, claim: Claim, tables: tuple[Generated, ...]) -> Verdict:
    name = texts(claim.value)[0]
    meant = _meant(name, tables)
    versions = f"{tables[0].distribution} {tables[0].newest}"
    return failed(
        launch.id,
        f"{launch.launcher} knows no option {quoted(claim)} ({versions})"
        + (f"; it has {meant}." if meant else ", and stops at what it does not know."),
        at=claim,
        also=((launch, "started here"),),
        remedy=f"Write {meant}." if meant else "Drop it, or put it behind the program if it is meant for that.",
        severity=None if meant else Severity.WARNING,
        fix=mend(f"write {meant} for {name}", reworded(claim, name, meant), safe=False) if meant else None,
    )


def _meant(name: str, tables: tuple[Generated, ...]) -> str:
    """The launcher's own option that was probably meant; empty when there is none."""
    spellings = sorted({spelling for table in tables for spelling in table.spellings()})
    plain = name.lstrip("-").replace("-", "_")
    # The same name with the other kind of dash.
    for spelling in spellings:
        if spelling.startswith("--") and spelling.lstrip("-").replace("-", "_") == plain:
            return spelling
    for group in _SYNONYMS:
        if plain in group:
            for other in group:
                if f"--{other}" in spellings:
                    return f"--{other}"
    negated = ("--no-", "--no_")
    long = [spelling for spelling in spellings if spelling.startswith("--") and not spelling.startswith(negated)]
    close = difflib.get_close_matches(name, long, n=1, cutoff=_ALIKE)
    return close[0] if close else ""


@rule(
    "LCH008",
    "launcher-option-value-refused",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://huggingface.co/docs/accelerate/package_reference/cli",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)
def launcher_option_value_refused(job: Job) -> Iterator[Verdict]:
    """An option of a launcher is given a word that is none of those it takes.

    What it checks:
        Options of torchrun, deepspeed and accelerate that take one of a few words are given one of these.

    Why it matters:
        The launcher stops with "invalid choice" before any rank starts.

    Example:
        `accelerate launch --mixed_precision fp61 train.py`.

    Fix:
        Write one of the words that the finding lists.

    Known limits:
        Which words there are is read from the versions of the launchers that `preflight` knows; a newer one may take
        more, so a word that is like none of them is a warning.

    Evidence:
        accelerate documentation (command line); torchrun documentation.
    """
    met = False
    for launch in job.launches:
        for claim in job.about("chosen_value", launch.scope):
            rows = [row for table in _STRICT.get(launch.launcher, ()) if (row := _row(claim, table)) is not None]
            if not rows:
                continue
            met = True
            words, open_end = rows[0].choices, undecided(launch.id, (claim,), launch)
            if open_end is not None:
                yield open_end
            elif any(text in words for text in texts(claim.value)):
                yield passed(launch.id)
            else:
                yield _refused(launch, claim, words)
    if not met:
        yield not_applicable(job.name, "no option of a launcher that takes only some words is given")


def _row(claim: Claim, table: Generated) -> Row | None:
    return table.find(claim.spelling.replace("=", " ").split()[0])


def _refused(launch: Launch, claim: Claim, words: tuple[str, ...]) -> Verdict:
    close = difflib.get_close_matches(texts(claim.value)[0], words, n=1)
    return failed(
        launch.id,
        f"{quoted(claim)} is none of what {launch.launcher} takes there: {', '.join(words)}.",
        at=claim,
        remedy=f"Write {close[0]}." if close else f"Write one of {', '.join(words)}.",
        severity=None if close else Severity.WARNING,
    )


#: Options by which a launcher decides how much it starts: found behind the program, they went to the wrong one. Those
#: of `_CERTAIN` are hardly ever a program's own.
_CERTAIN = {
    "torchrun": ("nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "standalone"),
    "torch.distributed.launch": ("nproc_per_node",),
    "accelerate": ("num_processes", "num_machines", "main_process_ip", "main_process_port"),
}
_POSSIBLE = {
    "torchrun": ("nnodes", "max_restarts", "master_addr", "master_port"),
    "torch.distributed.launch": ("nnodes", "master_addr", "master_port"),
    "deepspeed": ("num_gpus", "num_nodes", "hostfile", "include", "exclude"),
    "accelerate": ("machine_rank", "mixed_precision"),
}


@rule(
    "LCH002",
    "launcher-option-behind-program",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html", "hiyouga/LlamaFactory#1683"),
)
def launcher_option_behind_program(job: Job) -> Iterator[Verdict]:
    """An option of the launcher stands behind the program, which gets it instead.

    What it checks:
        Options that only the launcher knows (`--nproc_per_node`, `--rdzv_endpoint`, `--num_gpus`, `--num_processes`)
        stand in front of the program. An option that the program's own parser declares is the program's.

    Why it matters:
        Everything behind the program is the program's. The launcher takes its default (one process, one node), and
        the program stops at the option or ignores it.

    Example:
        `torchrun train.py --nproc_per_node 8`.

    Fix:
        Move it in front of the program.

    Known limits:
        Where the program's own parser cannot be followed, only options that hardly any program has are reported.

    Evidence:
        torchrun documentation (usage); hiyouga/LlamaFactory#1683.
    """
    met = False
    for launch in job.launches:
        certain, possible = _CERTAIN.get(launch.launcher, ()), _POSSIBLE.get(launch.launcher, ())
        if not launch.program or not (certain or possible):
            continue
        met = True
        declared = job.about("declared_options", launch.scope)
        lists = [value for claim in declared for value in claim.alternatives if isinstance(value, tuple)]
        known = {_plain(str(name)) for found in lists for name in found}
        found = [text.partition("=")[0] for text in launch.arguments if text and text.startswith("--")]
        found = [text for text in found if _plain(text) in (*certain, *possible) and _plain(text) not in known]
        sure = [text for text in found if declared or _plain(text) in certain]
        if sure:
            yield failed(
                launch.id,
                f"`{sure[0]}` stands behind `{launch.program}`, so the program gets it and {launch.launcher} does not:"
                " the launcher takes its default.",
                at=launch,
                also=((declared[0], "declares no such option"),) if declared else (),
                remedy=f"Move `{sure[0]}` in front of `{launch.program}`.",
            )
        elif found or (None in launch.arguments and not declared):
            yield unknown(launch.id, "which options the program has cannot be told", at=launch)
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launcher starts a known program")


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


#: Programs whose nodes speak gRPC or HTTP with each other, and what shows it.
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy", "ALL_PROXY")
_EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@rule(
    "LCH003",
    "proxy-without-exceptions",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "ray-project/ray#14350",
        "tensorflow/tensorflow#24887",
        "tensorflow/tensorflow#15274",
        "https://github.com/grpc/grpc/blob/master/doc/environment_variables.md",
    ),
)
def proxy_without_exceptions(job: Job) -> Iterator[Verdict]:
    """A proxy is set for a job whose nodes speak HTTP or gRPC with each other, and no host is excepted.

    What it checks:
        Where `http_proxy` or `https_proxy` is exported for Ray, for TensorFlow's servers (TF_CONFIG) or for an etcd
        rendezvous, that `no_proxy` is set too.

    Why it matters:
        gRPC and HTTP clients send what is meant for the head node, the parameter server or etcd to the proxy, which
        cannot reach it: "Socket closed", "UNAVAILABLE", a dashboard that never answers.

    Example:
        `export https_proxy=http://proxy:3128` above `ray start --head --port=6379`.

    Fix:
        `export no_proxy=localhost,127.0.0.1,.cluster.local,10.0.0.0/8`, with the names and addresses of the nodes.

    Known limits:
        Newer Ray turns proxies off for gRPC, but not for the dashboard and `ray job submit`. Whether `no_proxy` holds
        the right hosts is not judged; torch's TCP store and NCCL use no proxy.

    Evidence:
        ray-project/ray#14350, tensorflow/tensorflow#24887, tensorflow/tensorflow#15274; gRPC, environment variables.
    """
    met = False
    for launch in job.launches:
        user = _uses_proxies(job, launch)
        if not user:
            continue
        met = True
        proxies = [c for name in _PROXIES for c in job.setting(f"env.{name}", launch.scope) if texts(c.value) != ("",)]
        excepted = [c for name in _EXCEPTIONS for c in job.setting(f"env.{name}", launch.scope)]
        open_end = why_unresolved(proxies[:1], launch)
        if not proxies or excepted:
            yield passed(launch.id)
        elif open_end is not None:
            yield unknown(launch.id, f"{quoted(proxies[0])} is left open: {open_end[1]}", at=proxies[0])
        else:
            yield failed(
                launch.id,
                f"{quoted(proxies[0])} is in force for {user}, and no_proxy is not set: its nodes then talk to each"
                " other through the proxy.",
                at=proxies[0],
                also=((launch, "started with the proxy"),),
                remedy="Export no_proxy with the names and addresses of the nodes, or unset the proxy before the"
                " launch.",
            )
    if not met:
        yield not_applicable(job.name, "nothing here speaks HTTP or gRPC between nodes")


def _uses_proxies(job: Job, launch: Launch) -> str:
    if launch.launcher == "ray":
        return "Ray"
    if job.setting("env.TF_CONFIG", launch.scope):
        return "TensorFlow's servers"
    kinds = texts(job_value(job.setting("rendezvous_backend", launch.scope)))
    return "the etcd rendezvous" if any(text.startswith("etcd") for text in kinds) else ""

"""Checks that kernels compiled at start or at installation fit the framework."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import minor_of, short_version, version_of
from preflight_checks.plans import combined, known_facts, on_every_node
from preflight_checks.probes.stack import Stack, stack
from preflight_checks.requirements import fold, gpu_claims, known_text, scopes
from preflight_checks.software.frameworks import COST, build_of, observed_software, plan_software

#: DeepSpeed's operator for an optimizer on the GPU, by the optimizer's name in its configuration.
_FUSED = {"adam": "fused_adam", "adamw": "fused_adam", "lion": "fused_lion"}
#: The same for an optimizer with offloaded states.
_ON_CPU = {"adam": "cpu_adam", "adamw": "cpu_adam", "lion": "cpu_lion"}


def compiled_at_start(job: Job) -> dict[str, tuple[Claim, ...]]:
    """DeepSpeed's operators that the job's configuration needs, with the claims that need them."""
    found: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        optimizer = (known_text(job, "optimizer_type", scope) or "").lower()
        # Without a DeepSpeed optimizer, the script creates its own, and DeepSpeed builds none.
        if optimizer not in _FUSED or job.value("torch_adam", scope) == Known(True):
            continue
        offloaded = known_text(job, "offload_optimizer_device", scope) in ("cpu", "nvme")
        quantity = "offload_optimizer_device" if offloaded else "optimizer_type"
        found[_ON_CPU[optimizer] if offloaded else _FUSED[optimizer]] = job.value_claims(quantity, scope)
    return found


@check(
    "VER007",
    "toolkit-mismatch",
    plan=combined(plan_software, when=lambda job, fleet: compiled_at_start(job)),
    cost=f"{COST}; runs `nvcc --version`",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#3223", "deepspeedai/DeepSpeed#2902", "deepspeedai/DeepSpeed#3436"),
)
def toolkit_mismatch(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """If DeepSpeed compiles operators at start, the CUDA compiler has the framework's major version.

    What it checks: for a configuration that needs an operator (an optimizer on the GPU, an offloaded one), whether it
    was built when DeepSpeed was installed, for this torch; else the version of the nvcc that torch's extensions would
    use (CUDA_HOME, PATH, /usr/local/cuda) compared with the CUDA that torch was built for.

    Why it matters: DeepSpeed rejects a different major version, or a missing compiler, when the engine is created,
    after the model was loaded on every rank.

    Example: offloaded Adam, torch for CUDA 12.1, and CUDA_HOME at /usr/local/cuda-11.8.

    Fix: point CUDA_HOME at a toolkit of the same major version, or build the operators at installation
    (DS_BUILD_OPS=1).

    Known limits: operators of other libraries, and calls of torch.utils.cpp_extension in the script, are not known
    from the files. DS_SKIP_CUDA_CHECK=1 is respected.
    """
    needed = compiled_at_start(job)
    if not needed:
        yield not_applicable("the CUDA compiler", "nothing in the job compiles operators at start")
        return
    claims = tuple(dict.fromkeys(claim for found in needed.values() for claim in found))
    skipped = any(job.value("env.DS_SKIP_CUDA_CHECK", scope) == Known("1") for scope in scopes(job))
    observed, verdicts = observed_software(job, facts, "the CUDA compiler")
    yield from verdicts
    wrong: dict[tuple[str, str, str], list[str]] = {}
    well = 0
    for node, software in observed.items():
        fault = _build_fault(job, software, tuple(needed), skipped=skipped)
        if isinstance(fault, str):
            yield unknown(f"the CUDA compiler on {node}", fault, nodes=(node,))
        elif fault is None:
            well += 1
        else:
            wrong.setdefault(fault, []).append(node)
    for (what, expected, remedy), nodes in wrong.items():
        yield failed(
            what,
            f"{', '.join(needed)} cannot be built on {fold(nodes)}: {what}",
            at=Evidence("nvcc", what, expected, "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc --version", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=remedy.format(nodes=fold(nodes)),
        )
    if well:
        yield passed(f"the CUDA compiler on {well} nodes")


def _build_fault(
    job: Job, software: Stack, needed: tuple[str, ...], *, skipped: bool
) -> tuple[str, str, str] | str | None:
    """The fault with expectation and remedy, or why it is unknown, or None if there is no fault."""
    build, deepspeed = build_of(job, software), software.deepspeed
    if deepspeed is None:
        return "DeepSpeed is not installed for the ranks' interpreter"
    if build is None or not build.cuda:
        return "blocked by VER001: no framework that was built for CUDA is installed"
    release = short_version(build.version)
    if set(needed) <= set(deepspeed.installed):
        for name, built, now in (("torch", deepspeed.torch, release), ("CUDA", deepspeed.cuda, build.cuda)):
            if built and minor_of(built) != minor_of(now):
                return (
                    f"DeepSpeed's operators were built for {name} {built}, and {now} is installed",
                    f"operators for {name} {now}",
                    "Reinstall DeepSpeed on {nodes}, in the environment that has this torch.",
                )
        return None
    toolkit = software.toolkit
    home = f"a toolkit of CUDA {build.cuda.partition('.')[0]}"
    remedy = f"Point CUDA_HOME at {home} on {{nodes}}, or install DeepSpeed with DS_BUILD_OPS=1."
    if toolkit is None:
        return "nvcc was not found (CUDA_HOME, PATH, /usr/local/cuda)", home, remedy
    if not toolkit.version:
        return f"nvcc of {toolkit.home} does not run: {toolkit.problem}", home, remedy
    if version_of(toolkit.version).major != version_of(build.cuda).major and not skipped:
        return f"nvcc of {toolkit.home} is {toolkit.version}, and torch was built for CUDA {build.cuda}", home, remedy
    return None


def _horovod_claims(job: Job) -> tuple[Claim, ...]:
    started = [launch for launch in job.launches if launch.launcher.startswith("horovod")]
    scoped = [*(launch.scope for launch in started), *scopes(job)]
    found = [claim for scope in scoped for claim in job.value_claims("horovod_started", scope)]
    if started and not found:
        found = [claim for launch in started for claim in job.value_claims("world_size", launch.scope)]
    return tuple(dict.fromkeys(found))


@check(
    "VER008",
    "horovod-lacks-feature",
    plan=on_every_node(stack, needed_by=_horovod_claims, context=True, deadline_s=9.0),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("horovod/horovod#2389", "horovod/horovod#314", "horovod/horovod#1831"),
)
def horovod_lacks_feature(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Horovod was built with the features that the job uses.

    What it checks: which extensions of Horovod exist, and whether the controller the launch names (gloo, mpi) and,
    on GPUs, NCCL are compiled into them; read from the files, as `horovodrun --check-build` reports it.

    Why it matters: a missing extension or controller ends every rank at `hvd.init()`; without NCCL, GPUs exchange
    gradients through the host's memory.

    Example: `horovodrun --gloo` with a Horovod that pip built without CMake's Gloo, on one node of four.

    Fix: reinstall it with HOROVOD_WITH_PYTORCH=1, HOROVOD_WITH_GLOO=1 or HOROVOD_WITH_MPI=1, and
    HOROVOD_GPU_OPERATIONS=NCCL.

    Known limits: the framework that the script uses Horovod with is not distinguished.
    """
    claims = _horovod_claims(job)
    if not claims:
        yield not_applicable("Horovod", "nothing in the job uses Horovod")
        return
    wanted: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        controller = known_text(job, "controller", scope)
        if controller in ("gloo", "mpi"):
            wanted[controller] = job.value_claims("controller", scope)
    if gpu_claims(job):
        wanted["nccl"] = gpu_claims(job)
    wrong: dict[tuple[str, Severity], list[str]] = {}
    well = 0
    observed = yield from known_facts(facts, stack, "Horovod")
    for node, software in observed.items():
        horovod = software.horovod
        if horovod is None or not horovod.extensions:
            what = "is not installed" if horovod is None else "was built without an extension for any framework"
            wrong.setdefault((f"Horovod {what} for the ranks' interpreter", Severity.ERROR), []).append(node)
            continue
        has = {feature for features in horovod.extensions.values() for feature in features}
        missing = [feature for feature in wanted if feature not in has]
        for feature in missing:
            severity = Severity.WARNING if feature == "nccl" else Severity.ERROR
            wrong.setdefault((f"Horovod was built without {feature}", severity), []).append(node)
        well += not missing
    for (what, severity), nodes in wrong.items():
        yield failed(
            what,
            f"{what} on {fold(nodes)}",
            at=Evidence("Horovod", what, "the features that the launch names", "horovodrun --check-build", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Reinstall Horovod on {fold(nodes)} with HOROVOD_WITH_PYTORCH=1, HOROVOD_WITH_GLOO=1 or "
            "HOROVOD_WITH_MPI=1, and HOROVOD_GPU_OPERATIONS=NCCL.",
            severity=severity,
        )
    if well:
        yield passed(f"Horovod on {well} nodes")

"""Checks that the installed builds of frameworks fit the GPUs, the toolkit and each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import (
    combine_plans,
    known_facts,
    minor_of,
    on_every_node,
    short_version,
    split,
    table,
    version_of,
)
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.libraries import LibraryLookup
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.requirements import fold, gpu_claims, known_text, scopes
from preflight_checks.software.frameworks import build_of, observed_software, plan_software, plan_stack

#: DeepSpeed's operator for an optimizer on the GPU, by the optimizer's name in its configuration.
_FUSED = {"adam": "fused_adam", "adamw": "fused_adam", "lion": "fused_lion"}
#: The operators of an optimizer with offloaded states.
_ON_CPU = {"adam": "cpu_adam", "adamw": "cpu_adam", "lion": "cpu_lion"}


def compiled_at_start(job: Job) -> dict[str, tuple[Claim, ...]]:
    """Return DeepSpeed's operators that the job's configuration needs, with the claims that require them."""
    claims_by_name: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        optimizer = (known_text(job, "optimizer_type", scope) or "").lower()
        # Without a DeepSpeed optimizer, the script creates its own, and DeepSpeed builds none.
        if optimizer not in _FUSED or job.value("torch_adam", scope) == Known(True):
            continue
        offloaded = known_text(job, "offload_optimizer_device", scope) in ("cpu", "nvme")
        quantity = "offload_optimizer_device" if offloaded else "optimizer_type"
        claims_by_name[_ON_CPU[optimizer] if offloaded else _FUSED[optimizer]] = job.value_claims(quantity, scope)
    return claims_by_name


@check(
    "VER007",
    "toolkit-mismatch",
    plan=combine_plans(plan_software, when=lambda job, fleet: compiled_at_start(job)),
    severity=Severity.ERROR,
)
def toolkit_mismatch(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """If DeepSpeed compiles operators at startup, the CUDA compiler has the framework's major version.

    What it checks: for a configuration that needs an operator (an optimizer on the GPU, an offloaded one), whether the
    operator was built for this torch when DeepSpeed was installed; otherwise, the version of the nvcc that torch's
    extensions would use (CUDA_HOME, PATH, /usr/local/cuda), compared with the CUDA version that torch was built for.

    Why it matters: DeepSpeed rejects a different major version, or a missing compiler, when the engine is created,
    after the model has been loaded on every rank.

    Example: offloaded Adam, torch for CUDA 12.1, and CUDA_HOME at /usr/local/cuda-11.8.

    Fix: point CUDA_HOME at a toolkit of the same major version, or build the operators at installation
    (DS_BUILD_OPS=1).

    Known limits: operators of other libraries, and calls of torch.utils.cpp_extension in the script, are not visible in
    the files. DS_SKIP_CUDA_CHECK=1 is respected.
    """
    needed = compiled_at_start(job)
    if not needed:
        yield not_applicable("the CUDA compiler", "nothing in the job compiles operators at startup")
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
    """Return a fault with the expectation and the remedy; a reason if it is unknown; None if there is no fault."""
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
                    f"DeepSpeed's operators were built for {name} {built}, but {now} is installed",
                    f"operators for {name} {now}",
                    "Reinstall DeepSpeed on {nodes}, in the environment that has this torch.",
                )
        return None
    toolkit = software.toolkit
    home = f"a CUDA {build.cuda.partition('.')[0]} toolkit"
    remedy = f"Point CUDA_HOME at {home} on {{nodes}}, or install DeepSpeed with DS_BUILD_OPS=1."
    if toolkit is None:
        return "nvcc was not found (CUDA_HOME, PATH, /usr/local/cuda)", home, remedy
    if not toolkit.version:
        return f"nvcc of {toolkit.home} does not run: {toolkit.problem}", home, remedy
    if version_of(toolkit.version).major != version_of(build.cuda).major and not skipped:
        return (
            f"nvcc of {toolkit.home} has version {toolkit.version}, but torch was built for CUDA {build.cuda}",
            home,
            remedy,
        )
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
    severity=Severity.ERROR,
)
def horovod_lacks_feature(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Horovod was built with the features that the job uses.

    What it checks: which extensions of Horovod exist, and whether the controller that the launch names (gloo, mpi) and,
    on GPUs, NCCL are compiled into them; read from the files, like `horovodrun --check-build`.

    Why it matters: a missing extension or controller stops every rank at `hvd.init()`; without NCCL, GPUs exchange
    gradients through host memory.

    Example: `horovodrun --gloo` with a Horovod that pip built without CMake's Gloo, on one node of four.

    Fix: reinstall it with HOROVOD_WITH_PYTORCH=1, HOROVOD_WITH_GLOO=1 or HOROVOD_WITH_MPI=1, and
    HOROVOD_GPU_OPERATIONS=NCCL.

    Known limits: which framework the script uses with Horovod is not distinguished.
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


_LIST = "python -c 'import torch; print(torch.cuda.get_arch_list())'"
_NVIDIA = re.compile(r"(sm|compute)_(\d{1,9})(\d)([af]?)")


def architectures_of(build: Build) -> tuple[list[str], bool]:
    """Return the framework's architectures, and whether the wheel lists them (otherwise the table does)."""
    if build.architectures is not None:
        return build.architectures, True
    for row in table("architectures")["wheel"]:
        if row["framework"] == build.framework and row["cuda"] == build.cuda:
            return list(row["architectures"]), False
    return [], False


def runs_on(architectures: list[str], capability: str) -> str:
    """Return how code for these architectures runs on a GPU: `native`, `jit` (compiled from PTX), or empty if it does
    not run.

    CUDA's rules: `sm_80` runs on 8.0 and later minor versions of major version 8, `sm_90a` only on 9.0, `sm_100f` on
    its family; PTX of `compute_80` is compiled for 8.0 and anything later. AMD's code is for exactly one architecture.
    """
    if capability.startswith("gfx"):
        return "native" if capability in {item.split(":")[0] for item in architectures} else ""
    major, _, minor = capability.partition(".")
    device = (int(major), int(minor or 0))
    best = ""
    for item in architectures:
        match = _NVIDIA.fullmatch(item)
        if match is None:
            continue
        kind, code, special = match.group(1), (int(match.group(2)), int(match.group(3))), match.group(4)
        if special == "a":
            if code == device and kind == "sm":
                return "native"
        elif kind == "sm" and code[0] == device[0] and code[1] <= device[1]:
            return "native"
        elif kind == "compute" and code <= device:
            best = "jit"
    return best


@check("VER004", "wheel-lacks-gpu", plan=plan_stack, severity=Severity.ERROR)
def wheel_lacks_gpu(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The installed framework has code for every GPU of its node.

    What it checks: the architectures that the installed wheel (torch, tensorflow) records, compared with the compute
    capability of each GPU, by CUDA's rules for binaries and PTX.

    Why it matters: the first kernel fails with "no kernel image is available for execution on the device"; if only PTX
    fits, the first start compiles for minutes, and with a driver older than the toolkit it fails.

    Example: torch 2.5 for CUDA 12.4 (up to sm_90) on a node with B200s (compute capability 10.0).

    Fix: install a build with the architecture, usually one for a newer CUDA.

    Known limits: paddle has no list; without a readable list, a table by CUDA version is used, and the finding is a
    warning. Other packages with GPU kernels are not checked.
    """
    observed, verdicts = observed_software(job, facts, "the framework's architectures")
    yield from verdicts
    if not gpu_claims(job):
        return
    missing: dict[tuple[str, str, str, bool], list[str]] = {}
    jit: dict[tuple[str, str, bool], list[str]] = {}
    well = 0
    for node, software in observed.items():
        cards, build = facts.of(gpus, node), build_of(job, software)
        if not isinstance(cards, Observed) or not cards.value.gpus:
            reason = "blocked by GPU011: its GPUs are unknown" if isinstance(cards, Observed) else cards.reason
            yield unknown(node, reason, nodes=(node,))
            continue
        if build is None or not (build.cuda or build.hip):
            yield unknown(node, "blocked by VER001: no framework that was built for GPUs is installed", nodes=(node,))
            continue
        listed, sure = architectures_of(build)
        if not listed:
            yield unknown(
                node, f"{build.framework} {build.version} does not report which GPUs it was built for", nodes=(node,)
            )
            continue
        fine = True
        for card in cards.value.gpus:
            if not card.compute_capability:
                continue
            how = runs_on(listed, card.compute_capability)
            what = f"{build.framework} {build.version}"
            model = f"{card.name} ({card.compute_capability})"
            if not how:
                missing.setdefault((what, model, " ".join(listed), sure), []).append(node)
                fine = False
            elif how == "jit":
                older = bool(cards.value.cuda_driver) and minor_of(cards.value.cuda_driver) < minor_of(build.cuda)
                jit.setdefault((what, model, older), []).append(node)
                fine = False
        well += fine
    for (what, model, shown, sure), lacking_nodes in missing.items():
        nodes = tuple(dict.fromkeys(lacking_nodes))
        yield failed(
            f"{what} on {model}",
            f"{what} on {fold(nodes)} has no code for {model}: it was built for {shown}",
            at=Evidence("architectures", shown, model, _LIST, nodes[0]),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=f"Install a build of {what.split()[0]} with this architecture on {fold(nodes)}.",
            certain=sure,
        )
    for (what, model, older), lacking_nodes in jit.items():
        nodes = tuple(dict.fromkeys(lacking_nodes))
        why = (
            "and the driver is older than the toolkit that generated the PTX, so it cannot compile it"
            if older
            else "which the driver compiles at the first start, for minutes"
        )
        yield failed(
            f"{what} on {model}: PTX",
            f"{what} on {fold(nodes)} has only PTX for {model}, {why}",
            at=Evidence("architectures", "PTX", f"code for {model}", "nvidia-smi", nodes[0]),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=f"Install a build of {what.split()[0]} with this architecture"
            + (f", or update the driver on {fold(nodes)}." if older else "."),
            severity=None if older else Severity.WARNING,
        )
    if well:
        yield passed(f"the framework's architectures on {well} nodes")


@check("VER005", "cudnn-mismatch", plan=plan_software, severity=Severity.ERROR)
def cudnn_mismatch(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The cuDNN that the loader finds first is the one that the framework was built for, or a later minor version.

    What it checks: which file the dynamic loader uses for cuDNN (RPATH, LD_LIBRARY_PATH, RUNPATH, cache, in its own
    order) when the framework requests it, its version compared with the one that the framework pins, and whether the
    parts that cuDNN opens by name come from the same folder.

    Why it matters: an older cuDNN on LD_LIBRARY_PATH hides the framework's own; it fails at the first convolution
    or attention with a message about versions, or with CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH.

    Example: a module system puts cuDNN 8.2 ahead of a torch that bundles 8.7.

    Fix: remove the folder from LD_LIBRARY_PATH in the job script, or install a matching version.

    Known limits: tensorflow opens cuDNN by name while it runs, which is not followed.
    """
    observed, verdicts = observed_software(job, facts, "cuDNN")
    yield from verdicts
    wrong: dict[tuple[str, str, str, str, bool], list[str]] = {}
    parts: dict[tuple[str, str, str, str], list[str]] = {}
    well, without = 0, 0
    for node, software in observed.items():
        build = build_of(job, software)
        library = _library(build, "cudnn")
        if build is None or library is None or not library.path:
            without += 1
            continue
        built_version, sure = _built_version(build, "cudnn")
        if not library.version or not built_version:
            reason = library.problem or f"the cuDNN that {build.framework} {build.version} was built for is unknown"
            yield unknown(f"cuDNN on {node}", reason, nodes=(node,))
            continue
        part = next((item for item in build.libraries if item.name.startswith("libcudnn_")), None)
        have_numbers, want_numbers = minor_of(library.version), minor_of(built_version)
        if part is not None and minor_of(part.version) != have_numbers:
            parts.setdefault((library.path, library.version, part.path, part.version), []).append(node)
        elif have_numbers[0] != want_numbers[0] or (sure and have_numbers < want_numbers):
            other_major = have_numbers[0] != want_numbers[0]
            wrong.setdefault((library.path, library.via, library.version, built_version, other_major), []).append(node)
        else:
            well += 1
    for (path, via, version, built_version, other_major), nodes in wrong.items():
        yield failed(
            f"cuDNN {version}",
            f"the loader finds cuDNN {version} from {path} (by {via}) on {fold(nodes)}, but the framework was built "
            f"for {built_version}",
            at=Evidence("libcudnn.so", f"{version} at {path}", f"{built_version} or later", "ldconfig -p", nodes[0]),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=_removal_remedy(path, via, nodes),
            severity=None if other_major else Severity.WARNING,
        )
    for (path, version, part_path, part_version), nodes in parts.items():
        yield failed(
            f"cuDNN parts {part_version}",
            f"on {fold(nodes)}, the loader finds cuDNN {version} at {path}, but parts "
            f"{part_version or 'of another version'} at {part_path}",
            at=Evidence("libcudnn_ops.so", part_path, f"a part of {version}", "echo $LD_LIBRARY_PATH", nodes[0]),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=_removal_remedy(part_path, "LD_LIBRARY_PATH", nodes),
            severity=Severity.WARNING if version_of(part_version).major == version_of(version).major else None,
        )
    if well:
        yield passed(f"cuDNN on {well} nodes")
    elif without and not verdicts:
        yield not_applicable("cuDNN", "no installed framework loads cuDNN")


@check("VER006", "nccl-library-differs", plan=plan_software, severity=Severity.ERROR)
def nccl_library_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The NCCL that the loader finds first has one version on all nodes, which the framework was built for.

    What it checks: which file the dynamic loader uses for NCCL when the framework requests it, and its version.

    Why it matters: ranks with different versions of NCCL hang or fail when they connect; package metadata does not show
    this if a system library precedes the wheel's.

    Example: node3 has libnccl2 2.18 from its distribution on LD_LIBRARY_PATH, but the others use torch's own 2.26.

    Fix: remove the folder from LD_LIBRARY_PATH, or install one version everywhere.

    Known limits: an NCCL that is linked into the framework itself is not seen; VER003 compares the frameworks.
    """
    observed, verdicts = observed_software(job, facts, "NCCL's library")
    yield from verdicts
    used: dict[str, tuple[LibraryLookup, str, bool]] = {}
    for node, software in observed.items():
        build = build_of(job, software)
        library = _library(build, "nccl")
        if build is None or library is None or not library.path:
            continue
        if not library.version:
            yield unknown(
                f"NCCL library on {node}",
                library.problem or f"{library.path} does not report its version",
                nodes=(node,),
            )
            continue
        used[node] = (library, *_built_version(build, "nccl"))
    divided = split({node: library.version for node, (library, _, _) in used.items()})
    if divided is None:
        if observed and not verdicts:
            yield not_applicable("NCCL's library", "no installed framework loads NCCL from a file")
        return
    if divided.odd:
        breaking = {n: v for n, v in divided.odd.items() if minor_of(v) != minor_of(divided.common)}
        node, version = next(iter((breaking or divided.odd).items()))
        library = used[node][0]
        yield failed(
            "NCCL's library",
            f"the loader finds different versions of NCCL: {divided.description} (on {node} {library.path}, through "
            f"{library.via})",
            at=Evidence("libnccl.so", f"{version} at {library.path}", divided.common, "ldconfig -p", node),
            also=gpu_claims(job),
            nodes=tuple(divided.odd),
            remedy=_removal_remedy(library.path, library.via, list(divided.odd)),
            certain=bool(breaking),
        )
        return
    pinned = {n: (library, wanted) for n, (library, wanted, sure) in used.items() if sure}
    older = {n: library for n, (library, wanted) in pinned.items() if minor_of(library.version) < minor_of(wanted)}
    if older:
        node, library = next(iter(older.items()))
        wanted = used[node][1]
        yield failed(
            "NCCL library: older",
            f"the loader finds NCCL {library.version} from {library.path} (through {library.via}) on {fold(older)}, "
            f"but the framework was built for {wanted}",
            at=Evidence("libnccl.so", f"{library.version} at {library.path}", wanted, "ldconfig -p", node),
            also=gpu_claims(job),
            nodes=tuple(older),
            remedy=_removal_remedy(library.path, library.via, list(older)),
            certain=False,
        )
    else:
        yield passed(f"NCCL {divided.common} on {len(used)} nodes")


def _library(build: Build | None, short: str) -> LibraryLookup | None:
    return next((item for item in build.libraries if item.name.startswith(f"lib{short}.so")), None) if build else None


def _built_version(build: Build, short: str) -> tuple[str, bool]:
    """Return the version that the framework was built for, or else the table's, and whether the build records it."""
    verdicts: str = getattr(build, short)
    if verdicts:
        return verdicts, True
    release = short_version(build.version)
    for row in table("wheels")["wheel"]:
        if (row["framework"], row["version"], row.get("cuda")) == (build.framework, release, build.cuda):
            return str(row.get(short, "")), False
    return "", False


def _removal_remedy(path: str, via: str, nodes: list[str]) -> str:
    folder = path.rpartition("/")[0]
    if via == "LD_LIBRARY_PATH":
        return f"Remove {folder} from LD_LIBRARY_PATH for the ranks on {fold(nodes)}."
    return f"Remove or update the library in {folder} on {fold(nodes)}, or install the framework's own version."

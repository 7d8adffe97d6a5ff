"""Versions of frameworks: left open where every node installs its own, or said differently in two places."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Span, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_several,
    nodes_spanned,
    placed,
    quoted,
    texts,
    where,
)
from preflight_rules.tables import built_for

_PACKAGE = lazy_pattern(r"(?P<name>[a-z0-9][a-z0-9-]*)(?P<version>.*)")
#: What ranks say to one another, or store for one another, changes with these.
_SPEAKING = frozenset(
    (
        *("torch", "paddlepaddle", "tensorflow", "jax", "horovod", "deepspeed", "ray", "accelerate", "lightning"),
        *("megatron-core", "mosaicml", "colossalai", "mpi4py"),
    )
)
#: The official images whose tag begins with the release of the framework in them.
_IMAGE = lazy_pattern(
    r"\b(?P<name>pytorch/pytorch|paddlepaddle/paddle|tensorflow/tensorflow):v?(?P<version>\d+\.\d+(?:\.\d+)?)(?=-|$)"
)
_OF_IMAGE = {"pytorch/pytorch": "torch", "paddlepaddle/paddle": "paddlepaddle", "tensorflow/tensorflow": "tensorflow"}
_IMAGE_CUDA = lazy_pattern(r"(?:nvidia/cuda:|-cuda)(?P<cuda>\d{1,2}\.\d)")
#: Packages that compile against the CUDA toolkit they find, and refuse another than torch was built for.
_COMPILING = frozenset({"deepspeed", "flash-attn", "apex", "transformer-engine", "xformers"})
_COMPANIONS = ("torchvision", "torchaudio")


@dataclass(frozen=True, slots=True)
class _Said:
    """A framework and what one place says of its version (a specifier; empty: any)."""

    name: str
    version: str
    claim: Claim

    @property
    def is_open(self) -> bool:
        """Whether what will be installed changes with the day: no upper end at all."""
        return not re.search(r"==|~=|<", self.version)


def _packages(job: Job) -> tuple[_Said, ...]:
    found: list[_Said] = []
    for claim in job.about("package"):
        for text in texts(claim.value):
            match = _PACKAGE.fullmatch(text)
            if match is not None:
                found.append(_Said(match["name"], match["version"], claim))
    return tuple(found)


def _of_images(job: Job) -> tuple[_Said, ...]:
    return tuple(
        _Said(_OF_IMAGE[match["name"]], f"=={match['version']}", claim)
        for claim in job.about("container")
        for text in texts(claim.value)
        if (match := _IMAGE.search(text))
    )


@rule(
    "VLK001",
    "framework-version-open-on-each-node",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#286", "Unakar/Logic-RL#30", "deepspeedai/DeepSpeed#3011"),
)
def framework_version_open_on_each_node(job: Job) -> Iterator[Verdict]:
    """Every node installs the framework for itself when the job starts, and nothing says which release.

    What it checks:
        A line that installs packages and runs on each of several nodes gives every framework it names, itself or
        through a requirement file, a version or at least an upper end.

    Why it matters:
        A node that joins later, is replaced, or has an older wheel in its cache installs another release than the
        others. Ranks of different releases fail to connect, or hang in their first collective.

    Example:
        `pip install torch deepspeed` above `torchrun --nnodes=4 ... train.py` in a script that runs on each node.

    Fix:
        Write the release (`torch==2.5.1`), or install once into an image or a shared environment.

    Known limits:
        A lower end alone (`torch>=2`) counts as open. Lines of a batch script that run on its first node alone are
        not meant.

    Evidence:
        NVIDIA/nccl#286, deepspeedai/DeepSpeed#3011 and Unakar/Logic-RL#30: nodes with different releases.
    """
    lines = job.about("installing_line")
    packages = [said for said in _packages(job) if said.name in _SPEAKING]
    met = False
    for line in lines:
        found = {launch.id: (_on_each_node(job, launch, line), launch) for launch in job.launches}
        launch = next((launch for sure, launch in found.values() if sure), None)
        maybe = next((launch for sure, launch in found.values() if sure is None), None)
        met = met or launch is not None or maybe is not None
        if launch is None:
            if maybe is not None:
                yield unknown(maybe.id, "nothing says on how many nodes the line runs", at=line)
            continue
        named = {r.target for r in job.references if r.role == "requirements" and _on_line(r.span, line)}
        said = [p for p in packages if _on_line(p.claim.span, line) or p.claim.span.path in named]
        loose = [p for p in said if p.is_open]
        hidden = next((c for c in _unresolved(job) if _on_line(c.span, line)), None)
        if not loose and hidden is not None:
            yield unknown(launch.id, f"the version of {quoted(hidden)} comes from outside", at=hidden)
            continue
        if not loose:
            yield passed(launch.id)
            continue
        first, nodes = loose[0], nodes_spanned(job, launch)[1]
        names = ", ".join(dict.fromkeys(p.name for p in loose))
        yield failed(
            launch.id,
            f"{quoted(line)} ({where(line)}) runs on every node that {placed(nodes[0])} counts,"
            f" and {quoted(first.claim)} leaves the release open ({names}): nodes can end up with different ones.",
            at=first.claim,
            also=((line, "runs on every node"), (nodes[0], "several nodes")),
            remedy=f"Write the release, such as `{first.name}==X.Y.Z`, or install once into the image.",
        )
    if not met:
        yield not_applicable(job.name, "nothing is installed on each of several nodes")


def _on_line(span: Span, line: Claim) -> bool:
    own = line.span
    return span.path == own.path and own.line <= span.line and span.end_line <= own.end_line


def _unresolved(job: Job) -> tuple[Claim, ...]:
    return tuple(claim for claim in job.about("package") if isinstance(claim.value, Unresolved))


def _on_each_node(job: Job, launch: Launch, line: Claim) -> bool | None:
    """Whether an installing line of the launch's own script runs on each of several nodes; None: nobody knows."""
    value, claims = nodes_spanned(job, launch)
    if launch.span.path != line.span.path or not claims:
        return False
    batch = any(claim.source == "slurm" for claim in job.about("nodes"))
    starts_itself = launch.launcher in AGENT_LAUNCHERS and not SPREADING_WRAPPERS.intersection(launch.wrappers)
    if line.source not in SPREADING_WRAPPERS and (batch or not starts_itself):
        return False
    if isinstance(value, Unresolved):
        return None
    return certainly_several(value)


@rule(
    "VLK002",
    "framework-versions-differ",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#286", "deepspeedai/DeepSpeed#3011", "ray-project/ray#47792"),
)
def framework_versions_differ(job: Job) -> Iterator[Verdict]:
    """Two places of one job ask for different releases of the same framework.

    What it checks:
        Requirement files, installing lines and tags of the official images of PyTorch, PaddlePaddle and TensorFlow
        that one job reaches ask for releases of a framework that one installation can satisfy.

    Why it matters:
        Ranks of different releases do not understand one another: they fail to connect, hang in a collective, or
        cannot read a checkpoint. Where both places make one environment, pip refuses, or the second installation
        replaces what the image was built around.

    Example:
        `torch==2.1.0` in the requirements of the trainers and `torch==2.3.0` in those of the servers.

    Fix:
        Name the release once, in a file that all nodes and roles install from.

    Known limits:
        Only places that fix a release, or exclude one that another fixes, are compared; lines in branches are not.

    Evidence:
        NVIDIA/nccl#286, deepspeedai/DeepSpeed#3011, ray-project/ray#47792.
    """
    said = [p for p in (*_packages(job), *_of_images(job)) if p.name in _SPEAKING and not p.claim.condition]
    names = dict.fromkeys(p.name for p in said)
    for name in names:
        mine = [p for p in said if p.name == name]
        pair = next(
            (
                (one, other)
                for i, one in enumerate(mine)
                for other in mine[i + 1 :]
                if _exclude(one.version, other.version)
            ),
            None,
        )
        if pair is None:
            yield passed(f"{job.name} {name}")
            continue
        one, other = pair
        yield failed(
            f"{job.name} {name}",
            f"{placed(one.claim)} and {placed(other.claim)} ask for releases of {name} that exclude each other.",
            at=one.claim,
            also=((other.claim, "the other release"),),
            remedy=f"Name one release of {name} for all nodes and roles of the job.",
        )
    for claim in _unresolved(job):
        yield unknown(job.name, f"the version of {quoted(claim)} comes from outside", at=claim)
    if not names and not _unresolved(job):
        yield not_applicable(job.name, "nothing names a release of a framework")


def _exclude(one: str, other: str) -> bool:
    """Whether no release satisfies both specifiers, as far as a fixed one tells."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for fixed, against in ((one, other), (other, one)):
        version = _fixed(fixed)
        if version and against:
            try:
                # A wheel's local part (2.1.0+cu118) is not what ranks have to agree on.
                if not SpecifierSet(re.sub(r"\+[\w.]+", "", against)).contains(version, prereleases=True):
                    return True
            except InvalidSpecifier:
                return False
    return False


def _fixed(specifier: str) -> str:
    match = re.fullmatch(r"={2,3}(\d[\w.]*?)(?:\+[\w.]+)?", specifier)
    return match[1] if match else ""


@rule(
    "VLK003",
    "wheel-and-image-cuda-differ",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#3223", "deepspeedai/DeepSpeed#2902"),
)
def wheel_and_image_cuda_differ(job: Job) -> Iterator[Verdict]:
    """The wheels are built for another major release of CUDA than the image holds.

    What it checks:
        Where the tag of the image and the wheels (`+cu118`, `--index-url .../cu118`, `pytorch-cuda=11.8`) both name a
        CUDA release, the major releases are the same. It matters most beside packages that compile when they are
        installed or first used (DeepSpeed, flash-attn, Apex, Transformer Engine); without one it is advice.

    Why it matters:
        torch brings its own CUDA libraries, but extensions are compiled with the toolkit of the image, and DeepSpeed
        stops with `CUDAMismatchException` when the two differ.

    Example:
        `nvidia/cuda:12.1.0-devel-ubuntu22.04` and `pip install torch==2.1.0+cu118 deepspeed`.

    Fix:
        Take wheels for the CUDA of the image, or the image for the CUDA of the wheels.

    Known limits:
        Only releases that the files name. Minor releases of one major are taken to fit.

    Evidence:
        deepspeedai/DeepSpeed#3223 and #2902.
    """
    images = [
        (match["cuda"], claim)
        for claim in job.about("container")
        for text in texts(claim.value)
        if (match := _IMAGE_CUDA.search(text))
    ]
    wheels = [(text, claim) for claim in job.about("wheel_cuda") for text in texts(claim.value) if not claim.condition]
    if not images or not wheels:
        yield not_applicable(job.name, "image and wheels do not both name a CUDA release")
        return
    (of_image, image), (of_wheel, wheel) = images[0], wheels[0]
    if len({cuda for cuda, _ in images}) > 1 or len({cuda for cuda, _ in wheels}) > 1:
        yield unknown(job.name, "several CUDA releases are named", at=image)
        return
    if of_image.partition(".")[0] == of_wheel.partition(".")[0]:
        yield passed(job.name)
        return
    compiling = next((p for p in _packages(job) if p.name in _COMPILING), None)
    yield failed(
        job.name,
        f"{placed(wheel)} takes wheels for CUDA {of_wheel}, but {placed(image)} holds CUDA {of_image}"
        + (f", with which {quoted(compiling.claim)} is compiled." if compiling else "."),
        at=wheel,
        also=((image, f"CUDA {of_image}"), *(((compiling.claim, "compiled there"),) if compiling else ())),
        remedy=f"Take wheels for CUDA {of_image}, or an image with CUDA {of_wheel}.",
        severity=Severity.WARNING if compiling else Severity.INFO,
    )


@rule(
    "VLK005",
    "torch-companion-built-for-another-torch",
    severity=Severity.WARNING,
    evidence=("https://github.com/pytorch/vision#installation", "pytorch/vision#8985"),
)
def torch_companion_built_for_another_torch(job: Job) -> Iterator[Verdict]:
    """torchvision or torchaudio is fixed to a release that is built for another torch than the one that is fixed.

    What it checks:
        Where one file or line fixes torch and torchvision (or torchaudio), the two releases belong together.

    Why it matters:
        Each of their wheels asks for exactly one release of torch: pip stops with `ResolutionImpossible`, or, told to
        ignore dependencies, import fails with `operator torchvision::nms does not exist`.

    Example:
        `pip install torch==2.3.0 torchvision==0.17.0`: that torchvision is built for torch 2.2.

    Fix:
        Take the release of the table at https://github.com/pytorch/vision#installation.

    Known limits:
        Major and minor releases are compared, of those that `data/companions.toml` lists.

    Evidence:
        The table of pytorch/vision; pytorch/vision#8985.
    """
    packages = [p for p in _packages(job) if not p.claim.condition]
    met = False
    for claim in _unresolved(job):
        beside = next((p for p in packages if p.name in _COMPANIONS and _together(p.claim, claim)), None)
        if beside is not None:
            met = True
            yield unknown(job.name, f"the version of {quoted(claim)} comes from outside", at=claim)
    for torch in packages:
        mine = _minor(torch.version) if torch.name == "torch" else ""
        for other in packages:
            if not mine or other.name not in _COMPANIONS or not _together(torch.claim, other.claim):
                continue
            pairs, theirs = built_for(other.name), _minor(other.version)
            if mine not in pairs or theirs not in pairs.values():
                continue
            met = True
            if pairs[mine] == theirs:
                yield passed(f"{job.name} {other.name}")
                continue
            wanted = next(release for release, companion in pairs.items() if companion == theirs)
            yield failed(
                f"{job.name} {other.name}",
                f"{placed(other.claim)} is built for torch {wanted}, but {placed(torch.claim)} asks for torch {mine}.",
                at=other.claim,
                also=((torch.claim, "torch"),),
                remedy=f"Take {other.name} {pairs[mine]}, which is built for torch {mine}.",
            )
    if not met:
        yield not_applicable(job.name, "torch and torchvision or torchaudio are not fixed together")


def _together(one: Claim, other: Claim) -> bool:
    return one.span.path == other.span.path and one.source == other.source


def _minor(specifier: str) -> str:
    match = re.match(r"(?:={2,3}|~=)(\d+\.\d+)(?![\d])", specifier)
    return match[1] if match else ""

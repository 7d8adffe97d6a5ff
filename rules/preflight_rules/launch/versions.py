"""Framework versions and images that are not pinned although each node installs its own, differ between two places, or
are incompatible.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Span, Unresolved
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight_rules.data_tables import built_for, companions, table
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_one,
    certainly_several,
    nodes_spanned,
)
from preflight_rules.settings.tables import in_range, pinned

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

_PACKAGE = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(?P<version>.*)")
#: Frameworks whose releases change the protocol between ranks or the checkpoint format.
_PROTOCOL_FRAMEWORKS = frozenset(
    (
        *("torch", "paddlepaddle", "tensorflow", "jax", "horovod", "deepspeed", "ray", "accelerate", "lightning"),
        *("megatron-core", "mosaicml", "colossalai", "mpi4py"),
    )
)
#: The official images whose tag begins with the release of the framework in them.
_IMAGE = re.compile(
    r"\b(?P<name>pytorch/pytorch|paddlepaddle/paddle|tensorflow/tensorflow):v?(?P<version>\d+\.\d+(?:\.\d+)?)(?=-|$)"
)
_PACKAGE_BY_IMAGE = {
    "pytorch/pytorch": "torch",
    "paddlepaddle/paddle": "paddlepaddle",
    "tensorflow/tensorflow": "tensorflow",
}
_IMAGE_CUDA = re.compile(r"(?:nvidia/cuda:|-cuda)(?P<cuda>\d{1,2}\.\d)")
#: Packages that compile against the installed CUDA toolkit and require the release that torch was built for.
_COMPILING = frozenset({"deepspeed", "flash-attn", "apex", "transformer-engine", "xformers"})
#: The release of torch in the name of a wheel: `+cu12torch2.8cxx11abiTRUE` of flash-attn, `+pt25cu124`.
_TORCH_IN_WHEEL = re.compile(r"\+[\w.]*?(?:torch(?P<dotted>\d+\.\d+)|(?<![a-z])pt(?P<major>\d)(?P<minor>\d+))")


class _Package(NamedTuple):
    """A framework and the version specifier that one place sets for it; empty for any version."""

    name: str
    version: str
    claim: Claim

    @property
    def is_open(self) -> bool:
        """Return whether the specifier has no upper bound, so that the installed release depends on the day."""
        return not re.search(r"==|~=|<", self.version)


def _packages(job: Job) -> tuple[_Package, ...]:
    packages: list[_Package] = []
    for claim in job.about("package"):
        for text in texts(claim.value):
            match = _PACKAGE.fullmatch(text)
            if match is not None:
                packages.append(_Package(match["name"], match["version"], claim))
    return tuple(packages)


def _image_frameworks(job: Job) -> tuple[_Package, ...]:
    return tuple(
        _Package(_PACKAGE_BY_IMAGE[match["name"]], f"=={match['version']}", claim)
        for claim in job.about("container")
        for text in texts(claim.value)
        if (match := _IMAGE.search(text))
    )


@rule(
    "VLK001",
    "framework-version-open-on-each-node",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="nothing is installed on each of several nodes",
)
def framework_version_open_on_each_node(job: Job) -> Iterator[Verdict]:
    """Every node installs the framework when the job starts, without a pinned release.

    What it checks: A line that installs packages on each of several nodes gives a version, or at least an upper bound,
    for every framework that it names, directly or through a requirements file.

    Why it matters: A node that joins later, is replaced, or has an older wheel in its cache installs a different
    release from the others. Ranks of different releases fail to connect, or hang in their first collective.

    Example: `pip install torch deepspeed` above `torchrun --nnodes=4 ... train.py` in a script that runs on each node.

    Fix: Write the release (`torch==2.5.1`), or install once into an image or a shared environment.

    Known limits: A lower bound alone (`torch>=2`) counts as not pinned. Lines of a batch script that run only on the
    first node are not checked.
    """
    lines = job.about("installing_line")
    packages = [line_packages for line_packages in _packages(job) if line_packages.name in _PROTOCOL_FRAMEWORKS]
    applicable = False
    for line in lines:
        is_on_each_node = {launch.id: (_runs_on_each_node(job, launch, line), launch) for launch in job.launches}
        launch = next((launch for certain, launch in is_on_each_node.values() if certain), None)
        possible_launch = next((launch for certain, launch in is_on_each_node.values() if certain is None), None)
        applicable = applicable or launch is not None or possible_launch is not None
        if launch is None:
            if possible_launch is not None:
                yield unknown(possible_launch.id, "the number of nodes is not given", at=line)
            continue
        listed_files = {r.target for r in job.references if r.role == "requirements" and _is_on_line(r.span, line)}
        line_packages = [p for p in packages if _is_on_line(p.claim.span, line) or p.claim.span.path in listed_files]
        unpinned = [p for p in line_packages if p.is_open]
        unresolved = next((c for c in _unresolved_versions(job) if _is_on_line(c.span, line)), None)
        if not unpinned and unresolved is not None:
            yield unknown(launch.id, f"the version of {quoted(unresolved)} is known only at run time", at=unresolved)
            continue
        if not unpinned:
            yield passed(launch.id)
            continue
        first, nodes = unpinned[0], nodes_spanned(job, launch)[1]
        names = ", ".join(dict.fromkeys(p.name for p in unpinned))
        yield failed(
            launch.id,
            f"{quoted(line)} ({where(line)}) runs on every node of {placed(nodes[0])}, but {quoted(first.claim)} "
            f"does not pin the release ({names}): nodes may get different releases.",
            at=first.claim,
            also=((line, "runs on every node"), (nodes[0], "several nodes")),
            remedy=f"Pin the release, such as `{first.name}==X.Y.Z`, or install it once in the image.",
        )


def _is_on_line(span: Span, line: Claim) -> bool:
    install_span = line.span
    return span.path == install_span.path and install_span.line <= span.line and span.end_line <= install_span.end_line


def _unresolved_versions(job: Job) -> tuple[Claim, ...]:
    """Return the claims about frameworks and companions whose release is known only at run time."""
    claims = [claim for claim in job.about("package") if isinstance(claim.value, Unresolved)]
    known_names = {*_PROTOCOL_FRAMEWORKS, *companions()}
    return tuple(
        claim
        for claim in claims
        if (m := _PACKAGE.match(claim.spelling.strip("\"'").lower())) and m["name"] in known_names
    )


def _runs_on_each_node(job: Job, launch: Launch, line: Claim) -> bool | None:
    """Return whether an install line of the launch's own script runs on every node; None if unknown."""
    value, claims = nodes_spanned(job, launch)
    if launch.span.path != line.span.path or not claims:
        return False
    is_batch_script = any(claim.source == "slurm" for claim in job.about("nodes"))
    starts_itself = launch.launcher in AGENT_LAUNCHERS and not SPREADING_WRAPPERS.intersection(launch.wrappers)
    if line.source not in SPREADING_WRAPPERS and (is_batch_script or not starts_itself):
        return False
    if isinstance(value, Unresolved):
        return None
    return certainly_several(value)


@rule(
    "VLK002",
    "framework-versions-differ",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no framework release is specified",
)
def framework_versions_differ(job: Job) -> Iterator[Verdict]:
    """Two places of one job request different releases of the same framework.

    What it checks: Requirement files, install commands and image tags of PyTorch, PaddlePaddle and TensorFlow in one
    job request releases of a framework that one installation can satisfy.

    Why it matters: Ranks of different releases are incompatible: they fail to connect, hang in a collective, or cannot
    read a checkpoint. If both places install into one environment, pip fails, or the second installation replaces the
    image's release.

    Example: `torch==2.1.0` in the requirements of the trainers and `torch==2.3.0` in those of the servers.

    Fix: Name the release once, in a file that all nodes and roles install from.

    Known limits: Only places that pin a release, or exclude a release that another place pins, are compared; lines in
    branches are not.
    """
    packages = [
        p
        for p in (*_packages(job), *_image_frameworks(job))
        if p.name in _PROTOCOL_FRAMEWORKS and not p.claim.condition
    ]
    for name in dict.fromkeys(p.name for p in packages):
        same_name = [p for p in packages if p.name == name]
        pair = next(
            (
                (release, other)
                for i, release in enumerate(same_name)
                for other in same_name[i + 1 :]
                if _are_exclusive(release.version, other.version)
            ),
            None,
        )
        if pair is None:
            yield passed(f"{job.name} {name}")
            continue
        release, other = pair
        yield failed(
            f"{job.name} {name}",
            f"{placed(release.claim)} and {placed(other.claim)} request incompatible releases of {name}.",
            at=release.claim,
            also=((other.claim, "the other release"),),
            remedy=f"Use one release of {name} on all nodes and in all roles of the job.",
        )
    for claim in _unresolved_versions(job):
        yield unknown(job.name, f"the version of {quoted(claim)} is known only at run time", at=claim)


def _are_exclusive(release: str, other: str) -> bool:
    """Return whether one specifier pins a release that the other excludes."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for pin, specifier in ((release, other), (other, release)):
        version = _fixed_release(pin)
        if version and specifier:
            try:
                # The local part of a wheel's version (2.1.0+cu118) does not matter between ranks.
                if not SpecifierSet(re.sub(r"\+[\w.]+", "", specifier)).contains(version, prereleases=True):
                    return True
            except InvalidSpecifier:
                return False
    return False


def _fixed_release(specifier: str) -> str:
    match = re.fullmatch(r"={2,3}(\d[\w.]*?)(?:\+[\w.]+)?", specifier)
    return match[1] if match else ""


@rule("VLK003", "wheel-and-image-cuda-differ", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def wheel_and_image_cuda_differ(job: Job) -> Iterator[Verdict]:
    """The wheels are built for a different major release of CUDA than the image contains.

    What it checks: If the tag of the image and the wheels (`+cu118`, a wheel address that ends in `/cu118`,
    `pytorch-cuda=11.8`) both name a CUDA release, the major releases are the same. This matters most for packages that
    compile when they are installed or first used (DeepSpeed, flash-attn, Apex, Transformer Engine); without such a
    package the finding is advice. Wheels that one Dockerfile installs are for one CUDA release.

    Why it matters: torch brings its own CUDA libraries, but extensions are compiled with the toolkit of the image, and
    DeepSpeed stops with `CUDAMismatchException` when the two differ.

    Example: `nvidia/cuda:12.1.0-devel-ubuntu22.04` and `pip install torch==2.1.0+cu118 deepspeed`.

    Fix: Use wheels built for the CUDA of the image, or an image with the CUDA of the wheels.

    Known limits: Only releases that the files name are compared. Minor releases of one major release are treated as
    compatible.
    """
    images = [
        (match["cuda"], claim)
        for quantity in ("container", "image_base")
        for claim in job.about(quantity)
        for text in texts(claim.value)
        if (match := _IMAGE_CUDA.search(text))
    ]
    wheels = [(text, claim) for claim in job.about("wheel_cuda") for text in texts(claim.value) if not claim.condition]
    differing = _differing_wheels(wheels)
    if differing is not None:
        (first, first_claim), (second, second_claim) = differing
        yield failed(
            job.name,
            f"{placed(second_claim)} installs wheels for CUDA {second} into the image where {placed(first_claim)}"
            f" installs wheels for CUDA {first}: importing the second one fails with a missing library or operator.",
            at=second_claim,
            also=((first_claim, f"CUDA {first}"),),
            remedy="Install all wheels from one index, for one CUDA release.",
        )
        return
    if not images or not wheels:
        yield not_applicable(job.name, "the image and the wheels do not both specify a CUDA release")
        return
    (image_cuda, image), (wheel_cuda, wheel) = images[0], wheels[0]
    if len({cuda for cuda, _ in images}) > 1 or len({cuda for cuda, _ in wheels}) > 1:
        yield unknown(job.name, "several CUDA releases are named", at=image)
        return
    if image_cuda.partition(".")[0] == wheel_cuda.partition(".")[0]:
        yield passed(job.name)
        return
    compiled_package = next((p for p in _packages(job) if p.name in _COMPILING), None)
    yield failed(
        job.name,
        f"{placed(wheel)} installs wheels for CUDA {wheel_cuda}, but {placed(image)} contains CUDA {image_cuda}"
        + (f", with which {quoted(compiled_package.claim)} will be compiled." if compiled_package else "."),
        at=wheel,
        also=(
            (image, f"CUDA {image_cuda}"),
            *(((compiled_package.claim, "compiled there"),) if compiled_package else ()),
        ),
        remedy=f"Use wheels for CUDA {image_cuda}, or an image that has CUDA {wheel_cuda}.",
        severity=Severity.WARNING if compiled_package or "paddle" in wheel.spelling else Severity.INFO,
    )


def _differing_wheels(wheels: Sequence[tuple[str, Claim]]) -> tuple[tuple[str, Claim], tuple[str, Claim]] | None:
    """Return two wheels for different CUDA releases that one Dockerfile installs; None if there are no such wheels."""
    wheels_in_image = [(cuda, claim) for cuda, claim in wheels if claim.source == "image"]
    for other in wheels_in_image[1:]:
        if other[0] != wheels_in_image[0][0] and other[1].span.path == wheels_in_image[0][1].span.path:
            return wheels_in_image[0], other
    return None


@rule(
    "VLK005",
    "torch-companion-built-for-another-torch",
    severity=Severity.WARNING,
    otherwise="no file pins torch together with torchvision or torchaudio",
)
def torch_companion_built_for_another_torch(job: Job) -> Iterator[Verdict]:
    """torchvision, torchaudio, torchrec or another wheel is built for a different torch release than the pinned one.

    What it checks: If one file or line pins torch and torchvision (or torchaudio, fbgemm-gpu, torchrec), the releases
    belong together. So do torch and a wheel whose name contains a release of torch (flash-attn, torch-scatter).

    Why it matters: Each wheel is built for exactly one release of torch: pip stops with `ResolutionImpossible`, or
    import fails with an undefined symbol or `operator torchvision::nms does not exist`.

    Example: `pip install torch==2.3.0 torchvision==0.17.0`: that torchvision is built for torch 2.2.

    Fix: Use the release from the table at https://github.com/pytorch/vision#installation.

    Known limits: Major and minor releases are compared, and only those that `data/companions.toml` or the name of the
    wheel gives.
    """
    packages = [p for p in _packages(job) if not p.claim.condition]
    for claim in _unresolved_versions(job):
        pinned_companion = next(
            (p for p in packages if p.name in companions() and _is_same_source(p.claim, claim)), None
        )
        if pinned_companion is not None:
            yield unknown(job.name, f"the version of {quoted(claim)} is known only at run time", at=claim)
    others = [(p, _TORCH_IN_WHEEL.search(p.version)) for p in packages if p.name in companions() or "+" in p.version]
    for torch in packages:
        torch_release = _minor_release(torch.version) if torch.name == "torch" else ""
        for other, torch_in_wheel in others if torch_release else ():
            if not _is_same_source(torch.claim, other.claim):
                continue
            if torch_in_wheel is not None:
                yield _wheel_verdict(
                    job,
                    torch,
                    other,
                    torch_in_wheel["dotted"] or f"{torch_in_wheel['major']}.{torch_in_wheel['minor']}",
                )
                continue
            if other.name not in companions():
                continue
            pairs, companion_release = built_for(other.name), _minor_release(other.version)
            if torch_release not in pairs or companion_release not in pairs.values():
                continue
            torches = [p for p in packages if p.name == "torch" and p.claim.span.path == other.claim.span.path]
            if companion_release in [pairs.get(_minor_release(each.version)) for each in torches]:
                yield passed(f"{job.name} {other.name}")
                continue
            required = next(release for release, companion in pairs.items() if companion == companion_release)
            yield failed(
                f"{job.name} {other.name}",
                f"{placed(other.claim)} is built for torch {required}, but {placed(torch.claim)} requests torch"
                f" {torch_release}.",
                at=other.claim,
                also=((torch.claim, "torch"),),
                remedy=f"Install {other.name} {pairs[torch_release]}, which is built for torch {torch_release}.",
            )


def _wheel_verdict(job: Job, torch: _Package, other: _Package, required: str) -> Verdict:
    """Return the verdict on a wheel that names the release of torch it is built for."""
    if required == _minor_release(torch.version):
        return passed(f"{job.name} {other.name}")
    return failed(
        f"{job.name} {other.name}",
        f"{placed(other.claim)} is a wheel for torch {required}, but {placed(torch.claim)} requests torch"
        f" {_minor_release(torch.version)}: importing it fails with an undefined symbol.",
        at=other.claim,
        also=((torch.claim, "torch"),),
        remedy=f"Install the wheel of {other.name} for torch {_minor_release(torch.version)}.",
    )


def _is_same_source(release: Claim, other: Claim) -> bool:
    return release.span.path == other.span.path and release.source == other.source


def _minor_release(specifier: str) -> str:
    match = re.match(r"(?:={2,3}|~=)(\d+\.\d+)(?![\d])", specifier)
    return match[1] if match else ""


@rule(
    "VLK018",
    "framework-build-of-the-day",
    severity=Severity.WARNING,
    otherwise="no image installs a framework, and no line installs a nightly build",
)
def framework_build_of_the_day(job: Job) -> Iterator[Verdict]:
    """A nightly or unpinned build of a framework is installed for a job on several nodes.

    What it checks: No line installs a nightly (`--pre`, an index of nightlies, Paddle's develop wheels), and the
    Dockerfile of a job on several nodes pins the releases of the frameworks that it installs (otherwise informational).

    Why it matters: Two builds of the image, or two nodes, get different code under the same name: a job that ran
    yesterday stops today, and the software that trained a model cannot be rebuilt.

    Example: `RUN pip install --pre torch`.

    Fix: Pin a release; for a nightly write its date, such as `torch==2.6.0.dev20241112`.

    Known limits: An image whose digest is pinned where it is used is reproducible anyway.
    """
    is_pinned = any(".dev" in package.version for package in _packages(job))
    for claim in job.about("nightly_build"):
        if claim.condition:
            yield unknown(job.name, f"{quoted(claim)} applies under `{claim.condition}`", at=claim)
            continue
        if is_pinned:
            yield passed(job.name)
            continue
        yield failed(
            job.name,
            f"{quoted(claim)} installs a nightly build, so the next installation gets a different build.",
            at=claim,
            remedy="Pin a release, or the date of the nightly: `torch==X.Y.Z.devYYYYMMDD`.",
        )
        return
    is_multi_node = any(certainly_several(nodes_spanned(job, launch)[0]) for launch in job.launches)
    images = {claim.span.path for claim in job.about("image_base")} if is_multi_node else set()
    requirement_files = {r.target for r in job.references if r.role == "requirements" and r.span.path in images}
    packages = [
        package
        for package in _packages(job)
        if (
            (package.claim.span.path in images and package.claim.source == "image")
            or package.claim.span.path in requirement_files
        )
        and package.name in _PROTOCOL_FRAMEWORKS
        and not package.claim.condition
    ]
    for package in packages:
        if not package.is_open:
            yield passed(job.name)
            continue
        yield failed(
            job.name,
            f"{quoted(package.claim)} does not pin {package.name}: its release depends on the day the image is built.",
            at=package.claim,
            remedy=f"Write the release, such as `{package.name}==X.Y.Z`.",
            severity=Severity.INFO,
        )
        return


@rule(
    "VLK004",
    "image-tag-open",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
    otherwise="no image is pulled on several nodes",
)
def image_tag_open(job: Job) -> Iterator[Verdict]:
    """The image of a job on several nodes has no tag, or the tag `latest`.

    What it checks: Images that are pulled from a registry name a tag other than `latest`, or a digest, when the launch
    spans several nodes.

    Why it matters: Each node pulls separately; a node that pulled earlier keeps the image that was the latest then, so
    ranks run different releases.

    Example: `docker run my/trainer torchrun --nnodes=4 ...` on each of four nodes.

    Fix: Name the tag, or the digest.

    Known limits: Image files (`.sif`, `.sqsh`) and local folders are not checked.
    """
    for launch in job.launches:
        value, claims = nodes_spanned(job, launch)
        for image in job.setting("container", launch.scope):
            names = [text.split()[-1] for text in texts(image.value) if text.strip()]
            if not names or any(_is_local(name) for name in names) or not claims or certainly_one(value):
                continue
            if not certainly_several(value):
                yield unknown(launch.id, "the number of nodes is not given", at=image)
                continue
            if all(_is_unpinned(name) for name in names):
                yield failed(
                    launch.id,
                    f"{quoted(image)} has no fixed tag, and {placed(claims[0])} makes several nodes pull it.",
                    at=image,
                    also=((claims[0], "several nodes"),),
                    remedy="Name a tag or a digest.",
                )
            else:
                yield passed(launch.id)


def _is_local(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name.endswith((".sif", ".sqsh", ".img", ".simg", ".tar"))


def _is_unpinned(name: str) -> bool:
    last = name.rpartition("/")[2]
    return "@" not in last and last.partition(":")[2] in ("", "latest")


_PATCH = re.compile(r"==(\d+\.\d+)(?:\.\d+)+")
_NAME_AND_SPECIFIER = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(?P<specifier>[=<>~!].*)")


class _NamedPackage(NamedTuple):
    """A package and the releases that one place allows."""

    name: str
    specifier: SpecifierSet
    claim: Claim

    @property
    def release(self) -> Version | None:
        """The release, if the place names exactly one."""
        from packaging.version import InvalidVersion, Version

        pins = [item for item in self.specifier if item.operator in ("==", "===")]
        try:
            return Version(pins[0].version) if len(pins) == 1 else None
        except InvalidVersion:
            # `==2.1.*` and `===nightly` name no single release.
            return None


@rule(
    "VLK006",
    "named-releases-refuse-each-other",
    severity=Severity.ERROR,
    otherwise="no release is given for a package whose requirements are known",
)
def named_releases_refuse_each_other(job: Job) -> Iterator[Verdict]:
    """A named package release requires another release of a second named package.

    What it checks: For about 60 packages (torch and its companions, the Hugging Face libraries, Lightning, DeepSpeed,
    Ray, TensorFlow, JAX, PaddlePaddle and their common dependencies): if files of the job name a release of a package,
    the other packages that they name satisfy its requirements.

    Why it matters: pip refuses to install such a pair, on every node or while the image is built. If they are installed
    one after the other, pip only warns, and the program stops at an import or a call.

    Example: `torchvision==0.24.1`, which requires torch==2.9.1, together with `torch==2.8.0`.

    Fix: Name a release of the other package that is required, or another release of the first.

    Known limits: The finding is an error if one command or one requirements file names both packages. It is a warning
    if they are installed one after the other, if only an extra of the package has the requirement (transformers and
    torch), or if only the requirements of the newest release of its minor version are known.
    """
    named = [package for claim in job.about("package") for package in _named_packages(claim)]
    unresolved = [claim for claim in job.about("package") if isinstance(claim.value, Unresolved)]
    for package in named:
        release = package.release
        row = _requirements_row(package.name, release) if release is not None else None
        if row is None or release is None or release.is_devrelease:
            # Development builds of one day are built for each other.
            continue
        is_exact = row["version"] == release.public
        certain = {**row.get("requires", {}), **({"python": row["python"]} if row.get("python") else {})}
        # Without the extra, pip installs any release, and the package does not use a release that is too old.
        uncertain = {name: lowest for name, needed in row.get("extra", {}).items() if (lowest := _lower_bounds(needed))}
        needs = {**uncertain, **certain}
        if not is_exact:
            needs = {name: _for_minor(needed, name, row["version"], package.name) for name, needed in needs.items()}
        if release.local is not None:
            # The wheels of another index bring other libraries of CUDA, or none.
            needs = {name: needed for name, needed in needs.items() if not name.startswith(("nvidia-", "triton"))}
        conflicts = [
            (other, needs[other.name]) for other in named if other.name in needs and not _is_development_build(other)
        ]
        conflicts = [pair for pair in conflicts if _is_only_listed(job, package) == _is_only_listed(job, pair[0])]
        conflicts = [
            (other, needed)
            for other, needed in conflicts
            if _is_excluded(job, package, other, needed, named, exact=is_exact)
        ]
        for other, needed in conflicts:
            text = _requirement_text(needed)
            is_error = is_exact and other.name in certain and _installed_together(job, package.claim, other.claim)
            yield failed(
                f"{package.name} {release}",
                f"{quoted(package.claim)} requires {other.name}{text}, which contradicts {placed(other.claim)}.",
                at=package.claim,
                also=((other.claim, f"excludes {text}"),),
                remedy=f"Use {other.name}{text}, or another release of {package.name}.",
                severity=None if is_error else Severity.WARNING,
                confidence=None if is_error else Confidence.MEDIUM,
            )
        if conflicts:
            continue
        unresolved_needs = [
            c for c in unresolved if (m := _NAME_AND_SPECIFIER.match(c.spelling)) is not None and m["name"] in needs
        ]
        if unresolved_needs:
            yield unknown(
                f"{package.name} {release}", f"{quoted(unresolved_needs[0])} is unknown", at=unresolved_needs[0]
            )
        else:
            yield passed(f"{package.name} {release}")


#: Packages whose build imports a framework, and the frameworks: one of them is enough.
_BUILT_WITH = {
    "horovod": ("torch", "tensorflow", "mxnet"),
    **dict.fromkeys(("flash-attn", "transformer-engine", "mamba-ssm", "causal-conv1d"), ("torch",)),
}
#: Images without a framework; any other may contain one.
_PLAIN_IMAGE = re.compile(
    r"(?:\S*/)?(?:nvidia/cuda|cuda|ubuntu|debian|python|centos|rockylinux|almalinux|miniconda3?|rocm/dev-\S+)(?:[:@].*)?"
)
_SPELLED_NAME = re.compile(r"[\"']?(?P<name>[A-Za-z][\w-]*)")


@rule(
    "VLK008",
    "extension-built-before-its-framework",
    severity=Severity.WARNING,
    otherwise="no image builds an extension of a framework that it installs",
)
def extension_built_before_its_framework(job: Job) -> Iterator[Verdict]:
    """An image installs a package that is built with a framework before it installs the framework.

    What it checks: In a Dockerfile whose base has no framework, torch is installed before flash-attn, Transformer
    Engine, mamba-ssm and causal-conv1d, and torch, TensorFlow or MXNet before Horovod.

    Why it matters: These packages import the framework while they are built. The build stops with "No module named
    'torch'", or, where Horovod may choose, leaves out the framework: `import horovod.torch` fails on every rank.

    Example: `RUN HOROVOD_WITH_PYTORCH=1 pip install horovod` above `RUN pip install torch==2.1.2`.

    Fix: Install the framework in an earlier `RUN`.

    Known limits: A framework that a script or another stage brings is not seen, nor is one that the same command
    installs. A base image other than those of CUDA, Python, conda and Linux distributions may contain a framework.
    """
    bases = {claim.span.path: claim for claim in job.about("image_base")}
    installed: dict[tuple[str, str], Claim] = {}
    for claim in job.about("package"):
        match = _SPELLED_NAME.match(claim.spelling)
        if claim.source == "image" and claim.span.path in bases and match is not None:
            installed.setdefault((claim.span.path, match["name"].lower().replace("_", "-")), claim)
    for (path, name), claim in installed.items():
        frameworks = [
            (other, installed[path, other]) for other in _BUILT_WITH.get(name, ()) if (path, other) in installed
        ]
        if not frameworks or "://" in claim.spelling or ".whl" in claim.spelling:
            continue
        base = bases[path]
        others = [r for r in job.references if r.role == "requirements" and r.span.path == path and r.span < claim.span]
        framework, later = min(frameworks, key=lambda pair: pair[1].span)
        if later.span < claim.span:
            yield passed(path)
        elif others or not all(_PLAIN_IMAGE.fullmatch(text) for text in texts(base.value) or ("",)):
            at = others[0].span if others else base
            yield unknown(path, f"whether {framework} is there before {placed(claim)} is unknown", at=at)
        else:
            yield failed(
                path,
                f"{quoted(claim)} is built with {framework}, which {placed(later)} installs only after it.",
                at=claim,
                also=((later, "installed later"), (base, f"has no {framework}")),
                remedy=f"Move the installation of {framework} above it.",
            )


@rule(
    "VLK007",
    "name-of-another-release",
    severity=Severity.ERROR,
    otherwise="no script imports a name that exists only in some releases of a framework",
)
def name_of_another_release(job: Job) -> Iterator[Verdict]:
    """A script imports a name that the pinned release of its framework does not have.

    What it checks: Imported names of torch, Lightning, transformers and Accelerate are compared with a table of the
    releases that added or removed them, for the release that the job's files pin. An import in a `try` or under a
    condition does not count.

    Why it matters: The import stops every rank (`ImportError: cannot import name`), after the nodes were allocated.

    Example: `from torch.distributed.fsdp import fully_shard` with `torch==2.5.1`, where it is in
    `torch.distributed._composable.fsdp`.

    Fix: Pin a release with the name, or import the replacement in the pinned release.

    Known limits: The table has only some names, from distributed training. If the release is not pinned exactly, the
    result is unknown.
    """
    unpinned: set[str] = set()
    for claim in job.about("imported_name"):
        name = next(iter(texts(claim.value)), "")
        for row in _rows_of_name(name):
            package = row["package"]
            release = pinned(job, package)
            has_name = in_range(release, row.get("since", ""), row.get("until", ""))
            if has_name is None and package not in unpinned:
                unpinned.add(package)
                yield unknown(package, f"no file pins one release of {package}", at=claim)
            elif has_name is None:
                continue
            elif has_name:
                yield passed(name)
            elif claim.condition:
                yield unknown(name, f"under `{claim.condition}`, another {package} may be imported", at=claim)
            else:
                range_text = f"since {row['since']}" if "since" in row else f"up to {row['until']}"
                yield failed(
                    name,
                    f"{quoted(claim)}: {package} has {name} {range_text}, but the job's files pin {release}, so the"
                    " import stops.",
                    at=claim,
                    remedy=_remedy_for_name(row),
                )


@functools.cache
def _names_by_start() -> dict[str, dict[str, Any]]:
    return {name: row for row in table("names")["names"] for name in row["names"]}


def _rows_of_name(name: str) -> list[dict[str, Any]]:
    """Return the rows about a name and the modules that it is in."""
    parts = name.split(".")
    starts = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return [row for start in starts if (row := _names_by_start().get(start)) is not None]


def _remedy_for_name(row: dict[str, Any]) -> str:
    if "since" in row:
        other = f", or use {row['instead']}" if "instead" in row else ""
        return f"Use {row['package']} {row['since']} or newer{other}."
    return f"Use {row['instead']}." if "instead" in row else f"Use {row['package']} {row['until']}, or another name."


def _is_only_listed(job: Job, package: _NamedPackage) -> bool:
    """Return whether the package is in a requirements file that no command of the job installs."""
    installed_files = {reference.target for reference in job.references if reference.role == "requirements"}
    return package.claim.source == "requirements" and package.claim.span.path not in installed_files


def _is_development_build(package: _NamedPackage) -> bool:
    return package.release is not None and package.release.is_devrelease


def _for_minor(needed: str, name: str, version: str, package: str) -> str:
    """Return what any patch release of a minor version requires, if its newest patch requires `needed`.

    The lower bounds are those of the previous minor version, because an earlier patch may have had them.
    """
    rows = [row["version"] for row in table("requirements").get(package, ())]
    older = table("requirements")[package][rows.index(version) + 1 :][:1]
    older_needs = [required for row in older if (required := row.get("requires", {}).get(name))]
    other_parts = [part for part in needed.split(",") if part not in _lower_bounds(needed).split(",")]
    return ",".join((*(_lower_bounds(each) for each in older_needs), *other_parts)) if older_needs else needed


def _lower_bounds(needed: str) -> str:
    """Return the parts of a requirement that exclude old releases."""
    return ",".join(part for part in needed.split(",") if part.strip().startswith((">", "~")))


#: Packages whose every release pins a release of torch.
_RELEASED_WITH_TORCH = frozenset(("torchvision", "torchaudio", "torchtext", "torchrec"))


def _is_excluded(
    job: Job, package: _NamedPackage, other: _NamedPackage, needed: str, named: list[_NamedPackage], *, exact: bool
) -> bool:
    """Return whether this place, and every other place that names the package, excludes the required releases."""
    if not exact and "==" in needed and package.name not in _RELEASED_WITH_TORCH:
        # The pin of another patch release need not apply to this release.
        return False
    if not exact:
        # A different patch release may pin a different patch release.
        needed = _PATCH.sub(r"==\1.*", needed)
    if not _excludes(needed, other):
        return False
    # Each group of extras, each image and each later command may name its own release.
    same_name = [each for each in named if each.name == other.name]
    return _installed_together(job, package.claim, other.claim) or all(_excludes(needed, each) for each in same_name)


def _installed_together(job: Job, first: Claim, second: Claim) -> bool:
    """Return whether one installation resolves both claims: they are in one requirements file or one command."""
    if first.span.path != second.span.path:
        return False
    if first.source == second.source == "requirements":
        return not first.span.path.endswith((".yml", ".yaml"))
    return any(
        _contains_span(command.span, first.span) and _contains_span(command.span, second.span)
        for command in job.about("installing_line")
        if not any("--no-deps" in words for words in command.alternatives if isinstance(words, tuple))
    )


def _contains_span(outer: Span, inner: Span) -> bool:
    starts_inside = (outer.path, outer.line, outer.column) <= (inner.path, inner.line, inner.column)
    return starts_inside and (inner.path, inner.end_line, inner.end_column) <= (
        outer.path,
        outer.end_line,
        outer.end_column,
    )


def _named_packages(claim: Claim) -> Iterator[_NamedPackage]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for text in texts(claim.value):
        match = _NAME_AND_SPECIFIER.fullmatch(text)
        if match is not None:
            try:
                yield _NamedPackage(match["name"], SpecifierSet(match["specifier"]), claim)
            except InvalidSpecifier:
                continue


#: A version that is at least the last release, for each minor version of Python.
_PYTHONS = [f"3.{minor}.99" for minor in range(5, 20)]


def _excludes(needed: str, other: _NamedPackage) -> bool:
    """Return whether a place allows none of the required releases."""
    from packaging.specifiers import SpecifierSet

    required = SpecifierSet(needed)
    if other.release is not None:
        return not required.contains(other.release, prereleases=True)
    releases = [row["version"] for row in table("requirements").get(other.name, ())]
    if other.name == "python":
        releases = _PYTHONS
    # The table has only the newest release of each minor version. The bounds of the required and the allowed releases
    # (`==3.10.0.*`) may name other releases.
    bounds = [item.version.removesuffix(".*") for item in (*required, *other.specifier)]
    return bool(releases) and not any(
        required.contains(version) and other.specifier.contains(version) for version in (*releases, *bounds)
    )


def _requirement_text(needed: str) -> str:
    """Return the requirement without single excluded releases (`!=`), unless it has no other parts."""
    return ",".join(part for part in reversed(needed.split(",")) if not part.startswith("!=")) or needed


def _requirements_row(name: str, release: Version) -> dict[str, Any] | None:
    """Return the table's row for a release, or for the newest release of its minor version; None if there is no row."""
    from packaging.version import Version

    rows = table("requirements").get(name, ())
    exact_row = next((row for row in rows if Version(row["version"]) == release), None)
    # Releases such as 0.0.18 have no minor version.
    if exact_row is not None or release.release[:2] == (0, 0):
        return exact_row
    return next((row for row in rows if Version(row["version"]).release[:2] == release.release[:2]), None)

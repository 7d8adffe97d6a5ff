"""Releases that are named together, of which one requires another release of the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Span, Unresolved
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.data_tables import table

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

_PATCH = re.compile(r"==(\d+\.\d+)(?:\.\d+)+")
_NAMED = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(?P<specifier>[=<>~!].*)")


class _Named(NamedTuple):
    """A package and the releases that one place allows."""

    name: str
    specifier: SpecifierSet
    claim: Claim

    @property
    def release(self) -> Version | None:
        """The release, if the place names exactly one."""
        from packaging.version import InvalidVersion, Version

        only = [item for item in self.specifier if item.operator in ("==", "===")]
        try:
            return Version(only[0].version) if len(only) == 1 else None
        except InvalidVersion:
            # `==2.1.*` and `===nightly` name no single release.
            return None


@rule(
    "VLK006",
    "named-releases-refuse-each-other",
    severity=Severity.ERROR,
    otherwise="no release is named of a package whose requirements are known",
)
def named_releases_refuse_each_other(job: Job) -> Iterator[Verdict]:
    """A package is named in a release that requires another release of a package that is named, too.

    What it checks: For about 60 packages (torch and its companions, the Hugging Face libraries, Lightning, DeepSpeed,
    Ray, TensorFlow, JAX, PaddlePaddle and what they share): where files of the job name one release of a package, the
    other packages that they name may be of a release which it requires.

    Why it matters: pip refuses to install such a pair, on every node or while the image is built. Where they are
    installed one after the other it only warns, and the program stops at an import or at a call.

    Example: `torchvision==0.24.1`, which requires torch==2.9.1, beside `torch==2.8.0`.

    Fix: Name a release of the other package that is required, or another release of the first.

    Known limits: It is an error where one command or one requirements file names both. The finding is a warning where
    they are installed one after the other, where only an extra of the package has the requirement (transformers and
    torch), and where the requirements of the release were not read, but those of the newest one of its minor version.
    """
    named = [package for claim in job.about("package") for package in _read(claim)]
    unresolved = [claim for claim in job.about("package") if isinstance(claim.value, Unresolved)]
    for package in named:
        release = package.release
        row = _row(package.name, release) if release is not None else None
        if row is None or release is None:
            continue
        exact = row["version"] == release.public
        certain = row.get("requires", {})
        # Without the extra pip installs any release; what is too old for the package is not used by it.
        uncertain = {name: lowest for name, needed in row.get("extra", {}).items() if (lowest := _lower_bounds(needed))}
        needs = {**uncertain, **certain}
        conflicts = [(other, needs[other.name]) for other in named if other.name in needs]
        conflicts = [
            (other, needed) for other, needed in conflicts if _refused(job, package, other, needed, named, exact=exact)
        ]
        for other, needed in conflicts:
            shown = _shown(needed)
            is_error = exact and other.name in certain and _installed_together(job, package.claim, other.claim)
            yield failed(
                f"{package.name} {release}",
                f"{quoted(package.claim)} requires {other.name}{shown}, which {placed(other.claim)} excludes.",
                at=package.claim,
                also=((other.claim, f"excludes {shown}"),),
                remedy=f"Name a release of {other.name} that is {shown}, or another release of {package.name}.",
                severity=None if is_error else Severity.WARNING,
                confidence=None if is_error else Confidence.MEDIUM,
            )
        if conflicts:
            continue
        open_claims = [c for c in unresolved if (m := _NAMED.match(c.spelling)) is not None and m["name"] in needs]
        if open_claims:
            yield unknown(f"{package.name} {release}", f"{quoted(open_claims[0])} is unknown", at=open_claims[0])
        else:
            yield passed(f"{package.name} {release}")


def _lower_bounds(needed: str) -> str:
    """The parts of a requirement that exclude old releases."""
    return ",".join(part for part in needed.split(",") if part.strip().startswith((">", "~")))


#: Packages of which each release pins one of torch.
_RELEASED_WITH_TORCH = frozenset(("torchvision", "torchaudio", "torchtext", "torchrec"))


def _refused(job: Job, package: _Named, other: _Named, needed: str, named: list[_Named], *, exact: bool) -> bool:
    """Whether what a package requires of another is excluded by this place, and by every other place that names it."""
    if not exact and "==" in needed and package.name not in _RELEASED_WITH_TORCH:
        # What another patch pins says nothing of this one.
        return False
    if not exact:
        # Another patch of the release may pin another patch.
        needed = _PATCH.sub(r"==\1.*", needed)
    if not _excludes(needed, other):
        return False
    # Groups of extras, several images, a later command: each may name a release of its own.
    same = [each for each in named if each.name == other.name]
    return _installed_together(job, package.claim, other.claim) or all(_excludes(needed, each) for each in same)


def _installed_together(job: Job, one: Claim, other: Claim) -> bool:
    """Whether one installer decides about both: they are in one requirements file, or in one command."""
    if one.span.path != other.span.path:
        return False
    if one.source == other.source == "requirements":
        return not one.span.path.endswith((".yml", ".yaml"))
    return any(
        _contains(command.span, one.span) and _contains(command.span, other.span)
        for command in job.about("installing_line")
        if not any("--no-deps" in words for words in command.alternatives if isinstance(words, tuple))
    )


def _contains(outer: Span, inner: Span) -> bool:
    starts = (outer.path, outer.line, outer.column) <= (inner.path, inner.line, inner.column)
    return starts and (inner.path, inner.end_line, inner.end_column) <= (outer.path, outer.end_line, outer.end_column)


def _read(claim: Claim) -> Iterator[_Named]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for text in texts(claim.value):
        match = _NAMED.fullmatch(text)
        if match is not None:
            try:
                yield _Named(match["name"], SpecifierSet(match["specifier"]), claim)
            except InvalidSpecifier:
                continue


def _excludes(needed: str, other: _Named) -> bool:
    """Whether no release that a place allows is one that is required."""
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(needed)
    if other.release is not None:
        return not wanted.contains(other.release, prereleases=True)
    known = [row["version"] for row in table("requirements").get(other.name, ())]
    # Of a minor version the table has the newest release only; the bounds of what is required may name others.
    named = [item.version for item in wanted if "*" not in item.version]
    return bool(known) and not any(
        wanted.contains(version) and other.specifier.contains(version) for version in (*known, *named)
    )


def _shown(needed: str) -> str:
    """What is required, without the single releases that are left out of it, if there is anything else."""
    return ",".join(part for part in reversed(needed.split(",")) if not part.startswith("!=")) or needed


def _row(name: str, release: Version) -> dict[str, Any] | None:
    """What a release requires, or the newest one of its minor version; None where neither was read."""
    from packaging.version import Version

    rows = table("requirements").get(name, ())
    exact = next((row for row in rows if Version(row["version"]) == release), None)
    # Releases such as 0.0.18 have no minor version.
    if exact is not None or release.release[:2] == (0, 0):
        return exact
    return next((row for row in rows if Version(row["version"]).release[:2] == release.release[:2]), None)

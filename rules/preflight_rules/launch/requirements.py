"""Releases that are named together, of which one requires another release of the other."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted

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
        from packaging.version import Version

        only = [item for item in self.specifier if item.operator in ("==", "===")]
        return Version(only[0].version) if len(only) == 1 and "*" not in only[0].version else None


@rule(
    "VLK006",
    "named-releases-refuse-each-other",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no release is named of a package whose requirements are known",
    evidence=(
        ("pip's documentation, dependency resolution", "https://pip.pypa.io/en/stable/topics/dependency-resolution/"),
        "the metadata of the wheels on the package index",
    ),
)
def named_releases_refuse_each_other(job: Job) -> Iterator[Verdict]:
    """A package is named in a release that requires another release of a package that is named, too.

    What it checks: For about 60 packages (torch and its companions, the Hugging Face libraries, Lightning, DeepSpeed,
    Ray, TensorFlow, JAX, PaddlePaddle and what they share): where files of the job name one release of a package, the
    other packages that they name may be of a release which it requires.

    Why it matters: pip refuses to install such a pair, on every node or while the image is built. Where they are
    installed one after the other it only warns, and the program stops at an import or at a call.

    Example: `transformers==5.0.0`, which requires torch>=2.4, beside `torch==2.0.1`.

    Fix: Name a release of the other package that is required, or another release of the first.

    Known limits: The requirements of a release that was not read are taken from the newest one of its minor version;
    then, and where the two are named in different files, the finding is a warning. Extras are not counted, but for
    torch.
    """
    named = [package for claim in job.about("package") for package in _read(claim)]
    unresolved = next((claim for claim in job.about("package") if isinstance(claim.value, Unresolved)), None)
    for package in named:
        release = package.release
        row = _row(package.name, release) if release is not None else None
        if row is None or release is None:
            continue
        refused = False
        for other in named:
            needed = row.get("requires", {}).get(other.name, "")
            if row["version"] != str(release):
                # Another patch of the release may pin another patch.
                needed = _PATCH.sub(r"==\1.*", needed)
            same = [each for each in named if each.name == other.name]
            # Groups of extras, or of several images, may each name a release of their own.
            if not needed or not all(_excludes(needed, each) for each in same):
                continue
            refused = True
            shown = _shown(needed)
            together = other.claim.span.path == package.claim.span.path
            certain = together and row["version"] == str(release)
            yield failed(
                f"{package.name} {release}",
                f"{quoted(package.claim)} requires {other.name}{shown}, which {placed(other.claim)} excludes.",
                at=package.claim,
                also=((other.claim, f"excludes {shown}"),),
                remedy=f"Name a release of {other.name} that is {shown}, or another release of {package.name}.",
                severity=None if certain else Severity.WARNING,
                confidence=None if certain else Confidence.MEDIUM,
            )
        if not refused and unresolved is not None and "requires" in row:
            yield unknown(f"{package.name} {release}", f"{quoted(unresolved)} is unknown", at=unresolved)
        elif not refused:
            yield passed(f"{package.name} {release}")


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
    known = [row["version"] for row in _table().get(other.name, ()) if other.specifier.contains(row["version"])]
    return bool(known) and not any(wanted.contains(version) for version in known)


def _shown(needed: str) -> str:
    """What is required, without the single releases that are left out of it, if there is anything else."""
    return ",".join(part for part in reversed(needed.split(",")) if not part.startswith("!=")) or needed


def _row(name: str, release: Version) -> dict[str, Any] | None:
    """What a release requires, or the newest one of its minor version; None where neither was read."""
    from packaging.version import Version

    rows = _table().get(name, ())
    return next((row for row in rows if Version(row["version"]).release[:2] == release.release[:2]), None)


@functools.cache
def _table() -> dict[str, list[dict[str, Any]]]:
    path = Path(__file__).parents[1] / "data" / "requirements.json"
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: rows for name, rows in table.items() if name != "date"}

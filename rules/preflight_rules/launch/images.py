"""Container image tags that may mean different images on different nodes."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import certainly_one, certainly_several, nodes_spanned, placed, quoted


@rule(
    "VLK004",
    "image-tag-open",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
    otherwise="no image is pulled on several nodes",
    evidence=(
        ("'latest' was different builds on two nodes; containers failed on some", "google/cluster-insight#94"),
        (
            "The documentation of Kubernetes advises against `latest` in production",
            "https://kubernetes.io/docs/concepts/containers/images/#image-names",
        ),
    ),
)
def image_tag_open(job: Job) -> Iterator[Verdict]:
    """The image of a job on several nodes has no tag, or the tag `latest`.

    What it checks: Images that are pulled from a registry name a tag other than `latest`, or a digest, when the launch
    spans several nodes.

    Why it matters: Each node pulls for itself; one that pulled earlier keeps the image that was latest then, so ranks
    run different releases.

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
            if all(_is_open(name) for name in names):
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


def _is_open(name: str) -> bool:
    last = name.rpartition("/")[2]
    return "@" not in last and last.partition(":")[2] in ("", "latest")

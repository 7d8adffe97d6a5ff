"""`preflight manifest`: print what to add to a Kubernetes job to check its own pods before it starts."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli import options


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("others", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["init", "patch", "job"]),
    default="init",
    show_default=True,
    help="init: what to add to the pods; patch: the whole manifest with it added; job: a separate Job.",
)
@click.option("--object", "name", default="", metavar="NAME", help="The job to use, if the manifest contains several.")
@click.option(
    "--container",
    default="",
    metavar="NAME",
    help="Use the image and devices of this container. Default: the one with devices.",
)
@click.option(
    "--image", default="", metavar="IMAGE", help="An image with preflight installed, instead of the job's own."
)
@click.option("--install", is_flag=True, help="Install preflight with pip when the container starts.")
@click.option("--lenient", is_flag=True, help="Only report findings; the job starts regardless.")
@click.option(
    "--option", "further", multiple=True, metavar="WORD", help="An additional argument for that `preflight check`."
)
@options.ROOT
def manifest(
    manifest: Path,
    others: tuple[Path, ...],
    kind: str,
    name: str,
    container: str,
    image: str,
    install: bool,
    lenient: bool,
    further: tuple[str, ...],
    root: Path | None,
) -> int:
    """Print what to add to a Kubernetes job so that preflight checks its own pods before it starts.

    MANIFEST is the job's file; OTHERS are further files of the job (its scripts) that the manifest does not refer to.
    Nothing is applied: the output is YAML for `kubectl apply -f -`, with comments that say what to do.
    """
    from preflight._util import regular_file
    from preflight._util.usage_error import UsageError
    from preflight.commands import manifest as made
    from preflight.config.jobs import jobs_in
    from preflight.reporters.output import print_bytes
    from preflight.sources.discovery.walk import root_of
    from preflight.sources.formats.tree import MAX_BYTES

    paths = (manifest, *others)
    top = root_of(paths, root)
    jobs = jobs_in(paths, root=root)
    known = [file.path for job in jobs for file in job.files]
    try:
        text = regular_file.read_text(manifest, MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{manifest} cannot be read: {error}") from None
    files = made.read_files(top, tuple(dict.fromkeys(known)))
    options = made.ManifestOptions(name, container, image, install, lenient, further)
    print_as = {"init": made.pieces, "patch": made.patched, "job": made.gate_job}[kind]
    print_bytes(print_as(text, files, options).encode("utf-8"))
    return 0

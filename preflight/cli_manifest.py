"""`preflight manifest`: what to add to a Kubernetes job so that its own pods are looked at before it starts."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import options


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("others", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["init", "patch", "job"]),
    default="init",
    show_default=True,
    help="init: what to add to the pods; patch: the whole manifest with it; job: a Job of its own beside it.",
)
@click.option("--object", "name", default="", metavar="NAME", help="Which job, where the manifest holds several.")
@click.option(
    "--container", default="", metavar="NAME", help="Whose image and devices. Default: the container with devices."
)
@click.option("--image", default="", metavar="IMAGE", help="An image with preflight in it, instead of the job's own.")
@click.option("--install", is_flag=True, help="Install preflight with pip when the container starts.")
@click.option("--lenient", is_flag=True, help="Only tell what is found; the job starts all the same.")
@click.option("--option", "further", multiple=True, metavar="WORD", help="A further word for `preflight check` there.")
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
    """Print what to add to a Kubernetes job, so that preflight looks at its own pods before it starts.

    MANIFEST is the job's file; OTHERS are further files of the job (its scripts), which it does not refer to itself.
    Nothing is applied: the output is YAML for `kubectl apply -f -`, with comments that say what to do.
    """
    from preflight import api
    from preflight import manifest as made
    from preflight.deliver import print_bytes
    from preflight.errors import UsageError
    from preflight.roots import root_of

    paths = (manifest, *others)
    top = root_of(paths, root)
    jobs = api.jobs_in(paths, root=root)
    known = [file.path for job in jobs for file in job.files]
    try:
        text = manifest.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{manifest} cannot be read: {error}") from None
    files = made.read_files(top, tuple(dict.fromkeys(known)))
    wish = made.Wish(name, container, image, install, lenient, further)
    print_as = {"init": made.pieces, "patch": made.patched, "job": made.beside}[kind]
    print_bytes(print_as(text, files, wish).encode("utf-8"))
    return 0

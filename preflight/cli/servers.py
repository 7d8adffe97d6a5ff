"""The commands for Kubernetes (`manifest`, `webhook`, `admission-check`) and the servers `lsp` and `serve`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.cli import live as live_options
from preflight.cli import options

if TYPE_CHECKING:
    from preflight.services.admission.cluster import Cluster
    from preflight.services.admission.judgement import Policy


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("others", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["init", "patch", "job"]),
    default="init",
    show_default=True,
    help="init: what to add to the pods; patch: the whole manifest with that added; job: a separate Job.",
)
@click.option("--object", "name", default="", metavar="NAME", help="The job to use, if the manifest contains several.")
@click.option(
    "--container",
    default="",
    metavar="NAME",
    help="Use the image and devices of this container. Default: the container with devices.",
)
@click.option(
    "--image", default="", metavar="IMAGE", help="An image with preflight installed, instead of the job's own."
)
@click.option("--install", is_flag=True, help="Install preflight with pip when the container starts.")
@click.option("--lenient", is_flag=True, help="Only report findings; the job starts regardless.")
@click.option(
    "--option",
    "further",
    multiple=True,
    metavar="WORD",
    help="An additional argument for `preflight check` in the container.",
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
    """Print what to add to a Kubernetes job so that preflight checks its pods before it starts.

    MANIFEST is the job's file; OTHERS are further files of the job (its scripts) that the manifest does not refer to.
    Nothing is applied: the output is YAML for `kubectl apply -f -`, with comments that say what to do.
    """
    from preflight._util import regular_file
    from preflight._util.roots import root_of
    from preflight._util.usage_error import UsageError
    from preflight.commands import manifest as made
    from preflight.config.resolve import jobs_in
    from preflight.reporters.output import print_bytes
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
    print_as = {"init": made.pieces, "patch": made.patch_manifest, "job": made.gate_job}[kind]
    print_bytes(print_as(text, files, options).encode("utf-8"))
    return 0


F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)
_ANSWER = click.Choice(["allow", "refuse"])
_POLICY: Callable[[F], F] = options.combine(
    click.option(
        "--refuse-at",
        multiple=True,
        metavar="[NAMESPACE=]LEVEL",
        help="The lowest severity at which a job is refused: error, warning or never. Default: fail-on of the "
        "configuration, or else error. With a namespace pattern, only in those namespaces: 'team-*=never'. "
        "Repeatable.",
    ),
    click.option(
        "--on-failure",
        type=_ANSWER,
        default="allow",
        show_default=True,
        help="Action for an object that cannot be checked: no time, too many requests, a bug in preflight.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 64),
        default=2,
        show_default=True,
        help="Number of objects that are checked at the same time, each in its own process.",
    ),
    click.option(
        "--deadline",
        type=click.FloatRange(0.5, 29),
        default=8.0,
        show_default=True,
        metavar="SECONDS",
        help="Time limit for one object. Keep it below the webhook's timeoutSeconds.",
    ),
    click.option(
        "--kubeconfig", type=_FILE, metavar="FILE", help="Credentials for the cluster. Default: those of the pod."
    ),
    click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use."),
)


@click.command()
@click.option(
    "--certificate", type=_FILE, required=True, metavar="FILE", help="The certificate with its chain, in PEM."
)
@click.option("--key", type=_FILE, required=True, metavar="FILE", help="The private key of the certificate, in PEM.")
@click.option(
    "--listen",
    default="127.0.0.1:8443",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; 0.0.0.0:8443 in a pod.",
)
@click.option(
    "--path-token-file",
    type=_FILE,
    metavar="FILE",
    help="File with a token: reviews are answered only at /admit/TOKEN, which only the API server should know. "
    "Default: at /admit, for everyone who can reach it.",
)
@click.option(
    "--on-too-large", type=_ANSWER, help="Action for a request above --max-bytes. Default: the same as --on-failure."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(4096, 64 * 1024 * 1024),
    default=4 * 1024 * 1024,
    show_default=True,
    help="The largest request that is read.",
)
@click.option("--no-cluster", is_flag=True, help="Read nothing from the cluster, and check each object alone.")
@_POLICY
@options.SERVICE_RULE_OPTIONS
def webhook(
    certificate: Path,
    key: Path,
    listen: str,
    path_token_file: Path | None,
    on_too_large: str | None,
    max_bytes: int,
    no_cluster: bool,
    **option_values: Any,
) -> int:
    """Serve a validating admission webhook: Kubernetes asks it about every job that is submitted.

    It lints the object with the queues, runtimes and ConfigMaps that it refers to, and refuses it or warns.
    """
    _needs("starlette", "uvicorn", "prometheus_client")
    from preflight.services.admission.judgement import Workers
    from preflight.services.admission.webhook import Certificate, Webhook, serve

    policy = _policy(option_values, on_too_large=on_too_large or option_values["on_failure"], max_body_bytes=max_bytes)
    host, port = _listen_address(listen)
    path_token = _path_token(path_token_file) if path_token_file is not None else ""
    cluster = (
        None
        if no_cluster
        else _cluster(option_values, required=bool(option_values["kubeconfig"] or option_values["context"]))
    )
    workers = Workers(policy, cluster.read if cluster is not None else None)
    serve(Webhook(workers, path_token=path_token), host, port, Certificate(certificate, key))
    return 0


@click.command("admission-check")
@click.option(
    "--controller-name",
    default="preflight/admission-check",
    show_default=True,
    metavar="NAME",
    help="The controllerName of the AdmissionChecks that this controller answers.",
)
@_POLICY
@options.SERVICE_RULE_OPTIONS
def admission_check(controller_name: str, **option_values: Any) -> int:
    """Run an AdmissionCheck controller for Kueue: a queued job starts only after preflight has checked it.

    It watches Workloads, lints the job of each one, and sets its check to Ready, Retry or Rejected.
    """
    from preflight.services.admission.cluster import run_controller
    from preflight.services.admission.judgement import Workers

    policy = _policy(option_values)
    cluster = _cluster(option_values, required=True)
    assert cluster is not None
    run_controller(cluster, Workers(policy, cluster.read), controller_name)
    return 0


def _needs(*modules: str) -> None:
    from importlib.util import find_spec

    from preflight._util.usage_error import UsageError

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} cannot be imported; pip install 'preflight-train[webhook]'")


def _policy(option_values: dict[str, Any], **further: Any) -> Policy:
    from preflight import api
    from preflight.services.admission.judgement import Policy, levels_of

    wanted = {**option_values, "fail_on": None, "allow_incomplete": False, "exclude": (), "extend_exclude": ()}
    configuration = api.configure(
        options.choices({**wanted, "no_config": option_values["config"] is None}), ()
    ).configuration
    default = "error" if configuration.fail_on == "error" else "warning"
    refuse_at, namespaces = levels_of(option_values["refuse_at"], default)
    return Policy(
        configuration,
        refuse_at,
        namespaces,
        option_values["on_failure"],
        max_concurrent=option_values["concurrency"],
        deadline_s=option_values["deadline"],
        **further,
    )


def _listen_address(listen: str) -> tuple[str, int]:
    from preflight._util.usage_error import UsageError

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--listen {listen}: expected HOST:PORT, as in 0.0.0.0:8443")
    return host.strip("[]"), int(port)


def _path_token(file: Path) -> str:
    import re

    from preflight._util.usage_error import UsageError
    from preflight.services.access import read_token

    token = read_token(file, "--path-token-file")
    if not re.fullmatch(r"[0-9A-Za-z_-]+", token):
        raise UsageError(
            f"--path-token-file {file}: expected only letters, digits, - and _, because the token is part of a path"
        )
    return token


def _cluster(option_values: dict[str, Any], *, required: bool) -> Cluster | None:
    """Connect to the cluster. Returns None if that fails and `required` is false; raises UsageError if it is true."""
    from preflight._util.usage_error import UsageError
    from preflight.services.admission.cluster import Cluster, ClusterError

    try:
        return Cluster.connect(str(option_values["kubeconfig"] or ""), option_values["context"])
    except ClusterError as error:
        if required:
            raise UsageError(str(error)) from None
        click.echo(f"preflight: {error}; each object is checked alone, with a warning to its author", err=True)
        return None


_INSTALL = 'pip install "preflight-train[lsp]"'
_LOOPBACK = "127.0.0.1"


def _address(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Return the host and port of `HOST:PORT`, `[::1]:PORT` or `PORT`."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, as in 127.0.0.1:2087", context, option)
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


@click.command()
@click.option(
    "--tcp",
    "address",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Listen on a TCP port instead of standard input and output; on 127.0.0.1 unless a host is given. Anyone "
    "who can connect can read files as you.",
)
@click.option("--stdio", is_flag=True, hidden=True, help="Use standard input and output, which is the default.")
@options.CONFIG
@options.EXTRA_RULES
def lsp(
    address: tuple[str, int] | None, stdio: bool, config: Path | None, no_config: bool, site_rules: tuple[Path, ...]
) -> int:
    """Serve an editor: findings while you type, fixes, and what each value decides for the ranks.

    Editors start this command themselves; docs/editor.md says how. It speaks the Language Server Protocol on standard
    input and output. Nothing in the opened folders is executed.
    """
    from preflight._util.usage_error import UsageError

    if stdio and address is not None:
        raise click.UsageError("--stdio and --tcp are mutually exclusive")
    if importlib.util.find_spec("pygls") is None:
        raise UsageError(f"preflight lsp needs pygls, which is not installed here; run: {_INSTALL}")
    from preflight.config.resolve import Choices
    from preflight.services.language_server.server import serve

    serve(Choices(file=config, use_file=not no_config, site_rules=site_rules), address)
    return 0


@click.command()
@live_options.HISTORY_ADDRESS
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8440",
    show_default=True,
    help="Address to serve the page on. An address that others can reach needs a token. Port 0 selects any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the token that is required to open the page. The environment variable PREFLIGHT_SERVE_TOKEN "
    "does the same.",
)
@live_options.deadline_option("--page-deadline", 10.0, "Time limit for a page and its queries.", maximum=300)
@options.CONFIG
def serve(
    history: str | None,
    listen: str,
    token_file: Path | None,
    page_deadline: float,
    config: Path | None,
    no_config: bool,
) -> int:
    """Serve a page over the history: every node, its runs, its measurements and its links.

    It only reads the database, which other commands may write at the same time, and ends with Ctrl-C.

    Exit codes: 0 stopped, 2 the history cannot be shown or the address cannot be used.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.config.resolve import Choices
    from preflight.services.access import token_of
    from preflight.services.fleet_page.application import Listening, listening
    from preflight.services.fleet_page.application import serve as run

    address = history or api.configure(Choices(file=config, use_file=not no_config), ()).history
    if not address:
        raise UsageError("no history was given; pass --history sqlite:///FILE or postgresql://HOST/NAME")
    token = token_of(token_file)

    def started(where: Listening) -> None:
        click.echo(f"preflight: serving the history at {where.url}", err=True)

    run(address, listening(listen), token, deadline_s=page_deadline, started=started)
    return 0

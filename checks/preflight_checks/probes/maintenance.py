"""Signs that a node will be removed or restarted: a planned shutdown, plans of a scheduler or a cloud."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.wire import ProbeUnavailable

RUN = "/run"
ETC = "/etc"
DMI = "/sys/class/dmi/id"
_SCONTROL_S = 3.0
_METADATA_S = 1.0
_ADDRESS = "http://169.254.169.254"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class ShutdownSigns:
    """The signs on this node itself. `shutdown` is the planned action (reboot, poweroff ...), empty if none;
    `shutdown_in_s` the time until then by the node's own clock. `no_logins` is the text of the file that keeps users
    out, None without one. `restart_wanted`: updated packages need a restart.
    """

    shutdown: str = ""
    shutdown_in_s: float | None = None
    no_logins: str | None = None
    restart_wanted: bool = False


@cheap("node")
def signs(params: dict[str, Any]) -> ShutdownSigns:
    """Read the files that systemd and the distribution leave in /run and /etc; no daemon is queried."""
    planned = parse_scheduled(_read(RUN + "/systemd/shutdown/scheduled") or "")
    refusal = _read(RUN + "/nologin")
    if refusal is None:
        refusal = _read(ETC + "/nologin")
    return ShutdownSigns(
        planned[0],
        planned[1] - time.time() if planned[1] is not None else None,
        refusal.strip()[:200] if refusal is not None else None,
        os.path.exists(RUN + "/reboot-required"),
    )


def parse_scheduled(text: str) -> tuple[str, float | None]:
    """Parse /run/systemd/shutdown/scheduled: the plan of systemd-logind and its time (seconds since 1970)."""
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    when = found.get("USEC", "")
    mode = found.get("MODE", "")
    # A rehearsal (`shutdown -k`) only writes to all terminals.
    if not mode or mode.startswith("dry-") or not when.isdecimal():
        return "", None
    return mode, int(when) / 1e6


@dataclass(frozen=True)
class SlurmNode:
    """Slurm's data about one node; `reason` is its administrator's text."""

    name: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Reservation:
    """A Slurm reservation for maintenance. `starts_in_s` is negative once it has begun."""

    name: str
    nodes: str
    starts_in_s: float


@dataclass(frozen=True)
class SlurmPlans:
    """Nodes that Slurm does not consider healthy, and its reservations for maintenance."""

    nodes: list[SlurmNode] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)


def slurm_plans(params: dict[str, Any]) -> SlurmPlans:
    """Query Slurm's controller, from one node, about all of `params["nodes"]`.

    Raises ProbeUnavailable if there is no Slurm, or it does not answer.
    """
    import shutil

    if shutil.which("scontrol", path=os.environ.get("PATH", "") + ":/usr/bin:/opt/slurm/bin") is None:
        raise ProbeUnavailable("missing", "there is no scontrol on the node")
    names = ",".join(str(name) for name in params["nodes"])
    nodes = run(["scontrol", "show", "node", "--oneliner", names], deadline_s=_SCONTROL_S)
    lines = (nodes.error or nodes.output).strip().splitlines()
    # An unknown node is an answer; a controller that gives none is not queried a second time.
    if nodes.exit_code and not any("not found" in line or "Invalid node name" in line for line in lines):
        raise ProbeUnavailable("crashed", "scontrol: %s" % (lines[-1][:200] if lines else "it failed"))
    reserved = run(["scontrol", "show", "reservation", "--oneliner"], deadline_s=_SCONTROL_S)
    return SlurmPlans(parse_slurm_nodes(nodes.output), parse_reservations(reserved.output, time.time()))


def parse_slurm_nodes(text: str) -> list[SlurmNode]:
    """Parse `scontrol show node -o`: the nodes whose state is more than in use or idle."""
    found: list[SlurmNode] = []
    for line in text.splitlines():
        name, state = re.search(r"\bNodeName=(\S+)", line), re.search(r"\bState=(\S+)", line)
        if not name or not state:
            continue
        words = set(re.split(r"[+*~#!%$@^-]", state.group(1).upper()))
        if words & {"DOWN", "DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "MAINT", "NOT_RESPONDING", "REBOOT"} or (
            "*" in state.group(1)
        ):
            reason = re.search(r"\bReason=(.*?)(?: \[\S+\])?(?:\s+\w+=|\s*$)", line)
            found.append(SlurmNode(name.group(1), state.group(1), reason.group(1).strip()[:200] if reason else ""))
    return found


def parse_reservations(text: str, now: float) -> list[Reservation]:
    """Parse `scontrol show reservation -o`: the reservations for maintenance that have not ended."""
    found: list[Reservation] = []
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S+)", line))
        if "MAINT" not in values.get("Flags", "").split(",") or not values.get("ReservationName"):
            continue
        start, end = _local_time(values.get("StartTime", "")), _local_time(values.get("EndTime", ""))
        if start is not None and end is not None and end > now:
            found.append(Reservation(values["ReservationName"], values.get("Nodes", ""), start - now))
    return found


def _local_time(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


@dataclass(frozen=True)
class CloudEvents:
    """The cloud's announced events for this machine: one line for each event, empty for none."""

    events: list[str] = field(default_factory=list)


def cloud_events(params: dict[str, Any]) -> CloudEvents:
    """Query the metadata service of this machine's cloud. Runs only with the user's consent.

    Raises ProbeUnavailable for a machine of no known cloud, or without an answer.
    """
    cloud = detect_cloud(DMI)
    if not cloud:
        raise ProbeUnavailable("missing", "the firmware identifies no cloud with known events")
    try:
        if cloud == "aws":
            return CloudEvents(_aws())
        if cloud == "azure":
            body = _get("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
            return CloudEvents(parse_azure(body or ""))
        body = _get("/computeMetadata/v1/instance/maintenance-event", {"Metadata-Flavor": "Google"})
        return CloudEvents([body.strip()] if body and body.strip() not in ("NONE", "") else [])
    except OSError as error:
        raise ProbeUnavailable("timeout", f"the cloud's metadata service does not respond: {error}") from None


def detect_cloud(dmi: str) -> str:
    """`aws`, `azure`, `gcp`, or empty, from the firmware's identification."""
    words = " ".join(_read(f"{dmi}/{name}") or "" for name in ("sys_vendor", "board_vendor", "product_name"))
    if "Amazon EC2" in words:
        return "aws"
    if "Google" in words:
        return "gcp"
    # Hyper-V elsewhere has the same vendor; only Azure has the tag.
    tag = (_read(dmi + "/chassis_asset_tag") or "").strip()
    return "azure" if tag == "7783-7084-3265-9085-8269-3286-77" else ""


def _aws() -> list[str]:
    token = _get("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    headers = {"X-aws-ec2-metadata-token": token.strip()} if token else {}
    events = parse_aws(_get("/latest/meta-data/events/maintenance/scheduled", headers) or "")
    interruption = _get("/latest/meta-data/spot/instance-action", headers)
    return events + (["spot: " + interruption.strip()[:200]] if interruption else [])


def parse_aws(text: str) -> list[str]:
    """One line for each active event of EC2's list."""
    return [
        "{}: {} to {}".format(event.get("Code", "?"), event.get("NotBefore", "?"), event.get("NotAfter", "?"))
        for event in _dictionaries(text, "")
        if event.get("State") == "active"
    ]


def parse_azure(text: str) -> list[str]:
    """One line for each of Azure's scheduled events."""
    return [
        "{}: {}".format(event.get("EventType", "?"), event.get("NotBefore") or "now")
        for event in _dictionaries(text, "Events")
    ]


def _dictionaries(text: str, key: str) -> list[dict[str, Any]]:
    try:
        body = json.loads(text) if text.strip() else []
    except ValueError:
        return []
    if key:
        body = body.get(key, []) if isinstance(body, dict) else []
    return [event for event in body if isinstance(event, dict)] if isinstance(body, list) else []


def _get(path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """The answer to one request; None if the service has no such resource. Raises OSError without an answer."""
    # Slow to import, and only needed if the user allowed it.
    import urllib.error
    import urllib.request

    # No proxy: the address is local to the machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(_ADDRESS + path, headers=headers, method=method)
    try:
        with opener.open(request, timeout=_METADATA_S) as answer:
            return str(answer.read(_MAX_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        if error.code in (404, 403, 401):
            return None
        raise


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return None

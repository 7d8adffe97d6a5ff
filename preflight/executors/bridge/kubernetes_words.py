"""What the API server and the way to it say when they refuse, in words that name what to do."""

from __future__ import annotations

import json
import re
from typing import Any, Dict

from preflight.executors.bridge.mux import Trouble


def api_trouble(to: str, status: int, body: str) -> Trouble:
    """What an answer of the API server other than success means."""
    said = str(json_object(body.encode()).get("message") or body.strip()[:300] or "nothing")
    words = 'the API server refused to %s: "%s" (HTTP %d)' % (to, said, status)
    if status == 401:
        return Trouble("denied", words + "; the login has expired or is none: `kubectl auth whoami`", body[:4000])
    if status == 403:
        return Trouble("denied", words + "; " + _grant(said), body[:4000])
    if status == 404:
        return Trouble("missing", words, body[:4000])
    if status in (409, 422, 400):
        return Trouble("blocked", words, body[:4000])
    return Trouble("unreachable", words, body[:4000])


def _grant(said: str) -> str:
    """What to grant, from RBAC's own sentence (kubernetes/apiserver, endpoints/handlers/responsewriters/errors.go)."""
    match = re.search(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', said)
    if match is None:
        return "ask for that permission"
    verb, resource, group, namespace = match.groups()
    where = "-n %s" % namespace if namespace else "--all-namespaces"
    kind, full = ("role", where) if namespace else ("clusterrole", "")
    plural = "%s.%s" % (resource, group) if group else resource
    words = "kubectl create %s preflight %s --verb=%s --resource=%s" % (kind, full, verb, plural)
    return "`kubectl auth can-i %s %s %s` tells; grant it with `%s` and a binding" % (
        verb,
        plural,
        where,
        " ".join(words.split()),
    )


def connection_trouble(to: str, host: str, said: str) -> Trouble:
    # urllib3 wraps one error into another; the innermost is what happened.
    inner = re.findall(r"Caused by \w+\((.*)\)", said)
    last = (inner[-1] if inner else said).strip()
    last = re.sub(r"<[^>]*>:?\s*|^[\"']|[\"']$", "", last)
    kind = "timeout" if re.search(r"timed out", said, re.IGNORECASE) else "unreachable"
    return Trouble(
        kind,
        "the API server %s cannot be reached to %s: %s; does `kubectl get pods` work here?" % (host, to, last),
        said,
    )


_HANDSHAKE = re.compile(r"Handshake status (\d+)")


def exec_trouble(pod: str, said: str, deadline_s: float) -> Trouble:
    """Why a program could not be started in a pod, from what websocket-client says of the handshake.

    That is "Handshake status 403 Forbidden -+-+- {headers} -+-+- b'{body}'" (websocket/_handshake.py).
    """
    match = _HANDSHAKE.search(said)
    if match is not None:
        body = said.rpartition("-+-+-")[2].strip()
        quoted = re.fullmatch(r"b(['\"])(.*)\1", body, re.DOTALL)
        if quoted:
            body = quoted[2].encode("latin-1", "replace").decode("unicode_escape")
        trouble = api_trouble("start a program in the pod %s" % pod, int(match[1]), body)
        return Trouble(trouble.kind, trouble.message, said[:4000])
    kind = "timeout" if "timed out" in said.lower() else "unreachable"
    return Trouble(kind, "no program can be started in the pod %s: %s" % (pod, said[:300]), said[:4000])


def json_object(data: bytes) -> Dict[str, Any]:
    """The object that `data` is; empty where it is none."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

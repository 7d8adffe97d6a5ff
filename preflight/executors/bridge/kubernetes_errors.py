"""Error messages of the API server and of the connection to it, with what to do."""

from __future__ import annotations

import json
import re
from typing import Any, Dict

from preflight.executors.bridge.mux import BridgeError


def explain_api_error(to: str, status: int, body: str) -> BridgeError:
    """Explain an error answer of the API server."""
    message = str(json_object(body.encode()).get("message") or body.strip()[:300] or "nothing")
    words = 'the API server refused to %s: "%s" (HTTP %d)' % (to, message, status)
    if status == 401:
        return BridgeError(
            "denied", words + "; the login is missing or has expired: `kubectl auth whoami`", body[:4000]
        )
    if status == 403:
        return BridgeError("denied", words + "; " + _grant(message), body[:4000])
    if status == 404:
        return BridgeError("missing", words, body[:4000])
    if status in (409, 422, 400):
        return BridgeError("blocked", words, body[:4000])
    return BridgeError("unreachable", words, body[:4000])


def _grant(message: str) -> str:
    """Return what to grant, from RBAC's message (kubernetes/apiserver, handlers/responsewriters/errors.go)."""
    match = re.search(
        r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', message
    )
    if match is None:
        return "ask for that permission"
    verb, resource, group, namespace = match.groups()
    where = "-n %s" % namespace if namespace else "--all-namespaces"
    kind, full = ("role", where) if namespace else ("clusterrole", "")
    plural = "%s.%s" % (resource, group) if group else resource
    words = "kubectl create %s preflight %s --verb=%s --resource=%s" % (kind, full, verb, plural)
    return "`kubectl auth can-i %s %s %s` checks this; grant it with `%s` and a binding" % (
        verb,
        plural,
        where,
        " ".join(words.split()),
    )


def explain_connection_error(to: str, host: str, message: str) -> BridgeError:
    # urllib3 wraps one error into another; the innermost is what happened.
    inner = re.findall(r"Caused by \w+\((.*)\)", message)
    last = (inner[-1] if inner else message).strip()
    last = re.sub(r"<[^>]*>:?\s*|^[\"']|[\"']$", "", last)
    kind = "timeout" if re.search(r"timed out", message, re.IGNORECASE) else "unreachable"
    return BridgeError(
        kind,
        "the API server %s cannot be reached to %s: %s; does `kubectl get pods` work here?" % (host, to, last),
        message,
    )


_HANDSHAKE = re.compile(r"Handshake status (\d+)")


def explain_exec_error(pod: str, message: str, deadline_s: float) -> BridgeError:
    """Explain why a program could not be started in a pod, from websocket-client's message about the handshake.

    That is "Handshake status 403 Forbidden -+-+- {headers} -+-+- b'{body}'" (websocket/_handshake.py).
    """
    match = _HANDSHAKE.search(message)
    if match is not None:
        body = message.rpartition("-+-+-")[2].strip()
        quoted = re.fullmatch(r"b(['\"])(.*)\1", body, re.DOTALL)
        if quoted:
            body = quoted[2].encode("latin-1", "replace").decode("unicode_escape")
        trouble = explain_api_error("start a program in the pod %s" % pod, int(match[1]), body)
        return BridgeError(trouble.kind, trouble.message, message[:4000])
    kind = "timeout" if "timed out" in message.lower() else "unreachable"
    return BridgeError(kind, "no program can be started in the pod %s: %s" % (pod, message[:300]), message[:4000])


def json_object(data: bytes) -> Dict[str, Any]:
    """Parse a JSON object; empty if `data` is not one."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

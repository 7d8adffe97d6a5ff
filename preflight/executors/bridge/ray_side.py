"""Ray in a bridge: the nodes of a running cluster, and programs started by an actor that is pinned to one of them.

The actor requests no CPU and no GPU, so that it finds room in a full cluster. It dies with this process, which is its
driver; the program below it then reads the end of its standard input.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import Any

from preflight.executors.bridge import mux
from preflight.executors.bridge.mux import BridgeError, BridgeServer, Stream

#: How long one call of an actor waits for data; another one follows.
_READ_S = 2.0
#: Time to find out whether anything listens at the cluster's address.
_CONNECT_TIMEOUT_S = 3.0
#: Time limit for a call of an actor, after which its node counts as lost; a call normally takes milliseconds.
_LOST_S = 15.0
#: `NodeDeathInfo.Reason` of ray/src/ray/protobuf/common.proto: the unintended ones.
_UNINTENDED_DEATHS = ("UNSPECIFIED", "UNEXPECTED_TERMINATION", "AUTOSCALER_DRAIN_PREEMPTED")


def main(bundle: bytes, fd_in: int, fd_out: int) -> None:
    mux.serve(RayBridgeServer(), fd_in, fd_out)


class RayBridgeServer(BridgeServer):
    """One Ray cluster."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._actor: Any = None

    def do_connect(self, address: str) -> dict[str, Any]:
        """Become a driver of the cluster at `address` (`auto`: this machine's cluster)."""
        try:
            import ray
        except ImportError as error:
            raise BridgeError(
                "missing",
                f"Ray cannot be imported by {sys.executable} ({error}); pip install 'preflight-train[ray]', or"
                " name the Python that the cluster runs with: --on-option interpreter=PATH",
            )
        _check_reachable(address)
        try:
            ray.init(address=address, namespace="preflight", log_to_driver=False, logging_level="ERROR")
        except BaseException as error:
            raise explain_connection_failure(address, f"{type(error).__name__}: {error}", ray.__version__)
        self._ray = ray
        self._actor = ray.remote(_actor_class())
        return {"ray": ray.__version__, "python": "%d.%d.%d" % sys.version_info[:3]}

    def do_nodes(self) -> list[dict[str, Any]]:
        """Return every current or former node of the cluster: its resources, the free ones, and how it ended."""
        free = self._free()
        return [node_facts(node, free.get(node.get("NodeID", ""))) for node in self._ray.nodes()]

    def do_waiting(self) -> list[dict[str, Any]]:
        """Return placement groups that wait for resources: their name, strategy and bundles."""
        from ray.util.placement_group import placement_group_table

        table = placement_group_table()
        waiting = [group for group in table.values() if group.get("state") in ("PENDING", "RESCHEDULING")]
        return [
            {
                "name": str(group.get("name") or group.get("placement_group_id", ""))[:80],
                "strategy": str(group.get("strategy", "")),
                "bundles": [
                    {str(key): float(amount) for key, amount in bundle.items()}
                    for bundle in (group.get("bundles") or {}).values()
                ],
            }
            for group in waiting
        ]

    def _free(self) -> dict[str, dict[str, float]]:
        try:
            from ray._private.state import available_resources_per_node
        except ImportError:
            return {}
        try:
            found: dict[str, dict[str, float]] = available_resources_per_node()
        except Exception:
            return {}
        return found

    def start(self, node: str, arguments: list[str], deadline_s: float) -> Stream:
        """Start the worker's own Python with `arguments` on the node of this id."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        until = time.monotonic() + deadline_s
        pinned = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._actor.options(
            num_cpus=0, num_gpus=0, max_concurrency=4, max_restarts=0, scheduling_strategy=pinned
        ).remote(arguments)
        try:
            self._ray.get(actor.pid.remote(), timeout=max(0.1, until - time.monotonic()))
        except BaseException as error:
            try:
                self._ray.kill(actor, no_restart=True)
            except Exception:
                pass
            raise explain_start_failure(error, deadline_s)
        return RayStream(self._ray, actor)

    def close(self) -> None:
        """Stop being a driver, which ends all our actors."""
        if self._ray is not None:
            self._ray.shutdown()


class RayStream(Stream):
    """The program below one actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._closed = False
        self._problem = ""

    def read(self) -> bytes:
        """Return the next bytes of its standard output; empty at the end, or when the actor is lost."""
        while not self._closed:
            try:
                data = self._ray.get(self._actor.read.remote(_READ_S), timeout=_READ_S + _LOST_S)
            except Exception as error:
                self._problem = self._problem or last_line(str(error))
                return b""
            if data is None:
                return b""
            if data:
                return bytes(data)
        return b""

    def write(self, data: bytes) -> None:
        self._ray.get(self._actor.write.remote(data), timeout=_LOST_S)

    def exit_state(self) -> tuple[int | None, str]:
        """Return the process's exit code, and its standard error."""
        if self._problem:
            return None, self._problem
        try:
            code, words = self._ray.get(self._actor.exit_state.remote(), timeout=3.0)
        except Exception as error:
            return None, last_line(str(error))
        return code, words

    def close(self) -> None:
        """Close the process's standard input, wait briefly for it to exit, and end the actor."""
        if self._closed:
            return
        self._closed = True
        try:
            self._ray.get(self._actor.close.remote(), timeout=3.0)
        except BaseException:
            pass
        try:
            self._ray.kill(self._actor, no_restart=True)
        except BaseException:
            pass


def _actor_class() -> Any:
    """Return the actor's class, created here so that it is sent by value: nothing of ours is installed on nodes."""

    class PreflightAgent:
        def __init__(self, arguments: list[str]) -> None:
            import collections
            import os
            import subprocess
            import sys
            import threading

            environment = dict(os.environ)
            # Ray sets these for a worker without CPUs and GPUs; ranks will have the node's own.
            raylet: dict[str, str] = {}
            try:
                with open(f"/proc/{os.getppid()}/environ", "rb") as file:
                    pairs = file.read().decode("utf-8", "replace").split("\0")
                raylet = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            except OSError:
                pass
            for name in (
                *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"),
                *("ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "OMP_NUM_THREADS"),
            ):
                environment.pop(name, None)
                if name in raylet:
                    environment[name] = raylet[name]
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            self._words: Any = collections.deque(maxlen=64)
            threading.Thread(target=self._listen, daemon=True).start()

        def _listen(self) -> None:
            assert self._process.stderr is not None
            for line in self._process.stderr:
                self._words.append(line[:500])

        def pid(self) -> int:
            return self._process.pid

        def read(self, wait_s: float) -> bytes | None:
            import os
            import select

            assert self._process.stdout is not None
            fd = self._process.stdout.fileno()
            ready, _, _ = select.select([fd], [], [], wait_s)
            return (os.read(fd, 1 << 18) or None) if ready else b""

        def write(self, data: bytes) -> None:
            assert self._process.stdin is not None
            self._process.stdin.write(data)
            self._process.stdin.flush()

        def exit_state(self) -> tuple[int | None, str]:
            import subprocess

            try:
                code: int | None = self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                code = None
            return code, b"".join(self._words).decode("utf-8", "replace").strip()

        def close(self) -> None:
            import subprocess

            try:
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(timeout=2.0)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                self._process.terminate()

    return PreflightAgent


def node_facts(node: dict[str, Any], free: dict[str, float] | None) -> dict[str, Any]:
    """Return the relevant data of a node from `ray.nodes()`."""
    resources = {str(key): float(amount) for key, amount in (node.get("Resources") or {}).items()}
    reason = node.get("DeathReason")
    return {
        "id": str(node.get("NodeID", "")),
        "host": str(node.get("NodeManagerHostname") or node.get("NodeName") or ""),
        "address": str(node.get("NodeManagerAddress") or ""),
        "alive": bool(node.get("Alive")),
        "head": "node:__internal_head__" in resources
        or (node.get("Labels") or {}).get("ray.io/node-group") == "headgroup",
        # Ray announces each node, and its kind of accelerator, as a resource of its own.
        "has": {key: amount for key, amount in resources.items() if not key.startswith("node:")},
        "free": None if free is None else {str(k): float(v) for k, v in free.items() if not str(k).startswith("node:")},
        "labels": {str(key): str(value) for key, value in (node.get("Labels") or {}).items()},
        "death": str(node.get("DeathReasonMessage") or ""),
        "unwanted": reason is None or _death_name(reason) in _UNINTENDED_DEATHS,
    }


def _death_name(reason: Any) -> str:
    names = {0: "UNSPECIFIED", 1: "EXPECTED_TERMINATION", 2: "UNEXPECTED_TERMINATION", 3: "AUTOSCALER_DRAIN_PREEMPTED"}
    return names.get(reason, "") if isinstance(reason, int) else str(reason)


def _check_reachable(address: str) -> None:
    """Raise BridgeError if nothing listens at the address, because Ray itself retries for long."""
    host, colon, port = address.replace("ray://", "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except socket.gaierror as error:
        raise BridgeError("unreachable", f"{host}, the address of the Ray cluster, does not resolve here: {error}")
    except OSError as error:
        kind = "timeout" if isinstance(error, socket.timeout) else "unreachable"
        words = "nothing responds at %s, the address of the Ray cluster: %s; does `ray status --address %s` work here?"
        raise BridgeError(kind, words % (address, error.strerror or error, address))


def explain_connection_failure(address: str, message: str, version: str) -> BridgeError:
    """Explain why this process could not become a driver, from Ray's message."""
    if "Version mismatch" in message or re.search(r"version.*mismatch", message, re.IGNORECASE):
        versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", message)
        if len(versions) >= 2:
            (ray, python), (own_ray, own_python) = versions[:2]
            own = f"{sys.executable} has Ray {own_ray} with Python {own_python}"
            words = f"the cluster runs Ray {ray} with Python {python}, but {own}"
        else:
            words = f"the version of Ray or Python here differs from the cluster's: {last_line(message)}"
        return BridgeError(
            "blocked", words + "; name the same Python as the cluster's: --on-option interpreter=PATH", message[-4000:]
        )
    if re.search(r"InvalidAuthToken|Authentication|UNAUTHENTICATED|auth(?:entication)? token", message):
        words = f"the cluster at {address} rejects the token, or requires one: {last_line(message)}"
        return BridgeError("denied", words + "; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN", message[-4000:])
    if "Could not find any running Ray instance" in message or "ConnectionError" in message:
        words = f"no Ray cluster was found at {address}: {last_line(message)}"
        remedy = f"does `ray status --address {address}` work here?"
        return BridgeError("unreachable", f"{words}; {remedy}", message[-4000:])
    if re.search(r"Can't find a `?node_ip_address|no raylet|This node has an IP address", message):
        words = (
            f"drivers must run on a node of the Ray cluster at {address}, but this machine is not one; use Ray "
            "Client instead: --on-option address=ray://HEAD:10001"
        )
        return BridgeError("unreachable", words, message[-4000:])
    return BridgeError(
        "unreachable", f"Ray {version} could not connect to {address}: {last_line(message)}", message[-4000:]
    )


def explain_start_failure(error: BaseException, deadline_s: float) -> BridgeError:
    """Explain why an actor did not start, from Ray's exception."""
    name, message = type(error).__name__, str(error)
    if name == "GetTimeoutError":
        words = (
            "Ray started no worker there within %.0f s; the node may be overloaded or have no room for another worker"
        )
        return BridgeError("timeout", words % deadline_s, message[-2000:])
    if name in ("ActorUnschedulableError", "TaskUnschedulableError") or "node affinity" in message.lower():
        return BridgeError("unreachable", f"Ray no longer knows the node: {last_line(message)}", message[-2000:])
    if name == "RuntimeEnvSetupError":
        return BridgeError(
            "crashed", f"the runtime environment could not be created there: {last_line(message)}", message[-2000:]
        )
    return BridgeError("unreachable", f"Ray could not start a worker there: {last_line(message)}", message[-2000:])


def last_line(message: str) -> str:
    """Return the last non-empty line."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no message"

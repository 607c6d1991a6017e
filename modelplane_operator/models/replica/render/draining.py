"""Render the preStop hook of an engine's pod, which lasts while there are requests to finish.

A kubelet runs a hook to its end, or to the end of the grace period of the pod's first deletion: a shorter one of a
second deletion is ignored (kubernetes/kubernetes#83916). So the hook itself must detect that nothing runs any
longer. A hook that cannot run ends at once, and the engine with it. So this hook is for pods that certainly have a
shell; in other pods the hook sleeps.
"""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api.model_replica import PlacedEngine, PlacedMember
from modelplane_operator.models.replica.render.arguments import shell_of

LEADER: Final = "$LWS_LEADER_ADDRESS"
"""Variable with the address of a gang's leader."""
QUIET_SECONDS: Final = 15
"""Seconds without a running request after which a pod ends: gateways and pickers need seconds to exclude a pod."""

# Without Python, sleep for the full drain time. A shell that is a container's first process passes no signal to the
# engine, and the kubelet would wait out the grace period. So the hook ends the container's other processes.
_HOOK: Final = """\
python3 -c "$@" || exec sleep "$4"
kill -s TERM -- -1 && sleep 5 && kill -s KILL -- -1
"""
"""Shell script of the hook."""
_WAIT: Final = """\
import http.client, os, re, socket, sys, time
host, port, seconds, path, quiet = os.path.expandvars(sys.argv[1]), *sys.argv[2:]
LOAD = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs"
    r"|llamacpp:requests_(?:processing|deferred))(?:{.*})? (\\S+)", re.M)
def ask():
    server = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        server.request("GET", path)
        return server.getresponse().read().decode(errors="replace")
    finally:
        server.close()
failures, busy = 0, time.monotonic()
end = busy + float(seconds)
while failures < 3 and time.monotonic() < min(end, busy + float(quiet)):
    try:
        loads = [float(load) for load in LOAD.findall(ask())]
    except socket.timeout:  # an engine may be busy; a leader that is silent for half a minute has no node any more
        failures, loads = (0 if host == "127.0.0.1" else failures + 0.5), []
    except OSError:
        failures, loads = failures + 1, []
    except Exception:
        loads = []
    else:
        failures = 0
    if not loads or any(loads):
        busy = time.monotonic()
    time.sleep(1)
"""
"""Python program that waits until the engine has no running requests or does not answer."""


def drain_by_load(engine: PlacedEngine, member: PlacedMember, port: int, seconds: int) -> Manifest | None:
    """Return a preStop hook that ends when nothing is left to drain; None if no shell can run it.

    A serving pod waits until no request has run for QUIET_SECONDS, and a follower while its leader answers. Both
    end at once when there is no answer. If the load cannot be read, requests have `seconds` to finish. The same
    applies to an engine with several serving ranks, because no rank may end before the others.
    """
    shell = shell_of(member.template.spec.containers[0]) if member.template.spec else None
    if shell is None:
        return None
    by_load = member.role != "Worker" and engine.ranks == 1 and not engine.workers_serve
    host, path = LEADER if member.role == "Worker" else "127.0.0.1", "/metrics" if by_load else "/health"
    command = [shell, "-c", _HOOK, "drain", _WAIT, host, str(port), str(seconds), path, str(QUIET_SECONDS)]
    return {"preStop": {"exec": {"command": command}}}

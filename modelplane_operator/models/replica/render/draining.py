"""How a pod of an engine ends: its preStop hook lasts as long as there is something to drain.

A kubelet carries a hook on to its end, or to the end of the grace period that the pod's first deletion gave: a shorter
one of a second deletion changes nothing (kubernetes/kubernetes#83916). So it is for the hook itself to find out that
nothing runs any more. A hook that cannot run ends at once, and the engine with it: this one is for pods that have a
shell for certain, and in others the hook sleeps.
"""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api.model_replica import PlacedEngine, PlacedMember
from modelplane_operator.models.replica.render.arguments import shell_of

LEADER: Final = "$LWS_LEADER_ADDRESS"
QUIET_SECONDS: Final = 15
"""How long no request must have been running: gateways and pickers take seconds to leave a pod out."""

# Without Python, as long as it may take. A shell that is the first process of a container passes no signal on to the
# engine, and the kubelet would wait out the grace period: what runs beside it is ended here.
_HOOK: Final = """\
python3 -c "$@" || exec sleep "$4"
kill -s TERM -- -1 && sleep 5 && kill -s KILL -- -1
"""
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


def drain_by_load(engine: PlacedEngine, member: PlacedMember, port: int, seconds: int) -> Manifest | None:
    """The preStop hook of a member that ends when nothing is left to drain; None where no shell can run it.

    A pod that serves waits until no request has been running for a while, and a follower for as long as its leader
    answers; either ends at once when there is no answer any more. Of an engine whose load nobody can read, `seconds`
    is what its answers have; and of one with several ranks that serve, as no rank may end before the others.
    """
    shell = shell_of(member.template.spec.containers[0]) if member.template.spec else None
    if shell is None:
        return None
    by_load = member.role != "Worker" and engine.ranks == 1 and not engine.workers_serve
    host, path = LEADER if member.role == "Worker" else "127.0.0.1", "/metrics" if by_load else "/health"
    words = [shell, "-c", _HOOK, "drain", _WAIT, host, str(port), str(seconds), path, str(QUIET_SECONDS)]
    return {"preStop": {"exec": {"command": words}}}

"""The engine simulator: one process answers for every model server of one workload cluster.

    python -m localfleet.engine --kubeconfig FILE [--cluster NAME] [--listen 0.0.0.0 ...] [--port 8000 --port 8001 ...]
                                [--probe-scale 0.1] [--default NAME=VALUE ...]

**How the fleet starts it.** Inside the cluster's network namespace, after `ip route add local POD_CIDR dev lo`, once
per workload cluster. It prints one line that begins with `ready` when it has listed the pods and listens; it waits
for an API server that is not there yet, and outlives one that stops. SIGTERM ends it. kwok must be given
`stages.yaml` of this package (`STAGES`) with `--config`, and every other pod stage of the fleet must leave engine
pods alone:

    matchExpressions:
    - {key: '.spec.containers.[].name', operator: NotIn, values: [engine]}

**Which pods.** Those with a container named `engine`. kwok gives them an address and the phase Running, *not ready*;
from there this process is their kubelet: it runs the startup, readiness and liveness probes of the pod spec against
the simulated engine, and writes `Ready`, `ContainersReady` and `containerStatuses` of the pod. Probe delays, probe
periods and crash back-off are multiplied by `--probe-scale`, so that `initialDelaySeconds: 30` need not cost 30
seconds.

**Which ports.** The ports that the `engine` container declares (or its probe's, or 8000 on a pod that carries
`modelplane.ai/serving`); a `pd-sidecar` container listens on its own port and forwards to the engine's, after asking
the prefill pod that `x-prefiller-host-port` names. A port that no `--port` named is opened when the first pod
declares it. A connection to an address without a living engine is closed before a byte is read.

**What it speaks.** `GET /health /v1/models /metrics /version /ping`, `POST /v1/chat/completions /v1/completions
/v1/messages /v1/messages/count_tokens`; streams are server-sent events, a token at a time. Every answer carries
`x-localfleet-pod` (namespace/name), `x-localfleet-cluster`, `x-localfleet-model` and, through a sidecar,
`x-localfleet-prefill`, and, to a request with a body, that body's sha256 as `x-localfleet-body`; the text itself,
a few sentences, quotes the prompt and names the pod, the cluster and the model, and is the same for the same request.
With vLLM's image, a request with tools gets 400 unless the arguments have `--tool-call-parser` and
`--enable-auto-tool-choice`.

**Settings** come from the pod's annotations (`localfleet.dev/NAME`, read again whenever they change) or from the engine
container's arguments (`--localfleet-NAME=VALUE`); `--default` sets them for all pods. `--help` lists them.

**Termination.** With `deletionTimestamp` set the pod is not ready at once. After its preStop hook the engine refuses
new connections; requests in flight, streams too, run on until the grace period ends. Then the pod object goes. A hook
that sleeps is waited for; any other command runs, in a process namespace of its own and with the pod's address for
127.0.0.1. As with a kubelet, the grace period of a second deletion changes nothing.

**A failed node.** Annotate the Node with `localfleet.dev/node-down: "true"`: connections to its pods are accepted and
stay silent, streams stop in the middle, no pod status is written, deleted pods stay Terminating. Remove it and all goes
on.
"""

from importlib.resources import files

STAGES = str(files(__name__) / "stages.yaml")

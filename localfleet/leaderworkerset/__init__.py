"""A stand-in for the LeaderWorkerSet controller, for clusters whose pods are simulated.

    python -m localfleet.leaderworkerset --kubeconfig FILE [--no-install-crd]

**How the fleet starts it.** Anywhere that reaches the workload cluster's API server, once per workload cluster. It
applies its CRD (`CRD`, our own minimal schema; `--no-install-crd` leaves that to you), prints one line that begins
with `ready` and keeps every `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet at what its spec says, until SIGTERM. It
waits for an API server that is not there yet, and outlives one that stops.

**What it makes.** Pod `SET-GROUP` leads group GROUP, pods `SET-GROUP-1` .. follow it: hostname = pod name, subdomain
= the set's name, the labels
`leaderworkerset.sigs.k8s.io/{name,group-index,worker-index,group-key,template-revision-hash}`, the annotations
`.../size` and (workers) `.../leader-name`, and in front of every container's env `LWS_LEADER_ADDRESS`,
`LWS_GROUP_SIZE` and `LWS_WORKER_INDEX`. Leaders are owned by the set, workers by their leader, so that the garbage
collector takes them. A headless Service of the set's name is made if that name is free.

**What it keeps.** A group is recreated as a whole when one of its pods restarts, fails or disappears
(`RecreateGroupOnPodRestart`, the default), when its size or its template changed (from the highest index down, at
most `maxUnavailable` groups at a time, none below `partition`); groups beyond `replicas` go. `startupPolicy:
LeaderReady` holds workers back until their leader is ready. Status: `replicas`, `readyReplicas`, `updatedReplicas`,
`hpaPodSelector` and the conditions `Available`, `Progressing` and `UpdateInProgress`. The scale subresource works. At
rest it writes nothing.

**What it does not do.** `maxSurge`, subgroups, exclusive topology and volumeClaimTemplates are accepted and have no
effect. Old templates are not kept: a group below `partition` that has to be recreated comes from the new one.
"""

from importlib.resources import files

CRD = str(files(__name__) / "crd.yaml")

"""What a cluster gets from its cloud and its nodes, and kwok does not give: one process per cluster, in its network.

    python -m localfleet.cloud --kubeconfig FILE --name NAME --balancers CIDR --api HOST:PORT --folder FOLDER

- `balancer.py`: LoadBalancer Services get an address from the pool, and connections to it reach their pods.
- `volumes.py`: PersistentVolumeClaims of our StorageClasses get a volume (of nothing), in any access mode.
- `names.py`: a name server for Services.
- `readiness.py`: pods that the node controller has called unready are ready again when their node answers.
- `pods.py`: pods whose image is a data plane (Traefik, Envoy Gateway, Envoy) run for real, each in a network namespace
  of its own with the pod's address.
"""

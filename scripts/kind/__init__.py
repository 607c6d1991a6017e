"""A hub and two workload clusters of real nodes, by kind, with the operator installed by its chart: docs/kind.md."""

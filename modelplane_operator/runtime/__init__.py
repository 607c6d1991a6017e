"""How a reconcile runs, whatever the kind: queue, workers, loop, steps, leadership, health."""

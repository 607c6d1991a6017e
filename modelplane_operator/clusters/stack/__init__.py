"""ServingStack: the software of one workload cluster."""

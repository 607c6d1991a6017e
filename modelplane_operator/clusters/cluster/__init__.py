"""InferenceCluster: one workload cluster."""

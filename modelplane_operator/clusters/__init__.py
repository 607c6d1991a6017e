"""InferenceCluster, ServingStack and InferenceClass."""

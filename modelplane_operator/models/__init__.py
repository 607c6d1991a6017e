"""ModelDeployments, ModelReplicas, ModelCaches and LLMInferences."""

"""ModelReplica: one instance of a model on one cluster."""

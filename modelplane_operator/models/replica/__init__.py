"""ModelReplica: one copy of a model on its cluster."""

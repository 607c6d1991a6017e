"""The kinds behind an InferenceCluster that a cloud makes: one per cloud, and one finalizer per lifecycle."""

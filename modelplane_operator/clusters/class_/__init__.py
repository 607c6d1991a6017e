"""InferenceClass: one kind of hardware."""

"""InferenceClusters, their ServingStacks and InferenceClasses."""

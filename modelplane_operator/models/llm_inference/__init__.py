"""LLMInference: one model by its name."""

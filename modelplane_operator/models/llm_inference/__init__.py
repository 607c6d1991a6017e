"""LLMInference: serve one model by its name."""

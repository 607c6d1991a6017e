"""InferenceGateway: the gateway of the hub."""

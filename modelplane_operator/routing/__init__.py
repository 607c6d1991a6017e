"""ModelEndpoint, ModelService and InferenceGateway."""

"""How requests reach models: ModelEndpoints, ModelServices and InferenceGateways."""

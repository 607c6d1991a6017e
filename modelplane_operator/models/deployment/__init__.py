"""ModelDeployment: its replicas and endpoints."""

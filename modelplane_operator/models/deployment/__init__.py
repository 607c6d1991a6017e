"""ModelDeployment: place replicas, roll out changes and publish endpoints."""

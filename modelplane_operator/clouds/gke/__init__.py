"""GKECluster: a cluster on Google Kubernetes Engine."""

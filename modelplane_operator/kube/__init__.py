"""Plain values about any object of Kubernetes: the ground floor, which knows none of our kinds."""

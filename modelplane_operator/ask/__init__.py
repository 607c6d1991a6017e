"""Answer questions about placements, and review objects in the admission webhook."""

"""Google Cloud for tests: GKE over gRPC, all else over HTTP, by the types of Google's own libraries."""

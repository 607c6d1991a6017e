"""The operator on clusters of real nodes, by kind: `make e2e-kind` (docs/kind.md).

The clusters are talked to through kubernetes-asyncio, a client that nobody here wrote, and models through the client
libraries that people use. These are not in the environment of other tests, where this folder is not looked at.
"""

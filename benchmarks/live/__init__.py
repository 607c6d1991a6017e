"""Benchmarks of the whole operator: its own process, real API servers, and a fleet played at those."""

"""Decide where replicas run. All functions are pure: values in, placements and reasons out."""

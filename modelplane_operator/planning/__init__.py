"""Decisions: what was seen goes in, what shall be written comes out. Nothing here opens a socket or reads a clock."""

"""The command `modelplane`."""

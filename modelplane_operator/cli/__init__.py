"""The command `modelplane`: what the hub knows, for people, on their own machines and with their own credentials."""

"""Everything that opens a socket: one API server, the fleet of them, what their watches have seen, and the lease."""

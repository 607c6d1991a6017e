"""One API server: its connections, requests and errors."""

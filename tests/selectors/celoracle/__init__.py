"""The API server's own selector library as a program, and what it has said about the committed selectors."""

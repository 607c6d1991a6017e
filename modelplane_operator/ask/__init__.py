"""Answers to questions: the admission webhook, and what the command prints."""

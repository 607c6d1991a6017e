"""Answer questions about the fleet with the scheduler itself: why a model is as it is, and what a change would do."""

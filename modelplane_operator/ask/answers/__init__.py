"""What people ask of the fleet, answered by the scheduler itself: why a model is as it is, and what would happen if."""

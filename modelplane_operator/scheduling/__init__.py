"""Values in, placements and reasons out: nothing here touches the world."""

"""The edge: keys are queued, and for each the same loop runs: observe, plan, act, report."""

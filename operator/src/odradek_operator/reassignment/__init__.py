"""Reassignment: replicas planned, moved in batches, and rolled back where that is needed."""

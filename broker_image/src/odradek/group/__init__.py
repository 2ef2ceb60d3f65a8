"""Consumer groups that this broker coordinates: membership, generations, committed offsets."""

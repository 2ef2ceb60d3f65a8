"""Consumer groups that brokers coordinate: membership, generations, committed offsets."""

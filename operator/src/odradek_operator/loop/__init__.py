"""What runs all the time: work queues, the reconciler, resync and Leases."""

"""The Prometheus metrics of the broker: what it counts, and what is read of its parts."""

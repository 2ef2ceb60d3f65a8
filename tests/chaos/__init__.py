"""Faults against real brokers under load, and a checker of the promises to clients."""

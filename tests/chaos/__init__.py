"""Faults against real brokers under load, and a checker of what the clients were promised."""

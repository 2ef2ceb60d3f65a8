"""Runs the broker's real code in virtual time, with a seeded schedule of faults. See `run`."""

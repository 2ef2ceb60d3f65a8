"""Seeded schedules of faults for the broker's real code, in virtual time. See `run`."""

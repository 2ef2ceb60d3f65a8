"""Transactions under faults: their load, the history of it, and what that must not show."""

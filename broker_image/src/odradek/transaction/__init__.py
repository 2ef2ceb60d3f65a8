"""Transactions that this broker coordinates: producers, their partitions, and how each ends."""

"""Replication: partition roles, in-sync sets, appends, fetches and copying from leaders."""

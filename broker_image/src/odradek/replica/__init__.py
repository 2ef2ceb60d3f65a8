"""The replicas of a broker: roles, in-sync sets, appends, fetches and copying from leaders."""

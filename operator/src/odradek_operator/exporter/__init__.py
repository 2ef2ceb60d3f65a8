"""Lag of every consumer group of one cluster, without a resource."""

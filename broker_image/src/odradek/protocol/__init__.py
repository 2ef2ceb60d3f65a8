"""Kafka's wire protocol: what the messages are and how they become bytes, without any I/O."""

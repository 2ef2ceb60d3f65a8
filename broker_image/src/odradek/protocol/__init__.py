"""Kafka's wire protocol: messages and their codec, without any I/O."""

"""KafkaCluster: its brokers' objects, settings and rolling restarts."""

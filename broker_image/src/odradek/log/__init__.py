"""The log: partitions on disk, byte for byte as Apache Kafka 2.8 keeps them."""

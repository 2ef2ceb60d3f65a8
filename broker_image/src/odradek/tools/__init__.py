"""Command-line tools: clients of brokers and ZooKeeper."""

"""The report of `make bench`: this broker beside Apache Kafka, and beside the machine's limits."""

"""Runs KafkaCluster, Topics and ConsumerGroups on one machine, without Kubernetes."""

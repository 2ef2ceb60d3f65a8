"""The controller: elects the leader of each partition and sends state changes to the brokers."""

"""Commands for people: they ask brokers and ZooKeeper, and run in no broker."""

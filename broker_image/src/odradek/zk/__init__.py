"""ZooKeeper: paths and payloads of all znodes, and the session that reads and writes them."""

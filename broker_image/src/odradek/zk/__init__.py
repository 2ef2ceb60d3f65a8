"""ZooKeeper: what every znode holds, and the session that reads and writes them."""

"""User: credentials, ACLs and quotas in ZooKeeper, and a Secret for its clients."""

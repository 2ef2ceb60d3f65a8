"""A coordinator's topic with one partition, for coordinators without ZooKeeper."""


class OnePartition:
    """In place of a `PartitionCount`."""

    def __call__(self) -> int:
        return 1

    async def learn(self) -> None:
        """Do nothing: the number is known."""

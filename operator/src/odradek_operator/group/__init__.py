"""ConsumerGroup: lag, offset resets, and the driver of its Spark job."""

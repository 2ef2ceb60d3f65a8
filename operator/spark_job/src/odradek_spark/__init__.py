"""The driver of a consumer group's Spark job, which the operator runs as one pod."""

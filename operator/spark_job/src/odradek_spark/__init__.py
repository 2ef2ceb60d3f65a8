"""The driver program of a consumer group's Spark job, run by the operator as one pod."""

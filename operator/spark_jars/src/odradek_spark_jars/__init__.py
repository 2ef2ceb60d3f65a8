"""The jars of Spark's connectors for Kafka and Avro, which pyspark lacks: a release has them."""

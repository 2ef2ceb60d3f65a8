"""SQL for people: `odradek sql`, a shell over topics in Spark's local mode."""

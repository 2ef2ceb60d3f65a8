"""The Odradek broker, and what the operator and the Spark job share with it."""

"""The Odradek broker, and the modules that the operator and the Spark job share with it."""

"""The controller: one broker decides who leads each partition and tells the others."""

"""Test records with the fields of Confluent's quickstarts: `odradek datagen`."""

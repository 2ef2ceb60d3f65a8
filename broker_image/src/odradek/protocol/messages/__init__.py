"""Declarations of the messages, one file per family of APIs."""

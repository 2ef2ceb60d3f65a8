"""Declarations of the messages, one family a file; the codec turns them into bytes."""

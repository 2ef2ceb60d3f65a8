"""Networking: frames in, ordered answers out, with limits on the memory that a peer can take."""

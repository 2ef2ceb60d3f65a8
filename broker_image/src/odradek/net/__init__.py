"""Sockets: frames in, ordered answers out, and bounds on the memory that a peer can take."""

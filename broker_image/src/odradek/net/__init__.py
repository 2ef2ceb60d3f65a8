"""Sockets: frames in, ordered answers out, with bounds on everything a peer can make us hold."""

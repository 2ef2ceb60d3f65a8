"""Who a peer is, what it may do, and how its connection is kept private."""

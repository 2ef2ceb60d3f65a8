"""What coordinators have in common: which ids are theirs, and the loading of their state."""

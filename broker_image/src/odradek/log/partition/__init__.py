"""One partition: its segments, offsets, leader epochs, producers, recovery and cleaning."""

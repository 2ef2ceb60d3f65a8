"""Records and record batches as bytes: reading, checking, making and compressing them."""

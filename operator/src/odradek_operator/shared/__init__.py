"""Values and clients that several kinds use."""

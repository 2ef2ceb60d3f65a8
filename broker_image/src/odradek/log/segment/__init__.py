"""One segment: its log file, its two indexes, and the file access under them."""

"""The console: pages that show a cluster in a browser, read-only unless told otherwise."""

"""One broker as a process: builds the broker's parts, and starts and stops them in order."""

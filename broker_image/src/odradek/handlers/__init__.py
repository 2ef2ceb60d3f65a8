"""What a broker answers, one API family a module."""

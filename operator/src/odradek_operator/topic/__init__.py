"""Topic: planned as a pure function, and carried out in transactions."""

"""The error of a statement that failed."""


class SqlError(Exception):
    """One line for the user."""

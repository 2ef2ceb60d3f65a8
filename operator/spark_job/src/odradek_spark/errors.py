"""The error that ends a job."""


class JobError(RuntimeError):
    """The job ended without success; the message is one line for the user."""

"""The errors that end a job, beside `config.JobConfigError` for a spec that is invalid."""


class JobError(RuntimeError):
    """The job ended without success, and may be tried again; the message is one line for users."""


class JobStalledError(RuntimeError):
    """Only a change of the resource can help the job; it is not started again before.

    `reason` is for the operator, in CamelCase: the conditions have it if the operator knows it
    (STALLED_REASONS in its group/driver.py). The text is `REASON: MESSAGE`, one line for users.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class FencedError(JobError):
    """A later driver of the group has started, so this one must write nothing more."""

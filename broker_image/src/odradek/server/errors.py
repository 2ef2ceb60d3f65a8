"""Why a start ends before the broker serves."""


class StartError(Exception):
    """The broker cannot start; the text is one line for the person who started it."""


class StoppedEarlyError(Exception):
    """The broker was told to stop before it was registered."""

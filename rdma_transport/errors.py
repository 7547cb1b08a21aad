"""The exceptions that commands report as one line on stderr."""


class BadInputError(ValueError):
    """The input is invalid. The message says what is wrong and how to fix it."""

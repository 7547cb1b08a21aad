"""The exception that this package raises."""


class AnalysisError(ValueError):
    """The input is invalid. The message says what is wrong and how to fix it."""

"""The one error that callers of this package have to expect."""


class AnalysisError(ValueError):
    """Something given to the analyzer cannot be used; the message says what, and what to do."""

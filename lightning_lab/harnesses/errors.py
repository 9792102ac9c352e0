"""What can be wrong with a harness."""


class HarnessError(ValueError):
    """A harness is put together wrongly, or its program is not there; the message says how to do it right."""

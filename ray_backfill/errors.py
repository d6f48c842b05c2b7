"""The one error type a user can cause and mend."""


class InputError(ValueError):
    """Something the user gave is wrong; the message says what, and what to do.

    Jobs print it as one line and exit with code 2. Everything else is a bug and keeps its traceback.
    """

"""The errors a user can cause, kept apart from the errors we can cause."""


class UserInputError(ValueError):
    """A configuration, data set, checkpoint or prompt that cannot be used.

    The message is one line that names the value received and what would be valid. The command line prints it and ends
    with exit code 2; every other exception keeps its traceback.
    """

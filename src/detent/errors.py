"""What can go wrong, as sentences. Each error knows the exit code of the command line."""


class DetentError(Exception):
    """An error whose text is one clear sentence for the user."""

    exit_code = 2


class BadInput(DetentError):
    """The user asked for something that cannot be done; the text says what would be right."""


class NeedsImport(BadInput):
    """A file names something in a module that only the user may import."""

    def __init__(self, text: str, module: str) -> None:
        super().__init__(text)
        self.module = module


class EnvironmentFailed(DetentError):
    """An environment raised, hung or returned values that are not finite."""


class Diverged(DetentError):
    """Training produced a loss or a parameter that is not finite. A result, not a crash."""

    exit_code = 3

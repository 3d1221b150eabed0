"""Errors a user can act on. Every message names the thing, what was found, what was expected, the remedy."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_RESUMABLE = 75
EXIT_INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: the run saves and ends as after Ctrl-C, but says that it can be resumed."""


class FlowRLError(Exception):
    """A failure with a remedy. The command line prints its message without a traceback.

    ``exit_code`` is what the process ends with (see docs/cli.md).
    """

    exit_code: int = EXIT_FAILED


class UsageError(FlowRLError):
    """The request itself is wrong: an unknown name, a missing file, a bad value."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A configuration key or value is wrong. The message names the nearest valid key."""


class MissingExtra(UsageError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed; "
            f"install the extra: pip install 'flowrl[{extra}]'"
        )


class SpecMismatch(FlowRLError):
    """Two specs that must agree do not. The message lists every difference by name."""

    exit_code = EXIT_USAGE


class DataError(FlowRLError):
    """Data is malformed: a wrong shape, a non-finite value (episode and step are named)."""


class ReplayError(FlowRLError):
    """A replay or stream is missing, damaged or already owned by another writer."""


class CheckpointError(FlowRLError):
    """A checkpoint or policy directory is missing, incomplete or fails its hashes."""


class ResourceError(FlowRLError):
    """The machine has too little of something for what was asked: the numbers are in the message."""


class NonFiniteLoss(FlowRLError):
    """A loss or gradient became NaN or infinite. The last good checkpoint is kept."""


class Stopped(FlowRLError):
    """The system asked the run to stop (SIGTERM); everything was saved and it can be resumed."""

    exit_code = EXIT_RESUMABLE


class Interrupted(FlowRLError):
    """The user interrupted the run; everything was saved first."""

    exit_code = EXIT_INTERRUPTED

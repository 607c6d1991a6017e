"""What can go wrong with a fleet.

FleetError                  the message says what failed, why, and how to go on
├── BuildFailedError        a tool could not be made
├── ArchiveError            an archive of built tools is not what it should be
├── ProcessDiedError        a program of the fleet ended by itself
└── DeadlineError           what was awaited did not come in time
"""


class FleetError(Exception):
    """Something the person at the keyboard can act on."""


class BuildFailedError(FleetError):
    """A tool could not be made; the message says why, where the whole log is and how to go on."""


class ArchiveError(FleetError):
    """An archive of built tools cannot be used; the message says why."""


class ProcessDiedError(FleetError):
    """A program ended that should have gone on; the message carries the end of its log."""


class DeadlineError(FleetError):
    """Something did not come in time; the message says what was awaited."""

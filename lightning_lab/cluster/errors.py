"""What can go wrong with a submitted run: each says what happened, what it means and what to do."""

from __future__ import annotations


class JobError(RuntimeError):
    """A submitted run could not be done as asked."""


class HeadUnreachableError(JobError):
    """The cluster's head node does not answer."""


class WorkersMissingError(JobError):
    """The cluster does not have the workers that were asked for."""


class JobDiedError(JobError):
    """The job's process ended before its run did."""


class UnknownRunError(JobError):
    """No job of this run is known here."""


class ProgramError(JobError):
    """The cell cannot be sent: it is no Python, or trains nothing."""

"""What can go wrong with a store. Every error says what happened, what it means and what to do."""

from __future__ import annotations


class StoreError(RuntimeError):
    """Something could not be stored or read. Base of every error of this room."""


class BadRecordError(StoreError):
    """One record cannot be written as it is; everything around it was written."""


class TerminalStateError(StoreError):
    """A rollout that has ended was put again with other contents."""


class UnknownIdError(StoreError, LookupError):
    """No run, rollout or call with this id is in the store."""


class StoreClosedError(StoreError):
    """The store was closed before this call."""


class ReadOnlyError(StoreError):
    """The store was opened for reading."""


class StoreBusyError(StoreError):
    """Another writer has this store open."""


class DiskError(StoreError):
    """The disk refused a write. Nothing more is accepted; what was acknowledged before is safe."""


class NotARunError(StoreError):
    """The file is no Lightning Lab run."""


class SchemaVersionError(StoreError):
    """The file was written with another schema version."""


class MissingManifestError(StoreError):
    """The file has the tables of a run but no manifest: an unfinished or foreign export."""

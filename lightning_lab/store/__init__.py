"""Durable memory of a lab: the event log and its tables, run folders, exported runs."""

import logging

from lightning_lab.store.errors import StoreError
from lightning_lab.store.export import export_run, open_run
from lightning_lab.store.redaction import COMMON, SECRETS, Redaction
from lightning_lab.store.run_folder import RunFolder
from lightning_lab.store.store import Store

__all__ = ["COMMON", "SECRETS", "Redaction", "RunFolder", "Store", "StoreError", "export_run", "open_run"]

# Without a handler Python would print warnings of the writer thread into whatever cell runs.
logging.getLogger(__name__).addHandler(logging.NullHandler())

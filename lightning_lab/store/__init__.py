"""Durable memory of a lab: the event log and its tables, run folders, exported runs."""

from lightning_lab.store.errors import StoreError
from lightning_lab.store.store import Store

__all__ = ["Store", "StoreError"]

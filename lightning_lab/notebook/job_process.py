"""``python -m lightning_lab.notebook.job_process RUNS RUN_ID``: the process of a submitted run."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_lab.cluster import JobFolder
from lightning_lab.notebook.job import Job

if __name__ == "__main__":
    sys.exit(Job(JobFolder.open(Path(sys.argv[1]), sys.argv[2])).run())

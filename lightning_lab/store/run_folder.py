"""`RunFolder`: one run on disk.

::

    runs/01J…/                      named by a ULID: sorts by time
      manifest.json                 what ran, on what, with which code
      store.sqlite                  the `Store` of the run
      code/                         sources of harness and grader, every version that ran
      checkpoints/
      steps/000037.json             what step 37 consumed, and in which micro-batches
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ulid import ULID

from lightning_lab.records import SCHEMA_VERSION
from lightning_lab.store import encoding as enc
from lightning_lab.store.atomic import write_atomically
from lightning_lab.store.errors import MissingManifestError, SchemaVersionError, StoreError
from lightning_lab.store.provenance import git_state, hardware, own_version, package_lock

MANIFEST = "manifest.json"


class Code(Protocol):
    """A program with a source: `HarnessInfo`, a harness or a grader."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def source(self) -> str: ...


class RunFolder:
    """One folder of ``runs/``. Every file in it is replaced atomically. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run_id = path.name
        self.store_path = self.path / "store.sqlite"
        self.checkpoints = self.path / "checkpoints"
        self.code = self.path / "code"
        self.steps = self.path / "steps"
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        settings: Mapping[str, Any],
        harness: Code | None = None,
        grader: Code | None = None,
        seeds: Mapping[str, int] | None = None,
        hashes: Mapping[str, str] | None = None,
        repository: Path | None = None,
        run_id: str | None = None,
    ) -> RunFolder:
        """Make ``root/<run_id>/`` with its manifest.

        ``hashes``: of ``dataset``, ``model``, ``tokenizer`` and ``template``, as the caller computed them.
        ``repository``: where the researcher's code lies; the working directory by default.
        Raises `StoreError` if the folder exists or cannot be made.
        """
        folder = cls(Path(root) / (run_id or str(ULID())))
        try:
            for path in (folder.path, folder.checkpoints, folder.code, folder.steps):
                path.mkdir(parents=True, exist_ok=path is not folder.path)
        except OSError as error:
            raise StoreError(
                f"Cannot make the run folder {folder.path}: {error.strerror}. Choose another folder."
            ) from error
        folder.write_manifest(
            schema_version=SCHEMA_VERSION,
            run_id=folder.run_id,
            created_at=time.time(),
            lightning_lab=own_version(),
            harness=folder._described("harness", harness),
            grader=folder._described("grader", grader),
            seeds=seeds or {},
            hashes=hashes or {},
            settings=settings,
            packages=package_lock(),
            git=git_state(repository or Path.cwd()),
            hardware=hardware(),
        )
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing folder. Raises `MissingManifestError` or `SchemaVersionError`."""
        folder = cls(Path(path))
        version = folder.manifest().get("schema_version")
        if version != SCHEMA_VERSION:
            raise SchemaVersionError(
                f"{folder.path} has schema version {version}, this Lightning Lab reads {SCHEMA_VERSION}. "
                "Open it with the version of lightning-lab that wrote it."
            )
        return folder

    def manifest(self) -> dict[str, Any]:
        """Raises `MissingManifestError`."""
        try:
            manifest: dict[str, Any] = enc.load_json((self.path / MANIFEST).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise MissingManifestError(
                f"{self.path} has no readable {MANIFEST}, so it is no run folder: {error}."
            ) from error
        return manifest

    def write_manifest(self, **changes: Any) -> None:
        """Set these top-level keys, keep the others."""
        with self._lock:
            known = self.manifest() if (self.path / MANIFEST).exists() else {}
            self._write_json(self.path / MANIFEST, {**known, **changes})

    def keep_code(self, role: str, program: Code) -> Path:
        """Write a program's source to ``code/`` under role, name and version. ``role``: ``harness`` or ``grader``."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{role}-{program.name}-{program.version[:12]}")
        path = self.code / f"{name[:100]}.py"
        write_atomically(path, program.source.encode("utf-8", "surrogatepass"))
        return path

    def record_step(
        self, step: int, rows: Sequence[Mapping[str, Any]], *, micro_batches: Sequence[Sequence[int]] | None = None
    ) -> Path:
        """Keep what a step consumed: one row per sample (``rollout_id``, ``sample_index``, weight …) and the plan.

        ``micro_batches``: indices into ``rows``. A step that is done again replaces the old file.
        """
        path = self.steps / f"{step:06d}.json"
        plan = {"schema_version": SCHEMA_VERSION, "step": step, "rows": rows, "micro_batches": micro_batches}
        self._write_json(path, plan)
        return path

    def step(self, step: int) -> dict[str, Any]:
        """What `record_step` kept. Raises `StoreError`."""
        path = self.steps / f"{step:06d}.json"
        try:
            plan: dict[str, Any] = enc.load_json(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(f"Step {step} of {self.path} has no readable plan: {error}.") from error
        return plan

    def _described(self, role: str, program: Code | None) -> dict[str, Any] | None:
        if program is None:
            return None
        path = self.keep_code(role, program)
        return {
            "name": program.name,
            "version": program.version,
            "source": program.source,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "file": str(path.relative_to(self.path)),
        }

    def _write_json(self, path: Path, value: Any) -> None:
        text = json.dumps(enc.load_json(enc.dump_json(value)), indent=1)
        write_atomically(path, text.encode("ascii"))

"""Jobs of a Ray cluster, by the HTTP interface of its head node (Ray Jobs, port 8265)."""

from __future__ import annotations

import json
import os
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_lab.cluster.errors import HeadUnreachableError, JobError, UnknownRunError
from lightning_lab.cluster.folder import MODULE, JobFolder
from lightning_lab.cluster.jobs import JobState, JobStatus, death, own_words
from lightning_lab.policy.engines.versions import RAY

DASHBOARD_PORT = 8265
_TIMEOUT_S = 20.0
_STATES: Mapping[str, JobState] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_PASSED = ("HF_HUB_OFFLINE", "HF_HOME", "XDG_CACHE_HOME", "LIGHTNING_LAB_ENGINES", "LIGHTNING_LAB_HARNESSES")
"""Variables of the kernel that a job gets too."""
_SET = {
    "RAY_JOB_STOP_WAIT_TIME_S": "60",  # a job that is ended closes its lab first; Ray's own 3 s do not suffice
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # a learner in the job gives its ranks some of the same variables
}


class RayJobs:
    """``python``: the interpreter on the cluster's machines that has Lightning Lab."""

    def __init__(self, address: str, *, python: str = "python") -> None:
        """Asks nothing yet."""
        self.address = address
        self._python = python
        self._base = dashboard_url(address)

    def check(self) -> None:
        """Raises `HeadUnreachableError`, or `JobError` where the cluster's Ray is not supported."""
        version = str(self._ask("GET", "/api/version").get("ray_version", ""))
        if not RAY.holds(version):
            raise JobError(
                f"The cluster at {self._base} runs Ray {version}; the lab works with {RAY} ({RAY.why}). Start it with "
                f"Ray {RAY.installed}, which `lightning-lab engines install verl` brings."
            )

    def nodes(self) -> Sequence[Mapping[str, float]]:
        found = self._ask("GET", "/api/v0/nodes?detail=1")
        rows = found["data"]["result"]["result"]
        return [row["resources_total"] for row in rows if row.get("state") == "ALIVE"]

    def submit(self, job: JobFolder) -> None:
        environment = _SET | {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._ask(
            "POST",
            "/api/jobs/",
            {
                "submission_id": job.run_id,
                "entrypoint": shlex.join([self._python, "-m", MODULE, str(job.runs), job.run_id]),
                "runtime_env": {"env_vars": environment},
                "metadata": {"lightning-lab": job.run_id},
            },
        )

    def status(self, job: JobFolder) -> JobStatus:
        told = own_words(job)
        if told is not None:
            return told
        details = self._ask("GET", f"/api/jobs/{job.run_id}")
        state, said = _STATES.get(str(details.get("status")), "running"), str(details.get("message") or "")
        code = details.get("driver_exit_code")
        return JobStatus(state, f"{death(code)} {said}".strip() if code else said)

    def log(self, job: JobFolder) -> str:
        return str(self._ask("GET", f"/api/jobs/{job.run_id}/logs").get("logs") or "")

    def end(self, job: JobFolder) -> None:
        self._ask("POST", f"/api/jobs/{job.run_id}/stop")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_token()}
        request = urllib.request.Request(self._base + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                found: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()[-1000:]
            if error.code == 404 and path.startswith("/api/jobs/"):
                raise UnknownRunError(f"The Ray cluster at {self._base} does not know this job. {said}") from error
            if error.code in (401, 403):
                raise JobError(
                    f"The Ray cluster at {self._base} wants a token. Set RAY_AUTH_TOKEN, or put it into "
                    "~/.ray/auth_token."
                ) from error
            raise JobError(f"The Ray cluster at {self._base} refused ({error.code}): {said}") from error
        except (OSError, ValueError) as error:
            raise HeadUnreachableError(
                f"The Ray cluster's head does not answer at {self._base} ({error}). Start it (`ray start --head "
                "--dashboard-host=0.0.0.0`, from ray[default]), open the port, or give the dashboard's own address: "
                f'lab.connect("http://head:{DASHBOARD_PORT}").'
            ) from error
        return found


def dashboard_url(address: str) -> str:
    """``ray://head:10001`` → ``http://head:8265``: the client's port is not the dashboard's. Others stay."""
    if not address.startswith("ray://"):
        return address.rstrip("/")
    host = urllib.parse.urlsplit(address).hostname
    if not host:
        raise JobError(f"{address!r} names no host. Use ray://head, or http://head:{DASHBOARD_PORT}.")
    return f"http://{f'[{host}]' if ':' in host else host}:{DASHBOARD_PORT}"


def _token() -> dict[str, str]:
    """Ray's own places of its token, where the cluster asks for one."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    token = os.environ.get("RAY_AUTH_TOKEN") or (path.read_text(encoding="utf-8").strip() if path.is_file() else "")
    return {"Authorization": f"Bearer {token}"} if token else {}

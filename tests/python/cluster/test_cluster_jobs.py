"""Jobs of a Ray cluster by its HTTP interface, as a stand-in serves it; and jobs of this machine that go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lightning_lab.cluster import (
    HeadUnreachableError,
    JobError,
    JobFolder,
    UnknownRunError,
    Workers,
    WorkersMissingError,
    connect,
    jobs_at,
)
from lightning_lab.cluster.local_jobs import LocalJobs, _kinds
from lightning_lab.cluster.ray_jobs import dashboard_url

A100S = {"CPU": 96.0, "GPU": 8.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-80G": 1.0}


class Head(ThreadingHTTPServer):
    """The routes of Ray's job server that the lab uses, answered as Ray 2.60 does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.token, self.version = "", "2.60.0"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Head

    def do_GET(self) -> None:
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            return self._answer(401, "Unauthorized")
        if self.path == "/api/version":
            return self._answer(200, {"version": "4", "ray_version": self.server.version})
        if self.path.startswith("/api/v0/nodes"):
            rows = [{"state": "ALIVE", "resources_total": A100S}, {"state": "DEAD", "resources_total": A100S}]
            return self._answer(200, {"result": True, "data": {"result": {"result": rows}}})
        job = self.server.jobs.get(self.path.split("/")[3])
        if job is None:
            return self._answer(404, "Job does not exist")
        return self._answer(200, {"logs": "said"} if self.path.endswith("/logs") else job)

    def do_POST(self) -> None:
        if self.path.endswith("/stop"):
            self.server.jobs[self.path.split("/")[3]]["status"] = "STOPPED"
            return self._answer(200, {"stopped": True})
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["submission_id"] in self.server.jobs:
            return self._answer(400, "Job with this submission_id already exists")
        self.server.asked.append(body)
        self.server.jobs[body["submission_id"]] = {"status": "PENDING", "message": "queued"}
        return self._answer(200, {"submission_id": body["submission_id"]})

    def _answer(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Head]:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    server = Head()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def job_in(folder: Path, run_id: str = "01A", **asked: Any) -> JobFolder:
    return JobFolder.create(folder, run_id, "print(1)\n", **{"cluster": "local", "cwd": str(folder), **asked})


def test_a_job_is_submitted_followed_and_ended_over_http(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    jobs = connect(head.url)
    job = job_in(tmp_path)
    jobs.submit(job)
    [asked] = head.asked
    assert asked["submission_id"] == "01A" and f"job_process {tmp_path} 01A" in asked["entrypoint"]
    assert asked["runtime_env"]["env_vars"]["HF_HUB_OFFLINE"] == "1"
    for theirs, ours in (
        ("PENDING", "queued"),
        ("RUNNING", "running"),
        ("SUCCEEDED", "succeeded"),
        ("FAILED", "failed"),
    ):
        head.jobs["01A"]["status"] = theirs
        assert jobs.status(job).state == ours
    assert jobs.log(job) == "said"
    jobs.end(job)
    assert jobs.status(job).state == "stopped" and jobs.status(job).ended
    with pytest.raises(JobError, match=r"refused \(400\): Job with this submission_id already exists"):
        jobs.submit(job)


def test_a_cluster_without_the_gpus_is_refused_with_what_it_has(head: Head) -> None:
    nodes = connect(head.url).nodes()
    assert nodes == [A100S]
    Workers(gpus=8, kind="A100").check(nodes)
    Workers(gpus=8, kind="A100-80G").check(nodes)
    with pytest.raises(
        WorkersMissingError, match=r"16 A100 GPUs are asked for, and the cluster has 8 GPUs \(A100, A100-80G\)"
    ):
        Workers(gpus=16, kind="A100").check(nodes)
    with pytest.raises(WorkersMissingError, match="1 H100 GPUs"):
        Workers(gpus=1, kind="H100").check(nodes)
    with pytest.raises(WorkersMissingError, match="2 GPUs are asked for, and the cluster has 0 GPUs on 1 machines"):
        Workers(gpus=2).check([{"CPU": 2.0}])
    with pytest.raises(ValueError, match="no kind 'B9000'"):
        Workers(gpus=1, kind="B9000")


def test_a_head_that_does_not_answer_is_named(head: Head) -> None:
    url = head.url
    jobs = connect(url)
    head.server_close()
    head.shutdown()
    with pytest.raises(HeadUnreachableError, match=rf"does not answer at {url}.*ray start --head"):
        jobs.nodes()
    with pytest.raises(HeadUnreachableError):
        connect(url)


def test_a_cluster_with_a_token_gets_it_and_says_where_it_belongs(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.token = "secret"
    with pytest.raises(JobError, match="Set RAY_AUTH_TOKEN"):
        connect(head.url)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert len(connect(head.url).nodes()) == 1


def test_a_cluster_whose_ray_is_too_old_is_refused(head: Head) -> None:
    head.version = "1.13.0"
    with pytest.raises(JobError, match=r"runs Ray 1\.13\.0; the lab works with >=2\.41,<3.*engines install verl"):
        connect(head.url)


def test_a_job_that_was_killed_on_the_cluster_says_so(head: Head, tmp_path: Path) -> None:
    jobs, job = connect(head.url), job_in(tmp_path)
    jobs.submit(job)
    head.jobs["01A"] |= {"status": "FAILED", "message": "last available logs: step 3", "driver_exit_code": 137}
    status = jobs.status(job)
    assert status.state == "failed" and "killed (SIGKILL)" in status.said and "out of memory" in status.said
    assert status.said.endswith("last available logs: step 3")


def test_how_a_job_ended_is_known_when_its_cluster_is_gone(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    jobs = jobs_at("http://127.0.0.1:9")
    with pytest.raises(HeadUnreachableError):
        jobs.status(job)
    job.write("ended", {"exit_code": 0, "error": ""})
    assert jobs.status(job).state == "succeeded"


def test_a_job_may_close_its_lab_before_ray_kills_it(head: Head, tmp_path: Path) -> None:
    connect(head.url).submit(job_in(tmp_path))
    variables = head.asked[0]["runtime_env"]["env_vars"]
    assert int(variables["RAY_JOB_STOP_WAIT_TIME_S"]) > 30
    assert variables["RAY_OVERRIDE_JOB_RUNTIME_ENV"] == "1"


def test_the_memory_of_gpus_by_what_nodes_tell() -> None:
    assert Workers(gpus=8, kind="H100").memory_gib([]) == 79.0
    assert Workers(gpus=8, kind="A100").memory_gib([A100S]) == 79.0
    assert Workers(gpus=8, kind="A100").memory_gib([{"GPU": 8.0, "accelerator_type:A100": 1.0}]) == 39.0
    assert Workers(gpus=8).memory_gib([{"GPU": 8.0, "accelerator_type:T4": 1.0}, A100S]) == 15.0
    assert Workers(gpus=8).memory_gib([{"GPU": 8.0}]) is None


def test_a_job_that_the_cluster_has_forgotten_is_unknown(head: Head, tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError, match="does not know this job"):
        connect(head.url).status(job_in(tmp_path))


def test_addresses() -> None:
    assert dashboard_url("ray://head:10001") == "http://head:8265"
    assert dashboard_url("ray://[::1]") == "http://[::1]:8265"
    assert dashboard_url("http://head:9000/") == "http://head:9000"
    with pytest.raises(JobError, match="no cluster 'slurm'"):
        connect("slurm")


def test_a_run_that_nobody_submitted_is_unknown_and_the_known_ones_are_told(tmp_path: Path) -> None:
    job_in(tmp_path, "01KNOWN")
    with pytest.raises(UnknownRunError, match=r"has no submitted run '01X'. Submitted runs are 01KNOWN"):
        JobFolder.open(tmp_path, "01X")


def test_a_local_job_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.write("process", {"pid": 2**22 + 1, "began": "7"})
    job.log.write_text("MemoryError")
    status = LocalJobs().status(job)
    assert status.state == "failed" and "Its process is gone. MemoryError" in status.said
    job.write("ended", {"exit_code": 1, "error": "ValueError: no"})
    assert (LocalJobs().status(job).state, LocalJobs().status(job).said) == ("failed", "ValueError: no")


def test_gpus_are_named_as_ray_names_them() -> None:
    assert _kinds("NVIDIA A100-SXM4-80GB, 81920") == ["A100", "A100-80G"]
    assert _kinds("NVIDIA H100 80GB HBM3, 81559") == ["H100"]
    assert _kinds("Tesla T4, 15360") == ["T4"]
    assert LocalJobs().nodes()[0]["CPU"] >= 1

"""Agents as pods, over real HTTP: every end of a pod, every fault of the API server."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from controller_cluster import ApiServer, ended, running, waiting

from lightning_lab.controller.kubernetes.manifests import job_name
from lightning_lab.controller.kubernetes.settings import Cluster, ClusterError
from lightning_lab.harnesses import Harness
from lightning_lab.records import Call, Message, Outcome, RolloutState, Sampling

AGENT = Harness.kubernetes("registry/agent:1", ["python", "/app/agent.py", "{prompt}"], timeout_s=20)


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def pods(api, make_bench, tmp_path):
    """A bench whose agents are pods."""

    def make(**settings):
        plain = {"gateway_url": "http://10.0.0.5:8090", "namespace": "agents", "lab_id": "01LAB", "rate": 200.0}
        return make_bench(cluster=Cluster(**{**plain, "kubeconfig": api.kubeconfig(tmp_path), **settings}))

    return make


def run(bench, harness=AGENT):
    """Without a grader: no process is needed."""
    return bench.controller.submit(bench.rollout(harness), harness, None).result(60)


def run_heard(bench, harness=AGENT, **changes):
    """Run a rollout whose agent has called the gateway."""
    rollout = bench.rollout(harness, **changes)
    nothing = np.zeros(0)
    bench.store.put_call(
        Call(
            id=f"c-{rollout.id}",
            rollout_id=rollout.id,
            attempt=rollout.attempt,
            ordinal=0,
            request_id="q",
            protocol="chat",
            model="m",
            messages=(),
            tools=(),
            reply=Message(role="assistant", content=""),
            prompt_ids=nothing.astype(np.int32),
            sampled_ids=nothing.astype(np.int32),
            logprobs=nothing.astype(np.float32),
            versions=nothing.astype(np.int32),
            finish_reason="stop",
            asked={},
            used=Sampling(),
            arrived_at=1.0,
            held_s=0.0,
            started_at=1.0,
            finished_at=1.0,
            delivered=True,
        )
    ).result(9)
    return bench.controller.submit(rollout, harness, None).result(60)


def pod_that(*statuses):
    return lambda pod: list(statuses)


def test_a_pod_runs_is_graded_and_leaves_nothing(api, pods):
    bench = pods()
    rollout = bench.run(AGENT)
    assert (rollout.state, rollout.outcome, rollout.reward) == (RolloutState.SUCCEEDED, Outcome.COMPLETED, 1.0)
    assert (rollout.output, rollout.stdout, rollout.exit_code) == ("42", "42", 0)
    assert rollout.created_at <= rollout.started_at <= rollout.agent_started_at <= rollout.finished_at
    assert not any(api.objects[kind] for kind in ("jobs", "pods", "secrets"))
    assert bench.credentials.open == {}
    bench.close()
    assert api.objects["networkpolicies"] == {}


def test_the_key_travels_in_a_secret_that_the_job_owns(api, pods):
    bench = pods()
    rollout = bench.rollout(AGENT)
    api.logs = f"my key: key-of-{rollout.id}"
    final = bench.controller.submit(rollout, AGENT, None).result(60)
    assert final.stdout.startswith("my key: ")
    assert f"key-of-{rollout.id}" not in str(final)
    sent = dict(api.bodies)
    assert f"key-of-{rollout.id}" not in str(sent["jobs"])
    assert sent["secrets"]["stringData"]["OPENAI_API_KEY"] == f"key-of-{rollout.id}"
    assert sent["secrets"]["stringData"]["OPENAI_BASE_URL"] == f"http://10.0.0.5:8090/rollout/{rollout.id}/v1"
    (owner,) = sent["secrets"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", f"uid-of-{job_name(rollout.id, rollout.attempt)}")


def test_what_the_agent_wrote_as_its_last_word_is_its_output(api, pods):
    api.behave = pod_that(running(), ended(message="42"))
    api.logs = "thinking aloud"
    rollout = run(pods())
    assert (rollout.output, rollout.stdout) == ("42", "thinking aloud")


EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
PREEMPTED = {
    **ended(137, "Error"),
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Preempted"}],
}


@pytest.mark.parametrize(
    ("statuses", "outcome", "words"),
    [
        ([waiting("ErrImagePull", "not found")], Outcome.IMAGE_PULL, "not found"),
        pytest.param(
            [waiting("ContainerCreating"), waiting("ImagePullBackOff", "Back-off")],
            Outcome.IMAGE_PULL,
            "Back-off",
            id="llm_sandbox_146",
        ),
        ([waiting("InvalidImageName")], Outcome.IMAGE_PULL, "agent:1"),
        ([running(), ended(137, "OOMKilled")], Outcome.OOM, "memory limit"),
        ([running(), EVICTED], Outcome.EVICTED, "low on resource"),
        ([running(), PREEMPTED], Outcome.EVICTED, "Preempted"),
        ([running(), {"phase": "Failed", "reason": "DeadlineExceeded"}], Outcome.TIMEOUT, "DeadlineExceeded"),
        ([{"phase": "Failed", "reason": "NodeAffinity", "message": "no"}], Outcome.LOST, "NodeAffinity"),
        ([running(), ended(137, "Error", "the end of its log")], Outcome.AGENT_ERROR, "the end of its log"),
    ],
)
def test_every_end_of_a_pod_is_an_outcome_of_its_own(api, pods, statuses, outcome, words):
    api.behave = pod_that(*statuses)
    rollout = run_heard(pods())
    assert rollout.outcome is outcome
    assert words in rollout.error
    assert rollout.reward == (0.0 if outcome in (Outcome.AGENT_ERROR, Outcome.TIMEOUT) else None)
    assert api.objects["jobs"] == {}


def test_a_pod_that_fits_nowhere_says_why(api, pods):
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    api.behave = pod_that({"phase": "Pending", "conditions": [condition]})
    rollout = run(pods(start_limit_s=0.3))
    assert (rollout.outcome, rollout.reward) == (Outcome.BOOT_TIMEOUT, None)
    assert f"Unschedulable: {message}" in rollout.error
    assert api.objects["jobs"] == {}


def test_the_agent_is_ended_when_its_time_is_up(api, pods):
    api.behave = pod_that(running())
    rollout = run_heard(pods(), Harness.kubernetes("agent:1", timeout_s=0.3))
    assert (rollout.outcome, rollout.reward) == (Outcome.TIMEOUT, 0.0)
    assert api.objects["pods"] == {}


def test_the_jobs_own_deadline_is_a_timeout(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    rollout = bench.rollout(AGENT)
    future = bench.controller.submit(rollout, AGENT, None)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    name = job_name(rollout.id, 1)
    api.remove("pods", name)
    api.say_job(name, "Failed", "DeadlineExceeded")
    assert "activeDeadlineSeconds" in future.result(60).error


def test_a_job_that_vanished_is_lost(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    rollout = bench.rollout(AGENT)
    future = bench.controller.submit(rollout, AGENT, None)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    api.remove("pods", job_name(rollout.id, 1))
    api.remove("jobs", job_name(rollout.id, 1))
    final = future.result(60)
    assert (final.outcome, final.reward) == (Outcome.LOST, None)
    assert "vanished" in final.error


def test_a_rollout_can_be_cancelled(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    rollout = bench.rollout(AGENT)
    future = bench.controller.submit(rollout, AGENT, None)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    bench.controller.cancel(rollout.id)
    assert future.result(60).outcome is Outcome.CANCELLED
    assert not api.objects["jobs"] and not api.objects["pods"]


def test_an_api_server_that_restarts_loses_no_rollout(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    rollout = bench.rollout(AGENT)
    future = bench.controller.submit(rollout, AGENT, None)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    api.stop()
    api.say(job_name(rollout.id, 1), ended())  # while nobody can see it
    api.restart()
    assert future.result(60).outcome is Outcome.COMPLETED


def test_a_watch_that_is_too_old_begins_anew(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    rollout = bench.rollout(AGENT)
    future = bench.controller.submit(rollout, AGENT, None)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    before = len(api.requests)
    api.compact()
    bench.wait_until(lambda: sum("watch=" in path for _, path, _ in api.requests[before:]) >= 2)
    api.say(job_name(rollout.id, 1), ended())
    assert future.result(60).outcome is Outcome.COMPLETED


def test_what_a_watch_kept_to_itself_is_found_by_listing(api, pods):
    api.drop_events = True
    assert run(pods(relist_s=1.0)).outcome is Outcome.COMPLETED


def test_a_job_whose_answer_was_lost_is_made_once(api, pods):
    api.lose_answers = 1
    rollout = run(pods())
    assert rollout.outcome is Outcome.COMPLETED
    assert [kind for kind, _ in api.bodies].count("jobs") == 2  # the second was refused with 409, and found to be ours


def test_a_job_of_somebody_else_is_left_alone(api, pods):
    bench = pods()
    rollout = bench.rollout(AGENT)
    name = job_name(rollout.id, 1)
    api.objects["jobs"][name] = {"metadata": {"name": name, "labels": {}, "resourceVersion": "1"}}
    final = bench.controller.submit(rollout, AGENT, None).result(60)
    assert final.outcome is Outcome.LOST
    assert "not this lab's" in final.error
    assert name in api.objects["jobs"]


def test_a_busy_api_server_is_asked_again_when_it_says(api, pods):
    bench = pods()
    api.faults["POST", "jobs"] = [(429, {"Retry-After": "1"}), (503, {})]
    assert run(bench).outcome is Outcome.COMPLETED
    first, second, *_ = [at for method, path, at in api.requests if method == "POST" and path.endswith("/jobs")]
    assert second - first >= 1


def test_creations_keep_to_the_rate(api, pods):
    bench = pods(rate=10.0)
    futures = [bench.controller.submit(bench.rollout(AGENT), AGENT, None) for _ in range(4)]
    assert all(future.result(60).outcome is Outcome.COMPLETED for future in futures)
    times = [at for method, path, at in api.requests if method == "POST" and "networkpolicies" not in path]
    assert len(times) == 8
    assert times[-1] - times[0] >= 0.6


def test_a_namespace_without_rights_is_named_at_once(api, pods):
    api.faults["GET", "pods"] = [(403, {})]
    with pytest.raises(ClusterError, match=r"403.*docs/kubernetes\.md"):
        pods()


def test_a_right_that_is_missing_later_loses_the_rollout_with_words(api, pods):
    bench = pods()
    api.faults["POST", "secrets"] = [(403, {})]
    rollout = run(bench)
    assert (rollout.outcome, rollout.reward) == (Outcome.LOST, None)
    assert "403" in rollout.error
    assert api.objects["jobs"] == {}


def test_a_pod_kept_from_the_gateway_earns_no_zero(api, pods):
    api.behave = pod_that(running(), ended(1, "Error", "Connection refused"))
    rollout = run(pods())
    assert (rollout.outcome, rollout.reward) == (Outcome.LOST, None)
    assert re.search(r"http://10\.0\.0\.5:8090.*can pods reach", rollout.error)
    assert "Connection refused" in rollout.error


def test_once_a_pod_reached_the_gateway_a_silent_failure_is_the_agents(api, pods):
    bench = pods()
    run_heard(bench)
    api.behave = pod_that(running(), ended(1, "Error"))
    assert run(bench).outcome is Outcome.AGENT_ERROR


def test_jobs_of_a_kernel_that_died_are_removed(api, pods):
    left = {"name": "ll-old-1-x", "labels": {"lightning-lab/lab": "01lab"}, "resourceVersion": "1"}
    api.objects["jobs"]["ll-old-1-x"] = {"metadata": left}
    other = {"name": "other", "labels": {"lightning-lab/lab": "01other"}, "resourceVersion": "1"}
    api.objects["jobs"]["other"] = {"metadata": other}
    bench = pods()
    bench.wait_until(lambda: [*api.objects["jobs"]] == ["other"])


def test_closing_removes_what_runs(api, pods):
    api.behave = pod_that(running())
    bench = pods()
    future = bench.controller.submit(bench.rollout(AGENT), AGENT, None)
    bench.wait_until(lambda: api.objects["pods"])
    bench.controller.close()
    assert future.result(1).outcome is Outcome.CANCELLED
    assert not any(api.objects.values())


def test_a_log_that_cannot_be_read_is_no_wrong_answer(api, pods):
    api.logs = None
    rollout = run(pods())
    assert (rollout.outcome, rollout.reward) == (Outcome.LOST, None)
    assert "log could not be read" in rollout.error


def test_the_role_in_the_documentation_allows_what_is_asked_and_no_more(api, pods):
    """One rollout through every kind of request: a lost answer, a policy that is there already."""
    api.objects["networkpolicies"]["lightning-lab-01lab"] = {"metadata": {"resourceVersion": "1", "labels": {}}}
    api.lose_answers = 1
    bench = pods()
    assert run(bench).outcome is Outcome.COMPLETED
    bench.close()
    assert {_right(method, path) for method, path, _ in api.requests} == set(_granted())


def _right(method, path):
    """The resource and the verb that the API server would ask its rules for."""
    plain, _, query = path.partition("?")
    kind, *rest = plain.partition("/namespaces/agents/")[2].split("/")
    if method == "GET":
        verb = "watch" if "watch=" in query else "get" if rest else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}[method]
    return "/".join([kind, *rest[1:]]), verb


def _granted():
    text = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    documents = yaml.safe_load_all(text.split("```yaml\n")[-1].split("```")[0])
    (role,) = [each for each in documents if each["kind"] == "Role"]
    return [(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]]

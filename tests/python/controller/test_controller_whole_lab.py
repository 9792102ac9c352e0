"""From the notebook's first line to an update of the model, with agents as pods, and with agents in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from controller_kubelet import GATEWAY_ADDRESS, Cluster
from test_controller_sandbox import in_sandbox

import lightning_lab as ll
from lightning_lab.harnesses import Harness

sys.path.append(str(Path(__file__).parents[1] / "notebook"))
from notebook_standin import StandInPolicy

ASK = """
import json, os, sys, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
said = {"model": "any", "messages": [{"role": "user", "content": sys.argv[1]}], "max_tokens": 8}
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
request = urllib.request.Request(url + "/chat/completions", json.dumps(said).encode(), headers)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.load(open("task.json"))["prompt"] == sys.argv[1], len(answer))
"""
POD = Harness.kubernetes("agent:1", [sys.executable, "-c", ASK, "{prompt}"], timeout_s=60)
TASKS = ll.tasks.reasoning_gym("chain_sum", 4, seed=0)


@pytest.fixture
def read_its_task():
    """Made here, it travels by value: its process need not import this file."""

    @ll.grader
    def read_its_task(task, result):
        return float(result.output.startswith("True"))

    return read_its_task


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def lab(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    lab = ll.Lab(StandInPolicy(), runs=folder / "runs", concurrency=4)
    port = lab.url.rpartition(":")[2]
    lab.kubernetes(
        namespace="agents",
        gateway_url=f"http://{GATEWAY_ADDRESS}:{port}",
        kubeconfig=cluster.kubeconfig(folder),
        concurrency=4,
    )
    yield lab
    lab.close()
    assert not any(cluster.objects.values())


async def test_one_rollout_in_a_pod(lab, cluster, read_its_task):
    rollout = await lab.run(POD, TASKS[0], read_its_task)
    assert (rollout.record.outcome, rollout.record.reward) == ("completed", 1.0)
    (call,) = lab.store.calls(rollout.id)
    assert call.delivered and len(call.sampled_ids) == len(call.logprobs) > 0
    assert len(cluster.ran) == 1


async def test_a_step_of_training_on_pods(lab, cluster, read_its_task):
    before = len(cluster.ran)
    run = ll.Trainer(lab, POD, TASKS, read_its_task, n=2, groups=2).fit(steps=1)
    await run
    rollouts = lab.store.rollouts(run.id)
    assert [rollout.outcome for rollout in rollouts] == ["completed"] * 4
    assert len(cluster.ran) - before == 4
    (step,) = lab.store.steps(run.id)
    assert len(step.rollout_ids) == 4
    assert not cluster.objects["jobs"] and not cluster.objects["secrets"]


async def test_an_image_that_is_not_there_ends_at_once(lab, read_its_task):
    missing = Harness.kubernetes("agent:2", ["true"])
    with pytest.raises(Exception, match=r"image_pull[\s\S]*agent:2 not found"):
        await lab.run(missing, TASKS[0], read_its_task)


@in_sandbox
async def test_a_real_agent_library_in_a_sandbox(tmp_path):
    of_the_user = str(Path.home() / ".bashrc")

    def are_there(*paths):
        from pathlib import Path

        return [Path(path).exists() for path in paths]

    @ll.harness
    async def solver(task):
        from agents import Agent, Runner

        said = (await Runner.run(Agent(name="solver"), task.prompt)).final_output
        return [type(said).__name__, *are_there(of_the_user, "/etc/shadow")]

    lab = ll.Lab(StandInPolicy(), runs=tmp_path / "runs", concurrency=1, isolation="bwrap")
    try:
        assert "unsandboxed" not in repr(lab)
        assert not lab.on_show.now().fields()["unsandboxed"]
        rollout = await lab.run(solver, TASKS[0])
        assert rollout.record.output == '["str", false, false]'
        assert len(lab.store.calls(rollout.id)) >= 1
    finally:
        lab.close()

"""What the tests of a session share: one vLLM server, SmolLM2-135M in float32, with the embedded learner beside it; and
two ranks of verl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines_server import CONTEXT, MODEL, TAKES_WEIGHTS, socket_of

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.policy.vllm import VllmPolicy


@pytest.fixture(scope="session")
def learner() -> DetachedTorchLearner:
    return DetachedTorchLearner(MODEL)


@pytest.fixture(scope="session")
def policy(learner: DetachedTorchLearner) -> Iterator[VllmPolicy]:
    """The server parses by vLLM's own tool parser, so it also renders. One thread: two wait for each other where agents
    and learner want the cores too. It takes weights as files, and such as are sent."""
    made = VllmPolicy(
        MODEL,
        learner=learner,
        context_length=CONTEXT,
        tool_parser="hermes",
        threads=1,
        kv_bytes=2**29,
        options=TAKES_WEIGHTS,
    )
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(params=["files", "nccl"])
def publisher(
    request: pytest.FixtureRequest, policy: VllmPolicy, learner: DetachedTorchLearner
) -> Iterator[VllmPolicy]:
    """Who publishes to the session's server: its own policy as files; or one that is attached to it, which sends, and
    whose replies are told while they are sampled, because the lab parses them."""
    if request.param == "files":
        yield policy
        return
    url = socket_of(policy)
    attached = VllmPolicy(MODEL, learner=learner, url=url, context_length=CONTEXT, transfer="nccl")
    try:
        attached.start()
        yield attached
    finally:
        attached.close()


@pytest.fixture
def lab(policy: VllmPolicy, tmp_path: Path) -> Iterator[Lab]:
    """A lab's gateway in front of the session's server; the server outlives the lab."""
    attached = VllmPolicy(MODEL, url=socket_of(policy), context_length=CONTEXT, tool_parser="hermes")
    made = ll.Lab(policy=attached, runs=tmp_path / "runs", sampling=ll.Sampling(temperature=1.0, max_tokens=48, seed=7))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def ranks() -> Iterator[VerlLearner]:
    """Of the quickstart's model. Who teaches them loads them back as they were; who breaks them comes last."""
    made = VerlLearner("quickstart", ranks=2, collocated=True)
    yield made
    made.close()

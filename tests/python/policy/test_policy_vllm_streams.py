"""A reply that a server tells while it samples it: told on as it comes, and as exact as one that comes whole."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from policy_vllm_recorded import GENERATED, Recorded, Writer

from lightning_lab.gateway import Gateway
from lightning_lab.policy.base import Chunk, PolicyError, TellsEarly
from lightning_lab.policy.vllm import VllmPolicy, connection
from lightning_lab.policy.vllm.connection import Connection
from lightning_lab.policy.vllm.errors import EngineDiedError, PublishError
from lightning_lab.records import Sampling
from lightning_lab.store import Store

GENERATE = "/inference/v1/generate"


def event(ids: Sequence[int], finish_reason: str | None = None, spans: Any = None) -> dict[str, Any]:
    """As a real server (0.32.0) tells it: the versions with the last."""
    content = [{"token_id": token, "logprob": -token / 1000, "rank": 1, "top_logprobs": []} for token in ids]
    choice = {
        "index": 0,
        "logprobs": {"content": content},
        "finish_reason": finish_reason,
        "stop_reason": None,
        "token_ids": list(ids),
        "weight_versions": spans,
    }
    return {"request_id": "generate-tokens-1", "choices": [choice]}


def spans(*ends: tuple[str, int]) -> list[dict[str, Any]]:
    starts = [0, *(end for _, end in ends)]
    return [{"version": name, "start": start, "end": end} for (name, end), start in zip(ends, starts, strict=False)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path, {})
    yield made
    made.close()


@pytest.fixture
def policy(server: Recorded) -> Iterator[VllmPolicy]:
    made = VllmPolicy("quickstart", url=server.url)
    made.start()
    yield made
    made.close()


def asked(policy: VllmPolicy) -> Any:
    return policy.generate(np.array([1, 2], np.int32), Sampling(), rollout_id="r")


async def test_tokens_are_told_before_the_last_is_sampled(policy: VllmPolicy, server: Recorded) -> None:
    more = threading.Event()
    server.answers[GENERATE] = [event([7]), event([8, 9]), more, event([10], "stop", spans(("default", 4)))]
    chunks: list[Chunk] = []
    async for chunk in asked(policy):
        chunks.append(chunk)
        if len(chunks) == 2:
            more.set()  # not before: these two came without the rest
    assert [chunk.ids.tolist() for chunk in chunks] == [[7], [8, 9], [10]]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert [chunk.versions.tolist() for chunk in chunks] == [[0], [0, 0], [0]]
    assert chunks[1].logprobs.tolist() == pytest.approx([-0.008, -0.009])
    body = dict(server.asked)[GENERATE]
    assert body["stream"] and body["sampling_params"]["stream_interval"] > 1


async def test_what_comes_after_a_publish_waits_for_its_version(policy: VllmPolicy, server: Recorded) -> None:
    """A token may have been on its way while the weights changed; the server's last event tells which sampled it."""
    more = threading.Event()
    last = event([10], "length", spans(("0", 2), ("1", 4)))
    server.answers[GENERATE] = [event([7]), more, event([8]), event([9]), last]
    chunks: list[Chunk] = []
    async for chunk in asked(policy):
        chunks.append(chunk)
        if not more.is_set():
            policy.replicas[0].version = 1
            more.set()
    assert [chunk.ids.tolist() for chunk in chunks] == [[7], [8, 9, 10]]
    assert [chunk.versions.tolist() for chunk in chunks] == [[0], [0, 1, 1]]


async def test_servers_that_were_found_with_weights_of_different_versions(tmp_path: Path) -> None:
    """Of a lab that was killed while it published: until the next publish each tells its own."""
    servers = [
        Recorded(tmp_path, {"/weight_info": {"weight_version": told}}, name=told) for told in ("3", "2", "default")
    ]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers])
    try:
        policy.start()
        assert policy.version == 3
        for place, (told, version) in enumerate([("3", 3), ("2", 2), ("default", 0)]):
            servers[place].answers[GENERATE] = [event([7]), event([8], "stop", spans((told, 2)))]
            for replica in policy.replicas:
                replica.open_calls = int(replica is not policy.replicas[place])
            reply = policy.generate(np.array([1], np.int32), Sampling(), rollout_id=told)
            assert [chunk.versions.tolist() async for chunk in reply] == [[version], [version]]
    finally:
        policy.close()
        for server in servers:
            server.close()


async def test_weights_of_somebody_else_in_the_middle_are_said(policy: VllmPolicy, server: Recorded) -> None:
    server.answers[GENERATE] = [event([7, 8]), event([9], "stop", spans(("0", 1), ("5", 3)))]
    with pytest.raises(PolicyError, match="weights that somebody else published"):
        [chunk async for chunk in asked(policy)]


@pytest.mark.parametrize(
    ("events", "error", "words"),
    [
        ([event([7]), ConnectionResetError], EngineDiedError, "broke off"),
        ([event([7])], PolicyError, "without an end"),
        ([event([7]), {"error": {"message": "EngineCore failed", "code": 500}}], PolicyError, "EngineCore failed"),
        ([event([7]), {"choices": []}], PolicyError, "unknown form"),
        ([event([7]), event([], "abort")], PolicyError, "broke a reply off"),
    ],
)
async def test_a_reply_that_breaks_off(
    policy: VllmPolicy, server: Recorded, events: list[Any], error: type[PolicyError], words: str
) -> None:
    server.answers[GENERATE] = events
    chunks: list[Chunk] = []
    with pytest.raises(error, match=words):
        async for chunk in asked(policy):
            chunks.append(chunk)
    assert [chunk.ids.tolist() for chunk in chunks] == [[7]]


async def test_logprobs_without_a_place_are_not_kept(policy: VllmPolicy, server: Recorded) -> None:
    unplaced = event([8])
    unplaced["choices"][0]["logprobs"] = None
    server.answers[GENERATE] = [event([7]), unplaced, event([9], "stop", spans(("0", 3)))]
    chunks = [chunk async for chunk in asked(policy)]
    assert [len(chunk.logprobs) for chunk in chunks] == [1, 0, 1]


async def test_many_tokens_in_one_event(policy: VllmPolicy, server: Recorded) -> None:
    """A server puts all that waited for a slow reader into one."""
    ids = list(range(20_000))
    server.answers[GENERATE] = [event([7]), event(ids), event([8], "stop", spans(("0", 20_002)))]
    chunks = [chunk async for chunk in asked(policy)]
    assert [chunk.ids.tolist() for chunk in chunks] == [[7], ids, [8]]


@pytest.mark.parametrize("early", [False, True])
async def test_a_machine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    monkeypatch.setattr(connection, "_CONNECT_S", 0.3)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # who come now get no answer from the system either
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        far = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", name="far")
        with pytest.raises(EngineDiedError, match=r"far broke off .*could not be reached"):
            if early:
                [one async for one in far.events(GENERATE, {})]
            else:
                await far.post(GENERATE, {}, timeout_s=None)
        await far.close()


async def test_closing_a_reply_ends_it_in_the_server(policy: VllmPolicy, server: Recorded) -> None:
    more = threading.Event()
    server.answers[GENERATE] = [event([7]), more, event([8], "stop", spans(("0", 2)))]
    reply = asked(policy)
    await anext(reply)
    await reply.aclose()
    while policy.replicas[0].open_calls:  # noqa: ASYNC110 - another thread, no event to wait for
        await asyncio.sleep(0.01)
    more.set()


async def test_calls_do_not_wait_for_a_server_that_is_given_up(tmp_path: Path) -> None:
    """It may hold a mixture of weights, and stands still: what it had begun ends, and its rollouts ask another."""
    servers = [Recorded(tmp_path, {}, name=name) for name in ("one", "two")]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers], learner=Writer())
    more = threading.Event()
    try:
        policy.start()
        servers[0].answers[GENERATE] = [event([7]), more, event([8], "stop", spans(("0", 2)))]
        policy.replicas[1].open_calls = 1  # so that the first has less to do
        reply = asked(policy)
        await anext(reply)
        servers[0].answers["/collective_rpc"] = (500, {"error": {"message": "no space"}})
        with pytest.raises(PublishError, match="no space"):
            await asyncio.to_thread(policy.publish, 1)
        with pytest.raises(EngineDiedError, match="may hold a mixture"):
            await asyncio.wait_for(anext(reply), 10)
        before = servers[0].paths().count(GENERATE)
        assert [chunk.ids.tolist() async for chunk in asked(policy)] == [[16705, 314, 253]]
        assert servers[0].paths().count(GENERATE) == before
    finally:
        more.set()
        policy.close()
        for server in servers:
            server.close()


def test_replies_that_the_server_parses_come_whole(server: Recorded) -> None:
    """Nobody knows here what its parser will make of the beginning."""
    served = VllmPolicy("quickstart", url=server.url, tool_parser="hermes")
    try:
        assert not isinstance(served, TellsEarly)

        async def replied() -> list[Chunk]:
            return [chunk async for chunk in asked(served)]

        (chunk,) = asyncio.run(replied())
        assert chunk.ids.tolist() == GENERATED["choices"][0]["token_ids"] and not dict(server.asked)[GENERATE]["stream"]
    finally:
        served.close()


def test_a_client_reads_words_while_they_are_sampled(policy: VllmPolicy, server: Recorded, tmp_path: Path) -> None:
    """Through the gateway; and the record of the call is that of a whole reply."""
    more = threading.Event()
    first, rest = policy.encode("One two three"), policy.encode(" four.")
    ids = [*first.tolist(), *rest.tolist()]
    last = event(rest.tolist(), "stop", spans(("0", len(ids))))
    server.answers[GENERATE] = [event(first.tolist()), more, last]
    store = Store(tmp_path / "store.sqlite")
    gateway = Gateway(policy, store)
    gateway.start()
    access = gateway.open_rollout("r")
    try:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Count."}]}
        headers = {"Authorization": f"Bearer {access.key}"}
        said = ""
        with httpx.stream("POST", f"{access.url}/v1/chat/completions", json=body, headers=headers) as response:
            for line in response.iter_lines():
                said += line
                if "two" in line:
                    more.set()  # not before: this came without the rest
        assert more.is_set() and "four" in said
    finally:
        more.set()
        gateway.close()
        store.flush()
        (call,) = store.calls("r")
        store.close()
    assert call.sampled_ids.tolist() == ids and call.versions.tolist() == [0] * len(ids)
    assert len(call.logprobs) == len(ids) and call.delivered and call.reply.content == "One two three four."

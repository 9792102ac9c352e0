"""Start, pause, close: from any thread, in any order, leaving nothing behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_lab import HASTY, Lab, Say, ScriptedPolicy, chat_body, echo

from lightning_lab.gateway import Gateway, GatewayError, PauseCancelledError
from lightning_lab.gateway.sharing import COLLECT_AFTER, TURN_S
from lightning_lab.store import Store


def gateway_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lightning-lab-gateway"]


def port_of(gateway: Gateway) -> int:
    return int(gateway.url.rpartition(":")[2])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def store(tmp_path: Any) -> Any:
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened


def test_close_leaves_no_port_and_no_thread(store):
    gateway = Gateway(ScriptedPolicy(echo), store)
    gateway.start()
    gateway.start()
    port = port_of(gateway)
    assert is_open(port)
    assert len(gateway_threads()) == 1
    gateway.close()
    gateway.close()
    assert not is_open(port)
    assert gateway_threads() == []
    with pytest.raises(GatewayError, match="closed"):
        gateway.start()
    gateway.resume()
    gateway.close_rollout("r")
    with pytest.raises(GatewayError, match="not running"):
        gateway.pause()


def test_close_before_start(store):
    gateway = Gateway(ScriptedPolicy(echo), store)
    with pytest.raises(GatewayError, match="not started"):
        _ = gateway.url
    gateway.close()
    gateway.close()


def test_a_port_in_use_is_named(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        gateway = Gateway(ScriptedPolicy(echo), store, port=port)
        with pytest.raises(GatewayError, match=f"cannot listen on 127.0.0.1:{port}"):
            gateway.start()
        gateway.close()
    assert gateway_threads() == []


def test_an_address_of_another_machine_is_named(store):
    with pytest.raises(GatewayError, match="cannot listen on any port of"):
        Gateway(ScriptedPolicy(echo), store, host="192.0.2.1").start()


def test_a_fixed_port_can_be_taken_again(store):
    first = Gateway(ScriptedPolicy(echo), store)
    first.start()
    port = port_of(first)
    httpx.get(f"{first.url}/health")
    first.close()
    second = Gateway(ScriptedPolicy(echo), store, port=port)
    second.start()
    assert httpx.get(f"{second.url}/health").status_code == 200
    second.close()


async def test_close_ends_open_and_held_calls_with_an_error(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True))
    generating = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    pause = asyncio.create_task(asyncio.to_thread(lab.gateway.pause))
    await lab.until(lambda: lab.gateway.admission.paused)
    held = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.held == 1)
    await asyncio.to_thread(lab.gateway.close)
    for call in (generating, held):
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_closed")
    with contextlib.suppress(GatewayError):  # it drained in time, or it is told that the gateway was closed
        await pause
    assert lab.gateway.admission.in_flight == 0
    assert [call.delivered for call in lab.calls()] == [False, False]


async def test_nothing_is_printed(make_lab, capfd):
    lab = make_lab(lambda _: Say(error=RuntimeError("boom"), pieces=0))
    await lab.chat()
    with socket.create_connection(("127.0.0.1", port_of(lab.gateway))) as broken:
        broken.sendall(b"NOT HTTP\r\n\r\n")
        broken.recv(1000)
    await asyncio.to_thread(lab.gateway.close)
    assert capfd.readouterr() == ("", "")


# -- pause -------------------------------------------------------------------------------------------------------------


async def test_a_pause_looks_like_latency(make_lab):
    lab = make_lab(lambda prompt: Say("old", hold=True) if "first" in prompt else "new")
    first = asyncio.create_task(lab.chat("first"))
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    pause = asyncio.create_task(asyncio.to_thread(lab.gateway.pause))
    await lab.until(lambda: lab.gateway.admission.paused)
    second = asyncio.create_task(lab.chat("second"))
    await lab.until(lambda: lab.gateway.admission.held == 1)
    assert not pause.done()
    lab.policy.release()
    report = await pause
    assert (report.in_flight, report.aborted, report.left) == (1, 0, 0)
    assert lab.policy.running == 0
    lab.policy.version = 1
    await asyncio.sleep(0.1)
    assert not second.done()
    lab.gateway.resume()
    assert (await first).status_code == (await second).status_code == 200
    old, new = lab.calls()
    assert (set(old.versions), set(new.versions)) == ({0}, {1})
    assert old.held_s == 0
    assert 0.1 <= new.held_s < 10
    assert new.started_at - new.arrived_at >= 0.1
    kinds = [event.data["paused"] for event in lab.store.events(kind="admission")]
    assert kinds == [True, False]


async def test_what_is_wrong_is_refused_without_waiting(make_lab):
    lab = make_lab(policy={"context_length": 60})
    await asyncio.to_thread(lab.gateway.pause)
    async with lab.client() as client:
        assert (await client.post("/chat/completions", json={})).status_code == 400
        assert (await client.post("/chat/completions", json=chat_body("UNRENDERABLE"))).status_code == 400
        assert (await client.post("/chat/completions", json=chat_body("x" * 100))).status_code == 400
        client.headers["authorization"] = "Bearer wrong"
        assert (await client.post("/chat/completions", json=chat_body())).status_code == 401
    assert lab.gateway.admission.held == 0
    lab.gateway.resume()


async def test_the_deadline_aborts_and_the_same_request_succeeds_after_the_pause(make_lab):
    stuck = [True]
    lab = make_lab(lambda _: Say("abc", hold=stuck.pop() if stuck else False))
    call = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=0.05)
    assert (report.in_flight, report.aborted, report.left) == (1, 1, 0)
    answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted_by_pause")
    assert answer.headers["x-should-retry"] == "true"
    again = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.held == 1)
    lab.gateway.resume()
    assert (await again).status_code == 200
    assert [(one.delivered, one.finish_reason) for one in lab.calls()] == [(False, "abort"), (True, "stop")]
    assert lab.gateway.faults("r-1") == []


async def test_a_held_client_that_leaves_is_recorded(make_lab):
    lab = make_lab()
    await asyncio.to_thread(lab.gateway.pause)
    call = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.held == 1)
    call.cancel()
    await lab.until(lambda: lab.gateway.admission.held == 0)
    [record] = lab.calls()
    assert (record.delivered, record.kind, len(record.sampled_ids)) == (False, "undelivered", 0)
    assert record.held_s > 0
    lab.gateway.resume()
    assert lab.policy.sampled == []


async def test_a_held_stream_is_kept_alive(make_lab):
    lab = make_lab(patience=HASTY)
    await asyncio.to_thread(lab.gateway.pause)
    async with (
        lab.client() as client,
        client.stream("POST", "/chat/completions", json=chat_body(stream=True)) as answer,
    ):
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if text.count('"delta":{}') == 2:
                lab.gateway.resume()
    assert text.rstrip().endswith("[DONE]")
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(said) == "hello" and {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


def test_paused_resumes_whatever_happens(store):
    gateway = Gateway(ScriptedPolicy(echo), store)
    gateway.start()
    with pytest.raises(ZeroDivisionError), gateway.paused() as report:
        assert report.in_flight == 0
        assert gateway.admission.paused
        _ = 1 / 0
    assert not gateway.admission.paused
    gateway.close()


async def test_resume_during_a_drain_is_told_to_the_pauser(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True))
    call = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    pause = asyncio.create_task(asyncio.to_thread(lab.gateway.pause))
    await lab.until(lambda: lab.gateway.admission.paused)
    lab.gateway.resume()
    lab.policy.release()
    with pytest.raises(PauseCancelledError):
        await pause
    assert (await call).status_code == 200


async def test_a_crowd_meets_pauses_and_nobody_generates_inside_one(make_lab):
    lab = make_lab()
    inside: list[int] = []
    stop = threading.Event()

    def trainer() -> None:
        while not stop.is_set():
            with lab.gateway.paused(deadline_s=10):
                before = len(lab.policy.sampled)
                time.sleep(0.005)
                inside.append(lab.policy.running + len(lab.policy.sampled) - before)
                lab.policy.version += 1

    with concurrent.futures.ThreadPoolExecutor() as pool:
        training = pool.submit(trainer)
        async with lab.client(limits=httpx.Limits(max_connections=16)) as client:
            answers = await asyncio.gather(
                *(client.post("/chat/completions", json=chat_body(str(i))) for i in range(200))
            )
        stop.set()
        await asyncio.wrap_future(training)
    assert [answer.status_code for answer in answers] == [200] * 200
    assert len(inside) > 1
    assert set(inside) == {0}
    calls = lab.calls()
    assert len(calls) == 200
    assert all(len(set(call.versions)) == 1 for call in calls)
    assert sorted(call.ordinal for call in calls) == list(range(200))
    assert sorted(call.reply.content for call in calls) == sorted(map(str, range(200)))
    await lab.until(lambda: all(call.delivered for call in lab.calls()))


def test_threads_take_short_turns_and_collections_are_rare_while_a_gateway_runs(make_lab: Callable[..., Lab]) -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    inside = pytest.approx(min(before[0], TURN_S)), (max(before[1][0], COLLECT_AFTER), *before[1][1:])
    first, second = make_lab(), make_lab()
    assert (sys.getswitchinterval(), gc.get_threshold()) == inside
    first.gateway.close()
    assert (sys.getswitchinterval(), gc.get_threshold()) == inside
    second.gateway.close()
    assert (sys.getswitchinterval(), gc.get_threshold()) == (pytest.approx(before[0]), before[1])

"""The gateway in a process of its own: the same calls, the same store, and nothing left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gateway_lab
import numpy as np
import pytest
from gateway_lab import Lab, Say, echo, tool_call
from gateway_upstream import KEY, Upstream
from test_gateway_interrupt import TARGET, Slow, in_two_parts

from lightning_lab.gateway import GatewayError
from lightning_lab.gateway.process import GatewayProcess
from lightning_lab.gateway.process.child import Process
from lightning_lab.policy.base import Chunk, ContextOverflowError, Rendered
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.openai import OpenAIPolicy
from lightning_lab.records import Event, Ids, Message
from lightning_lab.store import Store, StoreError
from lightning_lab.tokens import ChatCodec

HERE = Path(__file__).parent


@pytest.fixture
def make_outside(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Labs whose gateway is another process, and whose policy is here."""
    opened: list[Lab] = []
    threads = set(threading.enumerate())

    def make(script: gateway_lab.Script = echo, **options: object) -> Lab:
        policy = gateway_lab.make_policy(script)
        gateway = GatewayProcess(policy, tmp_path / f"store{len(opened)}.sqlite", **options)
        store = Store(tmp_path / f"store{len(opened)}.sqlite", writer=gateway.writer)
        gateway.start()
        opened.append(Lab(gateway, policy, store, gateway.open_rollout("r-1")))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for lab in opened:
        lab.policy.release()
        lab.gateway.close()
        lab.store.close()
        assert not listens(lab.access.url) and lab.gateway._process.poll() is not None  # type: ignore[attr-defined]
    assert not [thread.name for thread in set(threading.enumerate()) - threads if "asyncio" not in thread.name]


async def test_calls_are_answered_stored_and_told(make_outside: Callable[..., Lab]) -> None:
    lab = make_outside()
    told: list[Event] = []
    watched: list[int] = []
    end = lab.store.watch(lambda: watched.append(len(lab.store.events())))
    lab.store.put_event("log", "run").result()
    lab.store.flush()
    assert watched == [1]
    end()
    lab.store.subscribe(told.extend)
    assert (await lab.chat("hello")).json()["choices"][0]["message"]["content"] == "hello"
    async with lab.client() as client:
        answer = await client.post("/responses", json={"model": "m", "input": "hi", "stream": True})
    assert "event: response.completed" in answer.text
    calls = lab.calls()
    assert [(call.protocol, call.reply.content, call.delivered) for call in calls] == [
        ("chat", "hello", True),
        ("responses", "hi", True),
    ]
    assert lab.policy.decode(calls[0].sampled_ids) == "hello<end>" and calls[0].logprobs.tolist() == [-0.5] * 6
    assert [event.kind for event in told] == ["call", "delivered"] * 2
    assert told == lab.store.events(after=1) and watched == [1]


def test_what_is_committed_while_the_kernel_subscribes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    told: list[Any] = []
    with here, there, Store(tmp_path / "store.sqlite") as store:
        process = Process(there)
        monkeypatch.setattr(process.channel, "tell", lambda *said: told.append(said))
        process._store = store

        def unwatch() -> None:
            store.put_event("log", "run").result()
            store.flush()

        process._unwatch = unwatch
        process._subscribe()
        process._threads.shutdown()
    assert [method for method, _ in told] == ["told"]


async def test_a_conversation_is_stitched_across_the_border(make_outside: Callable[..., Lab]) -> None:
    lab = make_outside(lambda prompt: Say(tool_call("run", {"a": 1})) if "<end>" not in prompt[-40:] else "done")
    first = (await lab.chat("go")).json()["choices"][0]["message"]
    messages = [{"role": "user", "content": "go"}, first, {"role": "tool", "content": "1", "tool_call_id": "x"}]
    await lab.chat(messages=messages)
    one, two = lab.calls()
    assert two.parent_id == one.id
    said = [*one.prompt_ids, *one.sampled_ids]
    assert two.prompt_ids[: len(said)].tolist() == said


async def test_faults_cross_the_border_as_they_are(make_outside: Callable[..., Lab]) -> None:
    lab = make_outside(lambda prompt: Say("x", error=ContextOverflowError("too long"), pieces=0))
    refused = await lab.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert lab.gateway.faults("r-1") == ["context_overflow"]
    unsaid = await lab.chat("UNRENDERABLE")
    assert (unsaid.status_code, unsaid.json()["error"]["code"]) == (400, "render_error")
    assert isinstance(lab.store.mark_delivered("c-none").exception(), StoreError)


class Mute(gateway_lab.ScriptedPolicy):
    """Generates, and shows a codec; nobody may ask it to render or to parse."""

    codec = ChatCodec(resolve_model("quickstart"))

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        raise AssertionError("rendered in the kernel")

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        raise AssertionError("parsed in the kernel")

    def decode(self, ids: Ids) -> str:
        return self.codec.decode(ids)


async def test_a_codec_renders_and_parses_beside_the_gateway(
    make_outside: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, end = Mute.codec, sorted(Mute.codec.stop_ids)[0]
    monkeypatch.setattr(gateway_lab, "make_policy", Mute)

    def four(prompt: str) -> Say:
        ids = np.append(codec.encode("four"), end).astype(np.int32)
        told = Chunk(ids=ids, logprobs=np.zeros(len(ids), np.float32), versions=0 * ids, finish_reason="stop")
        return Say(chunks=[told])

    lab = make_outside(four)
    messages = [{"role": "user", "content": "2+2?"}]
    first = (await lab.chat(messages=messages)).json()["choices"][0]["message"]
    assert first["content"] == "four"
    await lab.chat(messages=[*messages, first, {"role": "user", "content": "and?"}])
    one, two = lab.calls()
    assert one.prompt_ids.tolist() == codec.render(one.messages).tolist()
    assert two.parent_id == one.id


async def test_an_endpoint_is_asked_from_there(upstream: Upstream, tmp_path: Path) -> None:
    build = partial(OpenAIPolicy, upstream.url, "m", api_key=KEY)
    gateway = await asyncio.to_thread(GatewayProcess, build(), tmp_path / "store.sqlite", build=build)
    store = Store(tmp_path / "store.sqlite", writer=gateway.writer)
    try:
        await asyncio.to_thread(gateway.start)
        lab = Lab(gateway, None, store, await asyncio.to_thread(gateway.open_rollout, "r-1"))  # type: ignore[arg-type]
        assert (await lab.chat("hello")).json()["choices"][0]["message"]["content"] == "Hello"
        [call] = await asyncio.to_thread(lab.calls)
        assert (call.prompt_ids.tolist(), call.sampled_ids.tolist()) == ([1, 2, 3], [10, 11, 12, 13])
        assert call.delivered
    finally:
        await asyncio.to_thread(gateway.close)
        await asyncio.to_thread(store.close)


async def test_pause_holds_and_a_disconnect_cancels(make_outside: Callable[..., Lab]) -> None:
    lab = make_outside(lambda prompt: Say("word", hold="stay" in prompt))
    await asyncio.to_thread(lab.gateway.pause, deadline_s=5)
    held = asyncio.create_task(lab.chat("held"))
    await lab.until(lambda: lab.gateway.admission.held == 1)
    assert lab.gateway.admission.paused and not held.done()
    lab.gateway.resume()
    assert (await held).status_code == 200
    stays = asyncio.create_task(lab.chat("stay"))
    await lab.until(lambda: lab.policy.running == 1)
    stays.cancel()
    await lab.until(lambda: lab.policy.cancelled == 1)
    await asyncio.to_thread(lab.gateway.close_rollout, "r-1")
    assert (await lab.chat()).status_code == 409
    assert [call.delivered for call in lab.calls()] == [True, False]


async def test_an_interrupt_does_not_reach_it_and_its_death_is_named(make_outside: Callable[..., Lab]) -> None:
    lab = make_outside()
    process = lab.gateway._process  # type: ignore[attr-defined]
    assert os.getsid(process.pid) == process.pid
    os.kill(process.pid, signal.SIGINT)
    assert (await lab.chat("still")).status_code == 200
    process.kill()
    process.wait()
    with pytest.raises(GatewayError, match="ended"):
        lab.gateway.open_rollout("r-2")
    assert isinstance(lab.store.put_event("log", "run").exception(10), StoreError)
    assert lab.store.calls("r-1")[0].reply.content == "still"
    lab.gateway.resume()
    assert not lab.gateway.admission.paused


def test_it_dies_with_its_kernel(tmp_path: Path) -> None:
    """Also while a forked child of the kernel holds whatever the kernel had open."""
    script = f"""
import os, sys, time
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from gateway_lab import ScriptedPolicy, echo
from lightning_lab.gateway.process import GatewayProcess
gateway = GatewayProcess(ScriptedPolicy(echo), Path({str(tmp_path / "s.sqlite")!r}))
gateway.start()
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
print(gateway._process.pid, child, gateway.url, flush=True)
time.sleep(60)
"""
    kernel = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    outside, child, url = kernel.stdout.readline().split()
    assert listens(url)
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    try:
        until(lambda: not Path(f"/proc/{outside}").exists() and not listens(url))
    finally:
        os.kill(int(child), signal.SIGKILL)
    with Store(tmp_path / "s.sqlite") as store:
        store.put_event("log", "run").result()


def listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), 1).close()
    except OSError:
        return False
    return True


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("generates", [False, True], ids=["held", "generating"])
async def test_an_interrupt_across_the_border(
    make_outside: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, generates: bool
) -> None:
    """Replies stop where they are and go on from exactly those tokens; with nobody in flight it is a pause."""

    monkeypatch.setattr(gateway_lab, "make_policy", Slow)
    lab = make_outside(in_two_parts if generates else (lambda prompt: TARGET))
    early = asyncio.create_task(lab.chat()) if generates else None
    await lab.until(lambda: lab.gateway.admission.in_flight == int(generates))
    await lab.until(lambda: lab.policy.running == int(generates))
    await asyncio.sleep(0.1)  # its tokens cross the border
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt")
    assert (report.in_flight, report.interrupted, report.left) == (int(generates), int(generates), 0)
    late = early or asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.held == 1)
    lab.policy.version = 1
    lab.gateway.resume()
    assert (await late).json()["choices"][0]["message"]["content"] == TARGET
    [call] = lab.calls()
    assert bytes(call.sampled_ids[:-1].astype("uint8")).decode() == TARGET
    assert sorted(set(call.versions.tolist())) == ([0, 1] if generates else [1])


async def test_a_pause_that_is_interrupted_lets_calls_in_again(make_outside: Callable[..., Lab]) -> None:
    """The kernel's interrupt while `pause` waits for the other process to drain."""
    lab = make_outside(lambda prompt: Say("word", hold=True))
    stays = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.policy.running == 1)

    def interrupted() -> None:
        waits = lab.gateway._ask  # type: ignore[attr-defined]

        def ask(method: str, *arguments: object, **named: object) -> object:
            if method != "pause":
                return waits(method, *arguments, **named)
            lab.gateway.channel.ask("gateway", method, arguments, named)  # type: ignore[attr-defined]
            time.sleep(0.1)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(lab.gateway, "_ask", ask)
            lab.gateway.pause(deadline_s=60.0)

    await asyncio.to_thread(interrupted)
    assert not lab.gateway.admission.paused
    lab.policy.release()
    assert (await stays).status_code == 200
    assert (await lab.chat()).status_code == 200

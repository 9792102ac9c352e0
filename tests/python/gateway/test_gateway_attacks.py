"""Who attacks the gateway with a rollout's key, byte by byte, gets an answer in its shape; nothing hangs or is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_agl import KEY, proxy
from gateway_lab import Lab, Say, chat_body

from lightning_lab.gateway import guarding

BODY = json.dumps(chat_body("hello")).encode()
TARGET = "/rollout/r-1/v1/chat/completions"


def port_of(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])


def request(
    lab: Lab, *more: str, target: str = TARGET, body: bytes = BODY, version: str = "1.1", last: bool = True
) -> bytes:
    """A sound request, but for what a test puts into it."""
    named = {line.partition(":")[0].lower() for line in more}
    lines = [f"POST {target} HTTP/{version}", f"authorization: Bearer {lab.access.key}", *more]
    lines += ["host: 127.0.0.1"] if "host" not in named else []
    lines += ["connection: close"] if last and "connection" not in named else []
    lines += [f"content-length: {len(body)}"] if not named & {"content-length", "transfer-encoding"} else []
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def sent(url: str, raw: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Every answer to raw bytes, until the connection ends: status and JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    found = []
    try:
        writer.write(raw)
        async with asyncio.timeout(20):
            async for one in answers(reader):
                found.append(one)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


async def answers(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    while status := await reader.readline():
        headers = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        assert headers[b"content-type"] == b"application/json"
        if b"content-length" not in headers:
            yield int(status.split()[1]), json.loads(unchunked(await reader.read()))
            return
        yield int(status.split()[1]), json.loads(await reader.readexactly(int(headers[b"content-length"])))


def unchunked(raw: bytes) -> bytes:
    found = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        found, raw = found + raw[: int(size, 16)], raw[int(size, 16) + 2 :]
    return found


@pytest.fixture
def lab(make_lab: Any) -> Any:
    """Goes on afterwards as if nothing had been."""
    lab: Lab = make_lab()
    lab.open("r-2")
    yield lab
    [(status, answer)] = asyncio.run(sent(lab.gateway.url, request(lab)))
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "hello")
    assert lab.calls("r-2") == []
    assert lab.gateway.admission.in_flight == lab.gateway.admission.held == 0


CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"POST /rollout/r-2/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ((f"content-length: {len(CHUNKED)}", "transfer-encoding: chunked"), CHUNKED),
        (("content-length: 4", "content-length: 5"), BODY),
        (("content-length: 4, 5",), BODY),
        (("content-length: +4",), BODY),
        (("transfer-encoding: chunked, identity",), CHUNKED),
        (("transfer-encoding: xchunked",), CHUNKED),
        (("transfer-encoding: chunked",), b"-1\r\n" + BODY),
        (("transfer-encoding: chunked",), b"fffffffffffffffff\r\n" + BODY),
        (("transfer-encoding: chunked",), b"4\r\nabcdef\r\n0\r\n\r\n"),
        (("x: a\0b",), BODY),
        (("bad header",), BODY),
        ((" folded: x",), BODY),
        (("x : y",), BODY),
        (("x\x01y: z",), BODY),
    ],
)
async def test_framings_that_two_servers_would_read_otherwise(lab, more, body):
    """One refusal, and nothing behind it is read as a request."""
    found = await sent(lab.gateway.url, request(lab, *more, body=body + SMUGGLED))
    assert [(status, answer["error"]["code"]) for status, answer in found] == [(400, "invalid_http")]
    assert lab.calls() == []


@pytest.mark.parametrize(
    "raw",
    [
        b"NOT HTTP\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /health HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n",
        b"\0" * 100,
    ],
)
async def test_what_is_no_http(lab, raw):
    assert [(status, answer["error"]["code"]) for status, answer in await sent(lab.gateway.url, raw)] == [
        (400, "invalid_http")
    ]


async def test_pipelined_requests_are_each_their_own(lab):
    two = request(lab, last=False) + request(lab, target="/rollout/r-2/v1/chat/completions")
    assert [status for status, _ in await sent(lab.gateway.url, two)] == [200, 403]


async def test_versions_and_targets(lab):
    url = lab.gateway.url
    assert [status for status, _ in await sent(url, request(lab, version="1.0"))] == [200]
    assert [status for status, _ in await sent(url, request(lab, "host:", version="1.0"))] == [403]
    absolute = request(lab, target=f"{url}{TARGET}")
    assert [status for status, _ in await sent(url, absolute)] == [200]
    assert [status for status, _ in await sent(url, request(lab, "host: evil.example", target=f"{url}{TARGET}"))] == [
        403
    ]
    assert [status for status, _ in await sent(url, request(lab, "host: 127.0.0.1", "host: evil.example"))] == [403]
    assert len(lab.calls()) == 2
    for line in (b"CONNECT 127.0.0.1:22", b"OPTIONS *", b"TRACE /", b"POST http://", b"POST health"):
        [(status, answer)] = await sent(url, line + b" HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        assert (400 <= status < 500) and answer["error"]["message"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/rollout/r%2D1/v1/chat/completions", 200),
        ("/rollout/r-1/v1//chat/completions", 404),
        ("/rollout/r-1/../r-2/v1/chat/completions", 404),
        ("/rollout/r-1/%2e%2e/r-2/v1/chat/completions", 404),
        ("/rollout/r-1%2f..%2fr-2/v1/chat/completions", 404),
        ("/rollout/r-1/v1/../../r-2/v1/chat/completions", 404),
        ("/rollout/..%2f..%2fetc%2fpasswd/v1/chat/completions", 404),
        ("/rollout/r-1%00/v1/chat/completions", 404),
        ("/rollout/r-1%0d%0ax:%20y/v1/chat/completions", 404),
        ("/rollout/%ff/v1/chat/completions", 404),
        ("/rollout/%F0%9F%98%80/v1/chat/completions", 404),
        ("/rollout/r-1;x=y/v1/chat/completions", 404),
        ("/rollout/R-1/v1/chat/completions", 404),
        ("/rollout//v1/chat/completions", 200),  # it names none, and the key does
        ("/rollout/" + "x" * 30_000 + "/v1/chat/completions", 404),
        ("/rollout/r-2/v1/chat/completions?rollout=r-1", 403),
        ("/rollout/r-1/v1/chat/completions#/rollout/r-2", 200),
        ("/openapi.json/../v1/chat/completions", 404),
    ],
)
async def test_ways_to_another_rollout(lab, target, status):
    [(found, answer)] = await sent(lab.gateway.url, request(lab, target=target))
    assert found == status, answer
    if status != 200:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert len(lab.calls()) == (status == 200)


@pytest.mark.parametrize(
    "more",
    [
        ("x-lightning-lab-rollout: r-2",),
        ("x-lightning-lab-rollout: r-1", "x-lightning-lab-rollout: r-2"),
        ("X-LIGHTNING-LAB-ROLLOUT: r-2",),
        ("x-api-key: other",),
        ("authorization: Bearer other",),
        ("authorization: Basic b3RoZXI=",),
        ("authorization: \xe9",),
    ],
)
async def test_headers_that_say_something_else(lab, more):
    [(status, answer)] = await sent(lab.gateway.url, request(lab, *more))
    assert (status, answer["error"]["code"]) == (403, "attribution_conflict")
    assert lab.calls() == []


async def test_texts_that_would_be_headers_stay_texts(lab):
    said = "m\r\nset-cookie: a=b\r\n\r\n<script>"
    body = json.dumps(chat_body("hello") | {"model": said}).encode()
    [(status, answer)] = await sent(lab.gateway.url, request(lab, body=body))
    assert (status, answer["model"]) == (200, said)
    thread = request(lab, "thread-id: " + "t" * 20_000, "x-openai-subagent: <b>\xe9")
    assert [status for status, _ in await sent(lab.gateway.url, thread)] == [200]


async def test_heads_without_end(lab):
    for junk in (b"x: " + b"y" * 300_000, b"".join(b"x%d: y\r\n" % at for at in range(30_000))):
        raw = request(lab, body=b"").removesuffix(b"\r\n\r\n") + b"\r\n" + junk
        found = await sent(lab.gateway.url, raw)
        assert [(status, answer["error"]["code"]) for status, answer in found] in ([(431, "header_too_large")], [])
    assert lab.calls() == []


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
async def test_another_protocol_is_refused_and_nothing_is_printed(lab, capfd, upgrade):
    more = ("connection: upgrade", f"upgrade: {upgrade}", "sec-websocket-key: x", "sec-websocket-version: 13")
    for raw in (request(lab, *more), request(lab, *more, body=b"").replace(b"POST", b"GET") + SMUGGLED):
        found = await sent(lab.gateway.url, raw)
        assert [(status, answer["error"]["code"]) for status, answer in found] == [(400, "upgrade_not_supported")]
    assert lab.calls() == []
    assert capfd.readouterr() == ("", "")


async def test_who_sends_slowly_is_let_go(make_lab, monkeypatch):
    """Heads and bodies that never come to their end, beside one that waits for its answer longer than all of them."""
    for name, seconds in {"_HEAD_S": 0.4, "_SILENCE_S": 0.4, "_LOOK_S": 0.05}.items():
        monkeypatch.setattr(guarding, name, seconds)
    lab = make_lab(lambda prompt: Say("patience", hold=True))
    url, whole = lab.gateway.url, request(lab)
    patient = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)

    async def trickle(raw: bytes) -> list[tuple[int, dict[str, Any]]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        answer = asyncio.create_task(anext(answers(reader)))
        for at in range(len(raw)):
            if answer.done():
                break
            writer.write(raw[at : at + 1])
            await asyncio.sleep(0.02)
        writer.close()
        return [await answer]

    head, silent, short = await asyncio.gather(trickle(whole), sent(url, b""), sent(url, whole[:-3]))
    assert [(status, answer["error"]["code"]) for status, answer in head] == [(408, "request_timeout")]
    assert [status for status, _ in silent] == [408] and short == []
    await lab.until(lambda: lab.gateway._grants._by_rollout["r-1"].in_use == 1)
    lab.policy.release()
    assert (await patient).status_code == 200
    assert [call.delivered for call in await lab.settled()] == [True]


async def test_agent_lightnings_way_through_leads_nowhere_else(served):
    rollout_id = await served.make()
    head = f"HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nauthorization: Bearer {KEY}\r\n\r\n"
    for path in ("..%2f..%2fr-1%2fv1%2fmodels", "%2e%2e/%2e%2e/r-1/v1/models", "modells%0d%0ax: y", "a%3fb", "\xe9"):
        raw = f"GET {proxy(rollout_id)}/{path} {head}"
        [(status, _)] = await sent(served.server.url, raw.encode("latin-1"))
        assert 400 <= status < 500, path
    head = f"HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-api-key: {KEY}\r\nx-odd: \xe9\t\x7f\r\n"
    raw = f"POST {proxy(rollout_id)}/chat/completions {head}content-length: {len(BODY)}\r\n\r\n"
    [(status, _)] = await sent(served.server.url, raw.encode("latin-1") + BODY)
    assert status in (200, 400)
    assert served.lab.calls() == []

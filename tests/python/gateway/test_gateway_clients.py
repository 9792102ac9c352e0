"""Clients that are wrong, foreign, or gone: a named error in the protocol's shape, an honest record, nothing hung."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import openai
import pytest
from gateway_lab import HASTY, Say, chat_body

from lightning_lab.policy.base import ContextOverflowError, PolicyError


def check_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    return error


# -- shape -------------------------------------------------------------------------------------------------------------


WRONG = ["x", 7, -1, 1.5, True, [], {}, [[]], [7], [{}], [None], None]
CHAT_FIELDS = [
    "model", "messages", "tools", "functions", "stream", "stream_options", "n", "stop", "temperature", "top_p", "top_k",
    "max_tokens", "max_completion_tokens", "seed", "logprobs", "top_logprobs", "logit_bias", "response_format", "user",
]  # fmt: skip
RESPONSES_FIELDS = [
    "model", "input", "instructions", "tools", "stream", "include", "max_output_tokens", "temperature", "metadata",
    "reasoning", "text", "tool_choice", "parallel_tool_calls", "store",
]  # fmt: skip
COMPLETIONS_FIELDS = ["model", "prompt", "stream", "n", "stop", "temperature", "max_tokens", "logprobs", "echo"]


@pytest.mark.parametrize(
    ("path", "sound", "fields"),
    [
        ("/chat/completions", chat_body("x"), CHAT_FIELDS),
        ("/responses", {"model": "m", "input": "x"}, RESPONSES_FIELDS),
        ("/completions", {"model": "m", "prompt": "x"}, COMPLETIONS_FIELDS),
    ],
)
async def test_any_type_in_any_field_is_answered_or_refused(lab, path, sound, fields):
    async with lab.client() as client:
        for field in fields:
            for value in WRONG:
                answer = await client.post(path, json={**sound, field: value})
                assert answer.status_code in (200, 400), (field, value, answer.text)
                if answer.status_code == 400:
                    error = check_error(answer, 400, answer.json()["error"]["code"])
                    assert (error["param"] or "").startswith(field.partition("[")[0]), (field, value, error)


@pytest.mark.parametrize(
    "message",
    [
        None, "x", {}, {"role": 7}, {"role": "wizard", "content": "x"}, {"role": "user", "content": 7},
        {"role": "user", "content": [7]}, {"role": "user", "content": [{"type": "text", "text": 7}]},
        {"role": "assistant", "tool_calls": "x"}, {"role": "assistant", "tool_calls": [7]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 7}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]},
        {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "f"}}]},
        {"role": "assistant", "reasoning": 7}, {"role": "tool", "tool_call_id": 7, "content": "x"},
    ],
)  # fmt: skip
async def test_messages_of_wrong_types_name_the_place(lab, message):
    async with lab.client() as client:
        answer = await client.post("/chat/completions", json={"model": "m", "messages": [message]})
    assert check_error(answer, 400, answer.json()["error"]["code"])["param"].startswith("messages[0]")


@pytest.mark.parametrize(
    "item",
    [
        None, "x", {"type": 7}, {"role": "wizard", "content": "x"}, {"role": "user", "content": {"a": 1}},
        {"type": "function_call", "name": 7}, {"type": "function_call", "arguments": []},
        {"type": "function_call_output", "output": 7}, {"type": "reasoning", "summary": "x"},
        {"type": "reasoning", "summary": [{"text": 7}]}, {"type": "item_reference", "id": "x"},
    ],
)  # fmt: skip
async def test_items_of_wrong_types_name_the_place(lab, item):
    async with lab.client() as client:
        answer = await client.post("/responses", json={"model": "m", "input": [item]})
    assert check_error(answer, 400, answer.json()["error"]["code"])["param"].startswith("input[0]")


async def test_images_are_refused_by_name(lab):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = check_error(await lab.chat([part]), 400, "unsupported_content")
    assert error["param"] == "messages[0].content[0]"


async def test_a_huge_body_is_refused_and_the_connection_goes_on(lab):
    async with lab.client() as client:
        answer = await client.post("/chat/completions", content=b"x" * 50_000_000)
        check_error(answer, 413, "body_too_large")
        assert (await client.post("/chat/completions", json=chat_body())).status_code == 200


async def test_a_huge_body_without_length_is_refused(make_lab):
    lab = make_lab(body_limit=100_000)

    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 10_000

    async with lab.client() as client:
        check_error(await client.post("/chat/completions", content=endless()), 413, "body_too_large")


async def test_a_long_conversation_is_rendered_beside_the_loop(lab):
    answer = await lab.chat("x" * 200_000)
    assert len(answer.json()["choices"][0]["message"]["content"]) == 200_000


async def test_compressed_bodies_are_refused(lab):
    async with lab.client() as client:
        answer = await client.post("/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
        check_error(answer, 415, "unsupported_encoding")


# -- routes ------------------------------------------------------------------------------------------------------------


async def test_unknown_routes_and_methods_have_the_protocols_error_shape(lab):
    async with lab.client() as client:
        check_error(await client.get("/nothing"), 404, "unknown_url")
        check_error(await client.post(lab.gateway.url + "/api/rollouts"), 404, "unknown_url")
        answer = await client.get("/chat/completions")
        check_error(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"


async def test_any_model_name_is_known(lab):
    async with openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("org/any-model:7b")).id == "org/any-model:7b"


async def test_probes(lab):
    async with httpx.AsyncClient() as client:
        assert (await client.head(lab.access.url + "/api/hello")).status_code == 200
        assert (await client.get(lab.gateway.url + "/health")).json() == {"status": "ok"}


# -- attribution -------------------------------------------------------------------------------------------------------


def post(url: str, headers: dict[str, Any]) -> Any:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.post(url + "/chat/completions", json=chat_body(), headers=headers)

    return send()


async def test_each_way_of_attribution_works_alone_and_together(lab):
    bearer = {"authorization": f"Bearer {lab.access.key}"}
    named = {"x-lightning-lab-rollout": "r-1"}
    root = lab.gateway.url
    for url, headers in [
        (f"{root}/rollout/r-1/v1", bearer),
        (f"{root}/v1", bearer),
        (f"{root}/v1", {"x-api-key": lab.access.key}),
        (f"{root}/v1", {"api-key": lab.access.key}),
        (f"{root}/v1", bearer | named),
        (f"{root}/rollout/r-1/v1", bearer | named | {"x-api-key": lab.access.key}),
    ]:
        assert (await post(url, headers)).status_code == 200
    assert len(lab.calls("r-1")) == 6


async def test_who_may_not(lab):
    other = lab.open("r-2")
    root, mine = lab.gateway.url, f"Bearer {lab.access.key}"
    check_error(await post(f"{root}/rollout/r-1/v1", {}), 401, "invalid_api_key")
    check_error(await post(f"{root}/v1", {"authorization": "Bearer wrong"}), 401, "invalid_api_key")
    check_error(await post(f"{root}/rollout/r-1/v1", {"authorization": "Bearer wrong"}), 401, "invalid_api_key")
    check_error(await post(f"{root}/rollout/r-1/v1", {"authorization": "Bearer é".encode()}), 401, "invalid_api_key")
    check_error(await post(f"{root}/v1", {"x-lightning-lab-rollout": "r-1"}), 401, "invalid_api_key")
    check_error(await post(f"{root}/rollout/r-9/v1", {"authorization": mine}), 404, "rollout_not_found")
    check_error(await post(other.url + "/v1", {"authorization": mine}), 403, "attribution_conflict")
    disagreeing = {"authorization": mine, "x-lightning-lab-rollout": "r-2"}
    check_error(await post(f"{root}/rollout/r-1/v1", disagreeing), 403, "attribution_conflict")
    two_keys = {"authorization": mine, "x-api-key": other.key}
    check_error(await post(f"{root}/v1", two_keys), 403, "attribution_conflict")
    assert lab.calls("r-1") == lab.calls("r-2") == []


async def test_a_finished_rollout_is_refused_once_and_for_all(lab):
    lab.gateway.close_rollout("r-1")
    lab.gateway.close_rollout("r-1")
    lab.gateway.close_rollout("never-opened")
    answer = await lab.chat()
    check_error(answer, 409, "rollout_finished")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_new_attempt_has_a_new_key_and_keeps_counting(lab):
    await lab.chat()
    again = lab.open("r-1", attempt=2)
    check_error(await lab.chat(), 409, "rollout_finished")
    async with lab.client(again) as client:
        assert (await client.post("/chat/completions", json=chat_body())).status_code == 200
    assert [(call.attempt, call.ordinal) for call in lab.calls()] == [(1, 0), (2, 1)]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_foreign_hosts_are_refused(lab, host):
    async with lab.client() as client:
        answer = await client.post("/chat/completions", json=chat_body(), headers={"host": host})
        check_error(answer, 403, "host_not_allowed")


@pytest.mark.parametrize("host", ["ü.example", "127.0.0.1ü", "\u202e127.0.0.1", "127.0.0.1\u00a0"])
async def test_hosts_in_other_letters_are_refused(lab, host):
    """Clients encode names in ASCII; whoever writes bytes is answered all the same."""
    body = json.dumps(chat_body()).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {lab.access.key}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(lab.gateway.url.rpartition(":")[2]))
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert status.split()[1] == b"403"
    assert lab.calls() == []


async def test_localhost_is_ours(lab):
    async with lab.client() as client:
        answer = await client.post("/chat/completions", json=chat_body(), headers={"host": "LOCALHOST:1234"})
        assert answer.status_code == 200


async def test_keys_are_in_no_record_and_no_log(make_lab, caplog):
    """Of whoever calls: the rollout's own, an earlier attempt's, another rollout's, and what was never a key here."""
    caplog.set_level(logging.DEBUG)
    lab = make_lab(lambda prompt: Say(error=PolicyError("no")) if "fail" in prompt else "yes")
    earlier, other, foreign = lab.access, lab.open("r-2"), "sk-of-somebody-else"
    mine = lab.open("r-1", attempt=2)
    keys = [earlier.key, other.key, foreign, mine.key]
    async with httpx.AsyncClient() as client:
        for key in keys:
            for path in ("chat/completions", "responses", "messages", "completions", "models", "nothing"):
                for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": key}):
                    body = chat_body("fail") | {"input": "x", "prompt": "x", "max_tokens": 9}
                    await client.post(f"{mine.url}/v1/{path}?key={key}", json=body, headers=headers)
    lab.gateway.close_rollout("r-1")
    lab.store.flush()
    assert lab.calls()
    stored = b"".join(path.read_bytes() for path in lab.store.path.parent.iterdir() if path.is_file())
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("lightning_lab"))
    for key in keys:
        assert key.encode() not in stored
        assert key not in logged
        assert key not in repr(lab.calls()) + repr(lab.gateway._grants._by_rollout)


# -- faults of the policy ----------------------------------------------------------------------------------------------


async def test_a_prompt_that_does_not_fit(make_lab):
    lab = make_lab(policy={"context_length": 30})
    error = check_error(await lab.chat("x" * 50), 400, "context_length_exceeded")
    assert error["type"] == "invalid_request_error"
    assert "30" in error["message"]
    assert lab.gateway.faults("r-1") == ["context_overflow"]
    lab.store.flush()
    [event] = lab.store.events(kind="call_error")
    assert event.subject == "r-1"
    assert event.data["outcome"] == "context_overflow"


async def test_a_conversation_that_the_template_cannot_say(lab):
    error = check_error(await lab.chat("UNRENDERABLE"), 400, "render_error")
    assert error["type"] == "invalid_request_error"
    assert lab.gateway.faults("r-1") == []


@pytest.mark.parametrize("text", ["BUG", "UNPARSABLE"])
async def test_a_policy_that_raises_anything_is_a_policy_error(lab, text):
    error = check_error(await lab.chat(text), 500, "policy_error")
    assert "ZeroDivisionError" in error["message"]
    assert lab.gateway.faults("r-1") == ["policy_error"]


@pytest.mark.parametrize("pieces", [0, 3])
@pytest.mark.parametrize("fault", [PolicyError("no GPU"), RuntimeError("cuda"), ContextOverflowError("too long")])
async def test_a_generation_that_fails_is_told_and_recorded(make_lab, pieces, fault):
    lab = make_lab(lambda _: Say("abcdef", error=fault, pieces=pieces))
    answer = await lab.chat()
    overflow = isinstance(fault, ContextOverflowError)
    check_error(answer, *((400, "context_length_exceeded") if overflow else (500, "policy_error")))
    assert answer.headers["x-should-retry"] == "false"
    assert lab.gateway.faults("r-1") == ["context_overflow" if overflow else "policy_error"]
    [call] = lab.calls()
    assert not call.delivered
    assert (call.kind, call.finish_reason) == ("undelivered", "abort")
    assert str(fault) in call.error
    assert lab.policy.decode(call.sampled_ids) == ("abcdef<end>" if pieces else "")
    lab.open("r-1", attempt=2)
    assert lab.gateway.faults("r-1") == []


async def test_one_failing_reply_of_several_fails_the_request(make_lab):
    replies = iter([Say("a", hold=True), Say(error=PolicyError("no"), pieces=0), Say("c", hold=True)])
    lab = make_lab(lambda _: next(replies))
    check_error(await lab.chat(n=3), 500, "policy_error")
    assert lab.policy.running == 0
    assert [call.delivered for call in lab.calls()] == [False] * 3


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/completions"])
async def test_a_fault_after_the_first_byte_is_the_streams_own_error(make_lab, path):
    lab = make_lab(lambda _: Say("abc", hold=True, error=PolicyError("gone")), patience=HASTY)
    body = {**chat_body(), "input": "x", "prompt": "x", "stream": True}
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            lab.policy.release()
    last = json.loads(text.rstrip().rpartition("data: ")[2])
    if path == "/responses":
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"]["message"] == "gone"
    else:
        assert last["error"]["code"] == "policy_error"
    assert "[DONE]" not in text
    assert [call.delivered for call in lab.calls()] == [False]


async def test_the_sdk_raises_what_a_stream_says(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True, error=PolicyError("gone")), patience=HASTY)
    async with openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key) as client:
        with pytest.raises(openai.APIError, match="gone"):
            async for _ in await client.chat.completions.create(**chat_body(), stream=True):
                lab.policy.release()


async def test_a_fault_after_early_headers_of_a_whole_answer_closes_the_connection(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True, error=PolicyError("gone")), patience=HASTY)
    with pytest.raises(httpx.RemoteProtocolError):
        async with lab.client() as client, client.stream("POST", "/chat/completions", json=chat_body()) as answer:
            async for piece in answer.aiter_bytes():
                assert piece.strip() == b""
                lab.policy.release()
    assert [call.delivered for call in lab.calls()] == [False]


async def test_white_space_keeps_a_whole_answer_alive(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True), patience=HASTY)
    async with lab.client() as client, client.stream("POST", "/chat/completions", json=chat_body()) as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if len(text) >= 2:
                lab.policy.release()
    assert text.startswith("  ")
    assert json.loads(text)["choices"][0]["message"]["content"] == "abc"


async def test_a_reply_that_cannot_be_stored_is_not_sent(lab):
    lab.store.close()
    check_error(await lab.chat(), 500, "store_error")


# -- clients that leave ------------------------------------------------------------------------------------------------


async def raw_request(lab: Any, body: bytes, *, length: int | None = None) -> tuple[Any, asyncio.StreamWriter]:
    port = int(lab.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
        + lab.access.key.encode()
        + f"\r\ncontent-length: {length or len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    return reader, writer


async def test_a_client_that_leaves_before_its_body_is_complete(lab):
    _, writer = await raw_request(lab, b'{"model":', length=1000)
    writer.close()
    await writer.wait_closed()
    assert (await lab.chat()).status_code == 200
    assert len(lab.calls()) == 1


@pytest.mark.parametrize(("stream", "length"), [(False, 1), (True, 1), (False, 300_000)])
async def test_a_client_that_leaves_while_the_model_speaks(make_lab, stream, length):
    """Also one whose body was so long that the server stopped reading for a while."""
    lab = make_lab(lambda _: Say("abc", hold=True))
    _, writer = await raw_request(lab, json.dumps(chat_body("x" * length, stream=stream)).encode())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    await asyncio.sleep(0.05)
    writer.close()
    await lab.until(lambda: lab.policy.cancelled == 1)
    await lab.until(lambda: lab.gateway.admission.in_flight == 0)
    [call] = lab.calls()
    assert not call.delivered
    assert call.kind == "undelivered"
    assert "disconnected" in call.error
    assert lab.policy.decode(call.sampled_ids) == "abc<end>"
    assert lab.gateway.faults("r-1") == []


async def test_a_client_that_leaves_after_the_first_byte(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True), patience=HASTY)
    reader, writer = await raw_request(lab, json.dumps(chat_body(stream=True)).encode())
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()
    await lab.until(lambda: lab.policy.cancelled == 1)
    await lab.until(lambda: len(lab.calls()) == 1)
    assert not lab.calls()[0].delivered


async def test_a_reader_that_stops_reading_is_not_delivered_to_and_blocks_no_pause(make_lab):
    lab = make_lab(lambda _: "\x01" * 2_000_000, policy={"context_length": 3_000_000})  # 12 MB as JSON
    _, writer = await raw_request(lab, json.dumps(chat_body(stream=True)).encode())
    await lab.until(lambda: len(lab.calls()) == 1)
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=5)
    assert report.aborted == 0
    lab.gateway.resume()
    assert not lab.calls()[0].delivered
    writer.transport.abort()
    await lab.until(lambda: lab.gateway._grants._by_rollout["r-1"].in_use == 0)
    assert not lab.calls()[0].delivered


async def test_the_end_of_the_rollout_cancels_its_open_calls_only(make_lab):
    lab = make_lab(lambda prompt: Say("abc", hold="hello" in prompt))
    other = lab.open("r-2")
    open_call = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    await asyncio.to_thread(lab.gateway.close_rollout, "r-1")
    assert lab.gateway.admission.in_flight == 0
    check_error(await open_call, 409, "rollout_finished")
    async with lab.client(other) as client:
        assert (await client.post("/chat/completions", json=chat_body("x"))).status_code == 200
    assert [call.delivered for call in lab.calls()] == [False]

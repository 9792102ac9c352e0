"""`VllmPolicy` against recorded answers of a real server: what is asked, what is made of it, what errors mean."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_vllm_recorded import GENERATED, OVERFLOW, PARSED, Recorded

from lightning_lab.gateway.process.policy import CodecPolicy
from lightning_lab.policy.base import (
    Chunk,
    ContextOverflowError,
    LossRow,
    PolicyError,
    PromptError,
    UpdateResult,
    has_engine,
)
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.engines.versions import EngineVersionError
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.errors import EngineDiedError, PublishError
from lightning_lab.records import Floats, Message, Sample, Sampling, Segment

TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
Make = Callable[..., tuple[VllmPolicy, Recorded]]


class Writer:
    """A learner that writes the shipped model's weights, or what a test wants instead."""

    def __init__(self) -> None:
        self.exported = 0
        self.leave_out = False

    def start(self) -> None: ...
    def close(self) -> None: ...

    def update(self, micro_batches: Any, *, loss: str, options: Any, learning_rate: float) -> UpdateResult:
        return UpdateResult(metrics={"loss": 1.0})

    def export(self, directory: Path) -> None:
        self.exported += 1
        if not self.leave_out:
            for file in resolve_model("quickstart").glob("*.safetensors"):
                shutil.copy(file, directory)

    def logprobs(self, samples: Sequence[Sample], *, temperature: float) -> Sequence[Floats]:
        return [np.where(sample.mask, sample.logprobs + np.float32(0.5), np.nan) for sample in samples]

    def save(self, directory: Path) -> None: ...
    def load(self, directory: Path) -> None: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Any] = []

    def build(answers: dict[str, Any] | None = None, *, version: str = "0.32.0", **options: Any) -> Any:
        server = Recorded(tmp_path, answers or {}, version=version, name=f"server-{len(made)}")
        policy = VllmPolicy("quickstart", url=server.url, **options)
        made[:0] = [policy, server]
        return policy, server

    yield build
    for one in made:
        one.close()


async def replied(policy: VllmPolicy, prompt: Sequence[int] = (1, 2, 3), **sampling: Any) -> Chunk:
    ids = np.asarray(prompt, np.int32)
    (chunk,) = [one async for one in policy.generate(ids, Sampling(**sampling), rollout_id="r")]
    return chunk


async def test_a_reply_is_exact_and_tells_the_version_of_each_token(make: Make) -> None:
    policy, server = make()
    chunk = await replied(policy, max_tokens=3, top_k=5, stop=("END",), seed=9)
    assert chunk.ids.tolist() == [16705, 314, 253] and chunk.finish_reason == "length"
    assert chunk.logprobs.tolist() == pytest.approx([-2.177591, -1.622853, -0.786613], abs=1e-5)
    assert chunk.versions.tolist() == [3, 3, 4]
    _, body = server.asked[-1]
    assert body["token_ids"] == [1, 2, 3] and body["cache_salt"] == "version 0" and body["stream"]
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": 5, "max_tokens": 3, "stop": ["END"], "logprobs": 0, "seed": 9}
    assert wanted.items() <= body["sampling_params"].items() and body["sampling_params"]["stop_token_ids"]
    assert has_engine(policy)


async def test_at_temperature_0_a_token_is_certain(make: Make) -> None:
    policy, _ = make()
    assert (await replied(policy, temperature=0.0)).logprobs.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "logprobs"),
    [
        ({"logprobs": None}, []),
        ({"token_ids": [16705, 314]}, []),
        ({"token_ids": [16705, 999, 253]}, []),
    ],
)
async def test_logprobs_that_nobody_can_place_are_not_kept(make: Make, change: Any, logprobs: list[float]) -> None:
    answer = {**GENERATED, "choices": [{**GENERATED["choices"][0], **change}]}
    policy, _ = make({"/inference/v1/generate": answer})
    assert (await replied(policy)).logprobs.tolist() == logprobs


async def test_a_logprob_that_is_no_number_is_nan(make: Make) -> None:
    content = [dict(token) for token in GENERATED["choices"][0]["logprobs"]["content"]]
    content[1]["logprob"] = -9999.0
    answer = {**GENERATED, "choices": [{**GENERATED["choices"][0], "logprobs": {"content": content}}]}
    policy, _ = make({"/inference/v1/generate": answer})
    assert np.isnan((await replied(policy)).logprobs).tolist() == [False, True, False]


async def test_errors_have_names(make: Make) -> None:
    policy, server = make()
    policy.start()
    with pytest.raises(PromptError, match="empty"):
        await replied(policy, ())
    with pytest.raises(ContextOverflowError, match="Shorten the conversation"):
        await replied(policy, [1] * (policy.context_length + 1))
    server.answers["/inference/v1/generate"] = (400, OVERFLOW)
    with pytest.raises(ContextOverflowError, match="maximum model length of 4096"):
        await replied(policy)
    server.answers["/inference/v1/generate"] = (400, {"error": {"message": "Token id 99999999 is out of vocabulary"}})
    with pytest.raises(PromptError, match="out of vocabulary"):
        await replied(policy)
    server.answers["/inference/v1/generate"] = (404, {"detail": "Not Found"})
    with pytest.raises(PolicyError, match="--enable-scale-out"):
        await replied(policy)
    for strange in ({}, {"choices": []}, {"choices": [{"token_ids": "x"}]}):
        server.answers["/inference/v1/generate"] = strange
        with pytest.raises(PolicyError, match="unknown form"):
            await replied(policy)
    server.answers["/inference/v1/generate"] = (200, ConnectionResetError)
    with pytest.raises(EngineDiedError, match="broke off"):
        await replied(policy)


def test_another_version_of_vllm_is_refused(make: Make) -> None:
    policy, _ = make(version="0.99.1")
    with pytest.raises(EngineVersionError, match=r"version 0\.99\.1 in The vLLM server .* works with >=0\.32,<0\.34"):
        policy.start()


def test_a_server_that_a_killed_lab_left_paused_is_not_waited_for(make: Make) -> None:
    policy, server = make({"/is_paused": {"is_paused": True}})
    with pytest.raises(PolicyError, match=r"is paused.*POST /wake_up, /resume"):
        policy.start()
    server.answers["/is_paused"] = {"is_paused": False}
    policy.start()


def test_nobody_listens(tmp_path: Path) -> None:
    policy = VllmPolicy("quickstart", url=f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(EngineDiedError, match=r"nobody\.sock broke off while it answered /version"):
        policy.start()


def test_a_model_without_a_tokenizer_is_refused_before_anything_starts(tmp_path: Path) -> None:
    shutil.copy(resolve_model("quickstart") / "config.json", tmp_path)
    with pytest.raises(PolicyError, match=r"has no tokenizer\.json"):
        VllmPolicy(tmp_path).start()


def test_the_server_parses_where_its_parser_is_named(make: Make) -> None:
    rendered = {"token_ids": [4, 5], "sampling_params": {}}
    policy, server = make(
        {"/v1/chat/completions/render": rendered, "/v1/chat/completions/derender": PARSED}, tool_parser="hermes"
    )
    call = {"id": "c1", "name": "calc", "arguments": "{}"}
    conversation = [
        Message(role="user", content="3+4?"),
        Message(role="assistant", reasoning="hm", tool_calls=(call,)),
        Message(role="tool", content="7", tool_call_id="c1"),
    ]
    assert policy.render(conversation, [TOOL]).ids.tolist() == [4, 5]
    _, asked = server.asked[-1]
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "tool"]
    assert asked["messages"][1]["tool_calls"][0]["function"] == {"name": "calc", "arguments": "{}"}
    assert asked["messages"][2]["tool_call_id"] == "c1" and asked["tools"] == [TOOL]
    end = np.array([policy.encode("<|im_end|>")[0]], np.int32)
    message = policy.parse(np.concatenate([np.array([7, 8], np.int32), end]), [TOOL])
    assert message == Message(
        role="assistant",
        reasoning="Three and four.",
        tool_calls=({"name": "calc", "arguments": '{"expr": "3+4"}'},),
    )
    _, asked = server.asked[-1]
    assert asked["generate_response"]["choices"][0]["token_ids"] == [7, 8]
    assert asked["chat_request"]["tools"] == [TOOL]


def test_the_lab_renders_and_parses_where_no_parser_is_named(make: Make) -> None:
    policy, server = make()
    ids = policy.render([Message(role="user", content="3+4?")], []).ids
    assert "3+4?" in policy.decode(ids) and policy.parse(policy.encode("seven")).content == "seven"
    assert not [path for path in server.paths() if "render" in path]


def test_conversations_are_rendered_and_parsed_beside_a_gateway_in_its_own_process(make: Make) -> None:
    """With the codec that travels there; where the servers parse, there is none and they are asked."""
    policy, _ = make()
    there = CodecPolicy(pickle.loads(pickle.dumps(policy.codec)), policy.name, policy.context_length, True, True)
    conversation = [Message(role="user", content="3+4?")]
    ids = policy.render(conversation, [TOOL]).ids
    assert there.render(conversation, [TOOL]).ids.tolist() == ids.tolist()
    said = np.append(policy.encode("seven"), policy.encode("<|im_end|>")).astype(np.int32)
    assert there.parse(said, [TOOL]) == policy.parse(said, [TOOL]) == Message(role="assistant", content="seven")
    assert there.decode(ids) == policy.decode(ids)
    assert there.encode("raw").tolist() == policy.encode("raw").tolist()
    served, _ = make(tool_parser="hermes")
    assert served.codec is None


def row(prompt: int = 4) -> LossRow:
    length = prompt + 2
    sample = Sample(
        rollout_id="r",
        ids=np.arange(1, length + 1, dtype=np.int32),
        mask=np.arange(length) >= prompt,
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        segments=(Segment(call_id="c", start=prompt, stop=length),),
    )
    return LossRow(sample=sample, advantage=1.0, token_weight=1.0)


def test_a_publish_changes_weights_version_and_cache_while_nothing_is_sampled(make: Make) -> None:
    policy, server = make(learner=Writer())
    policy.start()
    policy.update([[row()]], loss="ppo_clip", options={}, learning_rate=0.1)
    server.asked.clear()
    told = policy.publish(5)
    assert server.paths() == [
        "/pause?mode=keep",
        "/collective_rpc",
        "/update_weight_version",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
        "/inference/v1/generate",
    ]
    directory = Path(server.asked[1][1]["kwargs"]["weights_path"])
    assert {"config.json", "tokenizer.json"} <= {file.name for file in directory.iterdir()}
    assert server.asked[2][1] == {"new_version": "5"} and policy.version == 5
    assert told["parity_logprob_max"] == pytest.approx(0.5) and told["publish_s"] >= told["pause_s"] > 0
    policy.publish(6)
    assert not directory.exists()  # nothing serves it any more
    with pytest.raises(PolicyError, match="Version 6 was used already"):
        policy.publish(6)


def test_what_was_published_to_a_server_before_keeps_its_version(make: Make) -> None:
    policy, server = make(learner=Writer(), answers={"/weight_info": {"weight_version": "7"}})
    policy.start()
    assert policy.version == 7 and "/collective_rpc" not in server.paths()
    with pytest.raises(PolicyError, match="Version 7 was used already"):
        policy.publish(7)
    policy.publish(8)
    assert policy.version == 8


def test_servers_that_sleep_during_an_update_wake_to_be_given_weights(make: Make) -> None:
    policy, server = make(learner=Writer(), collocated=True)
    policy.start()
    server.asked.clear()
    policy.update([[row()]], loss="ppo_clip", options={}, learning_rate=0.1)
    policy.publish(1)
    order = [path for path in server.paths() if path != "/inference/v1/generate"]
    assert order[0] == "/sleep?level=1&mode=keep"
    assert order.index("/wake_up") < order.index("/collective_rpc") < order.index("/resume")


async def test_a_publish_that_a_server_refuses_is_undone(tmp_path: Path) -> None:
    """The other goes back to the earlier weights; nobody is sent to the one that may hold a mixture."""
    servers = [Recorded(tmp_path, {}, name=name) for name in ("one", "two")]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers], learner=Writer())
    try:
        policy.publish(1)
        refusal = (500, {"error": {"message": "Worker failed with error 'no space'"}})
        servers[0].answers["/collective_rpc"] = refusal
        servers[1].asked.clear()
        with pytest.raises(PublishError, match=r"Version 2 was not published, 1 samples on.*no space"):
            policy.publish(2)
        reloads = [body["kwargs"]["weights_path"] for path, body in servers[1].asked if path == "/collective_rpc"]
        assert [Path(path).name for path in reloads] == ["v2", "v1"] and servers[1].paths()[-1] == "/resume"
        assert policy.version == 1 and not Path(reloads[0]).exists()  # noqa: ASYNC240
        one, two = policy.replicas
        assert one.failure is not None and "mixture" in str(one.failure) and two.failure is None
        assert (await replied_of(policy, "a")).ids.tolist() == [16705, 314, 253]
    finally:
        policy.close()
        for server in servers:
            server.close()


def test_weights_that_somebody_else_published_cannot_be_put_back(tmp_path: Path) -> None:
    """There are no files of them here, and the model's own must not be sampled with under their number."""
    told = {"/weight_info": {"weight_version": "7"}}
    servers = [Recorded(tmp_path, told, name=name) for name in ("one", "two")]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers], learner=Writer())
    try:
        policy.start()
        servers[0].answers["/collective_rpc"] = (500, {"error": {"message": "Worker failed with error 'no space'"}})
        with pytest.raises(PublishError, match="Version 8 was not published"):
            policy.publish(8)
        assert servers[1].paths().count("/collective_rpc") == 1
        assert all("others than before" in str(replica.failure) for replica in policy.replicas)
    finally:
        policy.close()
        for server in servers:
            server.close()


def test_weights_of_another_model_reach_no_server(make: Make) -> None:
    learner = Writer()
    policy, server = make(learner=learner)
    policy.start()
    server.asked.clear()
    learner.leave_out = True
    with pytest.raises(PublishError, match="Version 1 was not published, 0 samples on: The learner gave 0 tensors"):
        policy.publish(1)
    assert not server.asked and policy.version == 0


def test_a_checkpoint_goes_back_to_the_servers_under_a_version_that_never_falls(make: Make, tmp_path: Path) -> None:
    policy, server = make(learner=Writer())
    policy.publish(4)
    policy.save(tmp_path)
    policy.publish(5)
    server.asked.clear()
    policy.load(tmp_path)
    assert policy.version == 5 and "/collective_rpc" in server.paths()
    again, other = make(learner=Writer())
    again.load(tmp_path)
    assert again.version == 4 and ("/update_weight_version", {"new_version": "4"}) in other.asked


def test_a_policy_without_a_learner_only_answers(make: Make) -> None:
    policy, _ = make()
    assert not policy.can_learn
    with pytest.raises(PolicyError, match="has no learner"):
        policy.publish(1)


async def test_a_rollout_stays_with_its_server_until_that_is_gone(tmp_path: Path) -> None:
    servers = [Recorded(tmp_path, {}, name=name) for name in ("one", "two")]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers])
    try:
        policy.start()
        one, two = policy.replicas
        for server in servers:
            server.asked.clear()
        one.open_calls = 1
        await replied_of(policy, "a")  # to the one with less to do
        one.open_calls, two.open_calls = 0, 1
        await replied_of(policy, "a")  # which holds its prefix now
        await replied_of(policy, "b")
        assert [len(server.asked) for server in servers] == [1, 2]
        servers[0].answers["/inference/v1/generate"] = (200, ConnectionResetError)
        with pytest.raises(EngineDiedError, match="one"):
            await replied_of(policy, "b")
        assert not one.ready and two.ready
        assert (await replied_of(policy, "b")).ids.tolist() == [16705, 314, 253]
    finally:
        policy.close()
        for server in servers:
            server.close()


def test_servers_do_not_stand_still_for_one_that_cannot(tmp_path: Path) -> None:
    servers = [Recorded(tmp_path, {}, name=name) for name in ("one", "two")]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers])
    try:
        policy.start()
        servers[0].answers["/pause"] = (500, {"error": {"message": "It is busy."}})
        with pytest.raises(PolicyError, match="It is busy"):
            policy.freeze()
        assert servers[1].paths()[-2:] == ["/pause?mode=keep", "/resume"]
    finally:
        policy.close()
        for server in servers:
            server.close()


async def replied_of(policy: VllmPolicy, rollout_id: str) -> Chunk:
    (chunk,) = [one async for one in policy.generate(np.array([1], np.int32), Sampling(), rollout_id=rollout_id)]
    return chunk

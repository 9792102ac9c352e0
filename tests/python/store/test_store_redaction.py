"""Secrets: found by rules, replaced in texts, taken out of ids and of exported files; the store keeps them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import call, rollout, run

from lightning_lab.records import Break, BreakCause, Ids, Message, Sample, Segment
from lightning_lab.store import SECRETS, Redaction, Store, export_run, open_run
from lightning_lab.store.hidden_ids import hidden, without

KEY = "sk-proj-" + "Ab1" * 12
"""What must never leave the store."""

EXAMPLES = {
    "anthropic_key": "sk-ant-api03-" + "x" * 20,
    "openai_key": KEY,
    "lab_key": "ll-" + "k" * 43,
    "github_token": "ghp_" + "a1" * 18,
    "gitlab_token": "glpat-" + "a1" * 10,
    "aws_key": "AKIAIOSFODNN7EXAMPLE",
    "google_key": "AIza" + "b" * 35,
    "huggingface_token": "hf_" + "c" * 34,
    "slack_token": "xoxb-123456789012-abcdef",
    "package_token": "pypi-" + "d" * 30,
    "jwt": "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK",
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize(("rule", "secret"), EXAMPLES.items())
def test_common_secrets_are_found_by_name(rule: str, secret: str) -> None:
    assert Redaction().text(f"before {secret} after") == f"before [redacted {rule}] after"
    assert Redaction().secrets({"a": [1, {"b": f"x {secret}"}]}) == {secret}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:hunter2@db/x", "postgres://me:[redacted url_password]@db/x"),
        ("Authorization: Bearer abcdefghijklmnop.q", "Authorization: Bearer [redacted bearer]"),
        ("PASSWORD=correct-horse-1", "PASSWORD=[redacted named_secret]"),
        ('{"api_key": "abcdefgh12345"}', '{"api_key": "[redacted named_secret]"}'),
        ('{\\"api_key\\": \\"abcdefgh12345\\"}', '{\\"api_key\\": \\"[redacted named_secret]\\"}'),
    ],
)
def test_only_the_secret_itself_is_hidden(text: str, shown: str) -> None:
    assert Redaction().text(text) == shown
    assert Redaction().text(shown) == shown


def test_ordinary_text_stays() -> None:
    for text in (
        "pip install sk-learn; sk-1",
        'api_key = os.environ["OPENAI_API_KEY"]',
        "password: str = field(default='')",
        "the secret: patience",
        "https://example.org/a:b@c",
        "ll-short ghp_short eyJ.x.y AKIA",
    ):
        assert Redaction().text(text) == text


def test_a_key_names_its_value() -> None:
    value = {"settings": {"password": "letmein123", "n": 8}, "list": ["password", "letmein123"]}
    shown = {"settings": {"password": "[redacted named_secret]", "n": 8}, "list": ["password", "letmein123"]}
    assert Redaction().value(value) == shown


def test_rules_are_chosen_and_checked() -> None:
    badge = Redaction({"badge": r"EMP-\d{4}", "word": r"(?i)code (?P<secret>\w+)"})
    assert badge.text(f"EMP-1234 Code red {KEY}") == f"[redacted badge] Code [redacted word] {KEY}"
    assert Redaction({}).text(KEY) == KEY
    with pytest.raises(ValueError, match="'broken' is no regular expression"):
        Redaction({"broken": "("})
    with pytest.raises(ValueError, match="matches nothing at all"):
        Redaction({"empty": "x*"})


@given(st.text(), st.sampled_from(sorted(EXAMPLES.values())), st.text())
def test_nothing_is_left_to_find(before: str, secret: str, after: str) -> None:
    redaction = Redaction()
    shown = redaction.text(f"{before} {secret} {after}")
    assert secret not in shown
    assert redaction.text(shown) == shown


@pytest.mark.parametrize("piece", ["a", "a-", "sk-", "eyJ", "://", "://a:", "password=", "-----BEGIN PRIVATE KEY-----"])
def test_long_lines_full_of_beginnings(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    assert len(Redaction().text(text)) > 0


# -- ids ---------------------------------------------------------------------------------------------------------------


class Pieces:
    """A tokenizer whose tokens are any pieces of UTF-8, as they come."""

    def __init__(self) -> None:
        self.words: dict[int, bytes] = {}
        self._known: dict[bytes, int] = {}

    def encode(self, text: str, seed: int) -> Ids:
        data, rng, ids, at = text.encode(), random.Random(seed), [], 0
        while at < len(data):
            piece = data[at : at + rng.randint(1, 6)]
            id_ = self._known.setdefault(piece, len(self._known))
            self.words[id_] = piece
            ids.append(id_)
            at += len(piece)
        return np.array(ids, np.int32)

    def decode(self, ids: Ids) -> str:
        return b"".join(self.words[int(id_)] for id_ in ids).decode(errors="replace")


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 9), st.integers(0, 40))
def test_every_token_that_says_a_character_of_a_secret_is_hidden(before, after, seed, often) -> None:
    pieces = Pieces()
    text = (before + " ") * (1 + often) + KEY + " " + after
    ids = pieces.encode(text, seed)
    mask = hidden(ids, set(), Redaction(), pieces.decode)
    start = len(((before + " ") * (1 + often)).encode())
    ends = np.cumsum([len(pieces.words[int(id_)]) for id_ in ids])
    says = (ends > start) & (ends - [len(pieces.words[int(id_)]) for id_ in ids] < start + len(KEY))
    assert mask[says].all()
    if (before + after).isascii() and not Redaction().find((before + " ") * (1 + often) + " " + after):
        assert np.array_equal(mask, says), "neighbours that say nothing of it stay"


def test_what_cannot_be_found_hides_everything() -> None:
    pieces = Pieces()
    ids = pieces.encode("nothing to see", 1)
    assert not hidden(ids, set(), Redaction(), pieces.decode).any()
    assert hidden(ids, {"another word"}, Redaction(), pieces.decode).all()
    assert hidden(ids, {"nothing"}, Redaction(), pieces.decode).sum() < len(ids)
    assert hidden(ids, {"nothing"}, Redaction(), None).all()
    assert not hidden(ids, set(), Redaction(), None).any()


# -- exports -----------------------------------------------------------------------------------------------------------


def conversation(store: Store, pieces: Pieces, *, half: int) -> None:
    """Two calls; the key is in the second one's text, but ``half`` of it was said by the first."""
    said, asked = f"I think it is {KEY[:half]}", f"{KEY[half:]} was it"
    prompt = pieces.encode("what is it? ", 1)
    sampled = pieces.encode(said, 2)
    user, reply = Message(role="user", content="what is it? "), Message(role="assistant", content=said)
    store.put_call(call("c-0", prompt_ids=prompt, sampled_ids=sampled, messages=(user,), reply=reply))
    more = np.concatenate([prompt, sampled, pieces.encode(asked, 3)])
    whole = (user, Message(role="user", content=f"{said}{asked}"))
    answer = pieces.encode("yes: " + KEY, 4)
    last = Message(role="assistant", content="yes: " + KEY, tool_calls=({"id": "i", "name": "n", "arguments": KEY},))
    store.put_call(call("c-1", ordinal=1, prompt_ids=more, sampled_ids=answer, messages=whole, reply=last))
    ids = np.concatenate([more, answer])
    mask = np.arange(len(ids)) >= len(more)
    zeros = np.zeros(len(ids), np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    segments = (Segment(call_id="c-1", start=len(more), stop=len(ids)),)
    row = Sample(rollout_id="r-1", ids=ids, mask=mask, logprobs=zeros, versions=versions, segments=segments)
    where = {"call_id": "c-1", "previous_call_id": "c-0", "index": 1, "before": f"{KEY[5:]} x", "after": f"x {KEY[:9]}"}
    store.put_samples("run", 0, [row], [Break(rollout_id="r-1", cause=BreakCause.EDITED, **where)])


@pytest.fixture
def secretive(store: Store) -> Store:
    store.put_run(run("run", settings={"password": "letmein123"}, reason=f"failed with {KEY}"))
    store.put_rollout(rollout("r-1", run_id="run"))
    store.put_rollout(rollout("r-1", "failed", run_id="run", error=f"Error: {KEY}", stdout=KEY, verdict=KEY))
    store.put_event("call_error", "run", "r-1", {"message": f"the key {KEY} is wrong"})
    return store


@pytest.mark.parametrize("half", [0, 3, 20, len(KEY)])
def test_an_export_holds_no_secret_in_text_or_ids(secretive: Store, tmp_path: Path, half: int) -> None:
    pieces = Pieces()
    conversation(secretive, pieces, half=half)
    secretive.flush()
    manifest = {"git": {"diff": f"+ {KEY}"}}
    path = export_run(secretive, "run", tmp_path / "a.llab", manifest=manifest, decode=pieces.decode)
    assert KEY.encode() not in path.read_bytes()
    pieces.words[-1] = b"?"
    with open_run(path) as opened:
        for mine, theirs in zip(opened.calls("r-1"), secretive.calls("r-1"), strict=True):
            text = pieces.decode(np.concatenate([mine.prompt_ids, mine.sampled_ids]))
            assert not any(KEY[at : at + 8] in text for at in range(len(KEY) - 8))
            assert "what is it" in text
            assert mine.prompt_ids.shape == theirs.prompt_ids.shape
            assert mine.logprobs.tobytes() == theirs.logprobs.tobytes()
            kept = mine.sampled_ids != -1
            assert np.array_equal(mine.sampled_ids[kept], theirs.sampled_ids[kept])
        [sample] = opened.samples("r-1")
        assert KEY[:9] not in pieces.decode(sample.ids)
        [found] = opened.breaks(run_id="run")
        assert (found.before, found.after) == ("[redacted] x", "x [redacted]")
        assert opened.run("run").settings["password"] == "[redacted named_secret]"
        assert opened.rollout("r-1").error == "Error: [redacted openai_key]"
        assert opened.manifest()["git"] == {"diff": "+ [redacted openai_key]"}
        again = export_run(opened, "run", tmp_path / "b.llab", manifest=opened.manifest(), decode=pieces.decode)
        assert KEY.encode() not in again.read_bytes()
    assert secretive.rollout("r-1").error == f"Error: {KEY}", "the store keeps what was said"
    assert KEY in secretive.calls("r-1")[1].reply.content


def test_without_a_decoder_the_ids_of_the_conversation_are_left_out(secretive: Store, tmp_path: Path) -> None:
    pieces = Pieces()
    conversation(secretive, pieces, half=5)
    harmless = pieces.encode("harmless", 1)
    secretive.put_call(
        call("c-9", attempt=2, prompt_ids=harmless, messages=(Message(role="user", content="harmless"),))
    )
    secretive.flush()
    with open_run(export_run(secretive, "run", tmp_path / "a.llab")) as opened:
        *talk, other = opened.calls("r-1")
        assert all((one.prompt_ids == -1).all() for one in talk)
        assert (talk[1].sampled_ids == -1).all()
        assert np.array_equal(other.prompt_ids, harmless)
        assert (opened.samples("r-1")[0].ids == -1).all()
    with open_run(export_run(secretive, "run", tmp_path / "b.llab", vocabulary=pieces.words)) as opened:
        assert (opened.calls("r-1")[0].prompt_ids != -1).all(), "a vocabulary is as good"
        assert -1 not in opened.vocabulary()


def test_rules_of_the_lab_are_used(secretive: Store, tmp_path: Path) -> None:
    secretive.flush()
    path = export_run(secretive, "run", tmp_path / "a.llab", redaction=Redaction({}))
    assert KEY.encode() in path.read_bytes()
    only = {**SECRETS, "error": "Error"}
    with open_run(export_run(secretive, "run", tmp_path / "b.llab", redaction=Redaction(only))) as opened:
        assert opened.rollout("r-1").error == "[redacted error]: [redacted openai_key]"


def test_ids_that_were_taken_out_stay_out() -> None:
    ids = np.array([5, -1, 6], np.int32)
    mask = hidden(ids, set(), Redaction(), lambda some: "x" * len(some))
    assert np.array_equal(without(ids, mask), ids)

"""Contracts 1–3 as properties, on random call trees with coincidences, twins, gaps and races."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples_builders import assistant, make_call, tool_call, user

from lightning_lab.records import Call, Sample
from lightning_lab.samples import build_samples, cut, delivered_calls, trained_tokens

ids = st.integers(0, 2)  # few letters, so that prefixes coincide by chance


@st.composite
def call_lists(draw: st.DrawFn) -> list[Call]:
    calls: list[Call] = []
    for ordinal in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["root", "continue", "twin", "mutate"])) if calls else "root"
        other = draw(st.sampled_from(calls)) if calls else None
        prompt = draw(st.lists(ids, min_size=0 if draw(st.integers(0, 9)) == 0 else 1, max_size=4))
        if other is not None and kind != "root":
            base = [*other.prompt_ids.tolist(), *other.sampled_ids.tolist()]
            if kind == "mutate" and base:
                base[draw(st.integers(0, len(base) - 1))] = draw(st.integers(0, 2))
            prompt = other.prompt_ids.tolist() if kind == "twin" else [*base, *prompt]
        sampled = draw(st.lists(ids, min_size=0, max_size=3))
        call = make_call(ordinal, prompt, sampled, finished_at=ordinal + draw(st.sampled_from([0.0, 0.5, 1.0, 2.5])))
        calls.append(_damage(draw, call))
    return calls


def _damage(draw: st.DrawFn, call: Call) -> Call:
    match draw(st.integers(0, 12)):
        case 0:
            return replace(call, delivered=False)
        case 1 if len(call.sampled_ids):
            holed = call.logprobs.copy()
            holed[draw(st.integers(0, len(holed) - 1))] = draw(st.sampled_from([np.nan, -np.inf, np.inf]))
            return replace(call, logprobs=holed)
        case 2 if len(call.sampled_ids):
            return replace(call, logprobs=call.logprobs[:-1])
        case 3 if len(call.sampled_ids):
            missing = call.sampled_ids.copy()
            missing[draw(st.integers(0, len(missing) - 1))] = -1
            return replace(call, sampled_ids=missing)
        case 4 if len(call.prompt_ids):
            missing = call.prompt_ids.copy()
            missing[draw(st.integers(0, len(missing) - 1))] = -1
            return replace(call, prompt_ids=missing)
    return call


def _usable(call: Call) -> int:
    """Straight from contract 2, by a Python loop."""
    if not len(call.prompt_ids) or -1 in call.prompt_ids.tolist():
        return 0
    sampled = call.sampled_ids.tolist()
    return sampled.index(-1) if -1 in sampled else len(sampled)


def _trainable(call: Call) -> set[int]:
    if not len(call.sampled_ids) == len(call.logprobs) == len(call.versions):
        return set()
    return {i for i in range(_usable(call)) if np.isfinite(call.logprobs[i])}


@given(call_lists())
@settings(max_examples=400, deadline=None)
def test_every_sampled_token_trains_once_or_is_masked_by_name(calls: list[Call]) -> None:
    samples = build_samples(calls).samples
    by_id = {call.id: call for call in calls}
    trained: Counter[tuple[str, int]] = Counter()
    for sample in samples:
        for segment in sample.segments:
            hits = np.flatnonzero(sample.mask[segment.start : segment.stop])
            trained.update((segment.call_id, int(position)) for position in hits)
        covered = sum(trained_tokens_in(sample, segment.start, segment.stop) for segment in sample.segments)
        assert covered == trained_tokens(sample), "nothing outside a call's reply may train"
    delivered = [call for call in calls if call.delivered]
    assert set(trained) == {(call.id, position) for call in delivered for position in _trainable(call)}
    assert set(trained.values()) <= {1}
    masked = sum(count for sample in samples for reason, count in sample.masked.items() if reason != "shared")
    assert masked + len(trained) == sum(len(call.sampled_ids) for call in delivered)
    assert all(by_id[segment.call_id].delivered for sample in samples for segment in sample.segments)


def trained_tokens_in(sample: Sample, start: int, stop: int) -> int:
    return int(sample.mask[start:stop].sum())


@given(call_lists())
@settings(max_examples=300, deadline=None)
def test_samples_hold_exact_tokens(calls: list[Call]) -> None:
    by_id = {call.id: call for call in calls}
    for sample in build_samples(calls).samples:
        assert len(sample.ids) == len(sample.mask) == len(sample.logprobs) == len(sample.versions)
        assert not sample.logprobs[~sample.mask].any()
        assert (sample.versions[~sample.mask] == -1).all()
        assert (sample.ids >= 0).all()
        for segment in sample.segments:
            call = by_id[segment.call_id]
            if not _usable(call):
                continue
            mask = sample.mask[segment.start : segment.stop]
            usable = slice(0, segment.stop - segment.start)
            assert sample.ids[: segment.start].tolist() == call.prompt_ids.tolist()
            assert sample.ids[segment.start : segment.stop].tolist() == call.sampled_ids[usable].tolist()
            if mask.any():
                assert (
                    sample.logprobs[segment.start : segment.stop][mask].tolist() == call.logprobs[usable][mask].tolist()
                )
                assert (
                    sample.versions[segment.start : segment.stop][mask].tolist() == call.versions[usable][mask].tolist()
                )


@given(call_lists(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_order_in_which_calls_are_given_does_not_matter(calls: list[Call], rng: random.Random) -> None:
    shuffled = calls.copy()
    rng.shuffle(shuffled)
    assert [_shape(s) for s in build_samples(calls).samples] == [_shape(s) for s in build_samples(shuffled).samples]
    assert build_samples(calls).breaks == build_samples(shuffled).breaks


def _shape(sample: Sample) -> tuple[object, ...]:
    return sample.ids.tolist(), sample.mask.tolist(), sample.segments, sample.masked


@given(call_lists())
@settings(max_examples=300, deadline=None)
def test_parents_are_those_of_the_rule(calls: list[Call]) -> None:
    delivered = [call for call in delivered_calls(calls) if len(call.sampled_ids)]
    expected = {call.id: _oracle_parent(call, delivered) for call in delivered}
    for sample in build_samples(calls).samples:
        path = [segment.call_id for segment in sample.segments]
        assert [None, *path[:-1]] == [expected[call_id] for call_id in path]


def _oracle_parent(call: Call, calls: list[Call]) -> str | None:
    """Contract 1 with lists; these calls have no minted ids and one thread."""
    prompt = call.prompt_ids.tolist()
    if -1 in prompt:
        return None
    best: tuple[int, float, int, str] | None = None
    for other in calls:
        whole = [*other.prompt_ids.tolist(), *other.sampled_ids.tolist()]
        known = len(other.prompt_ids) > 0 and -1 not in whole
        if other is not call and known and other.finished_at <= call.arrived_at and prompt[: len(whole)] == whole:
            key = (len(whole), other.finished_at, other.ordinal, other.id)
            best = key if best is None else max(best, key)
    return best[3] if best else None


@given(call_lists(), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_a_cut_drops_whole_calls_and_counts_them(calls: list[Call], limit: int) -> None:
    for sample in build_samples(calls).samples:
        short = cut(sample, limit)
        assert len(short.ids) <= limit
        assert trained_tokens(short) + short.masked.get("over_budget", 0) == trained_tokens(sample)
        assert short.segments == tuple(s for s in sample.segments if s.stop <= limit) or short is sample
        assert short.ids.tolist() == sample.ids[: len(short.ids)].tolist()
        if len(sample.ids) <= limit:
            assert short is sample


def test_identical_twins_stay_two_calls() -> None:
    twins = [make_call(0, [1, 2], [3]), make_call(1, [1, 2], [3])]
    samples = build_samples(twins).samples
    assert [s.segments[0].call_id for s in samples] == ["c0", "c1"]
    assert all(s.mask.tolist() == [False, False, True] for s in samples)


def test_a_shared_prefix_trains_in_the_first_completed_leaf() -> None:
    root = make_call(0, [1], [2])
    slow = make_call(1, [1, 2, 5], [6], finished_at=9.0)
    quick = make_call(2, [1, 2, 7], [8], finished_at=3.0)
    first, second = build_samples([root, slow, quick]).samples
    assert first.ids.tolist() == [1, 2, 7, 8] and first.mask.tolist() == [False, True, False, True]
    assert second.ids.tolist() == [1, 2, 5, 6] and second.mask.tolist() == [False, False, False, True]
    assert second.masked == {"shared": 1}


def test_a_call_that_had_not_completed_is_no_parent() -> None:
    early = make_call(0, [1], [2], finished_at=5.0)
    late = make_call(1, [1, 2, 3], [4])
    assert len(build_samples([early, late]).samples) == 2


@pytest.mark.parametrize(
    ("changes", "parent"),
    [
        ({}, "c1"),  # the latest completed
        ({"thread": "sub"}, "c0"),  # the same thread goes before it
        ({"minted_ids": ("mint",)}, "c0"),  # and an echo of minted ids before that
    ],
)
def test_ties_between_equal_parents(changes: dict[str, object], parent: str) -> None:
    first = make_call(0, [1], [2], **changes)
    second = make_call(1, [1], [2])
    echo = (user("hi"), assistant(tool_calls=(tool_call("{}", call_id="mint"),)))
    child = make_call(2, [1, 2, 3], [4], messages=echo, thread=str(changes.get("thread", "main")))
    joined = next(s for s in build_samples([first, second, child]).samples if len(s.segments) == 2)
    assert joined.segments[0].call_id == parent


def test_an_echoed_minted_id_proves_delivery() -> None:
    cut_off = make_call(0, [1], [2], delivered=False, minted_ids=("call_7",))
    lost = make_call(1, [1], [3], delivered=False, minted_ids=("call_8",))
    echo = (user("hi"), assistant(tool_calls=(tool_call("{}", call_id="call_7"),)))
    later = make_call(2, [1, 2, 5], [6], messages=echo)
    assert [call.id for call in delivered_calls([later, lost, cut_off])] == ["c0", "c2"]
    (sample,) = build_samples([cut_off, lost, later]).samples
    assert sample.mask.tolist() == [False, True, False, True]


def test_attempts_never_mix() -> None:
    with pytest.raises(ValueError, match="attempts never mix"):
        build_samples([make_call(0, [1], [2]), make_call(1, [1, 2], [3], attempt=2)])


def test_no_calls_no_samples() -> None:
    assert build_samples([]).samples == [] and build_samples([]).breaks == []


def test_a_limit_below_one_is_refused() -> None:
    (sample,) = build_samples([make_call(0, [1], [2])]).samples
    with pytest.raises(ValueError, match="max_tokens is 0"):
        cut(sample, 0)

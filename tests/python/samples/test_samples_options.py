"""Merge rules, filters by class of call, and bad input."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples_builders import make_call
from test_samples_forest import call_lists

from lightning_lab.records import Call
from lightning_lab.samples import CALL_KINDS, MERGES, build_samples, trained_tokens


def _trained(calls: list[Call], **options: object) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for sample in build_samples(calls, **options).samples:  # type: ignore[arg-type]
        for segment in sample.segments:
            hits = np.flatnonzero(sample.mask[segment.start : segment.stop])
            found.update((segment.call_id, int(position)) for position in hits)
    return found


@given(call_lists())
@settings(max_examples=150, deadline=None)
def test_every_rule_trains_the_same_tokens_once(calls: list[Call]) -> None:
    forest = _trained(calls)
    assert set(forest.values()) <= {1}
    assert all(_trained(calls, merge=rule) == forest for rule in MERGES)
    breaks = [build_samples(calls, merge=rule).breaks for rule in MERGES]
    assert breaks[0] == breaks[1] == breaks[2]


def test_the_rules_differ_where_agents_take_turns() -> None:
    a1, b1 = make_call(0, [1, 11], [12]), make_call(1, [2, 21], [22])
    a2, b2 = make_call(2, [1, 11, 12, 13], [14]), make_call(3, [2, 21, 22, 23], [24])
    a3 = make_call(4, [1, 11, 12, 13, 14], [15])
    count = {rule: len(build_samples([a1, b1, a2, b2, a3], merge=rule).samples) for rule in MERGES}
    assert count == {"forest": 2, "linear": 5, "none": 5}
    count = {rule: len(build_samples([a1, a2, a3, b1, b2], merge=rule).samples) for rule in MERGES}
    assert count == {"forest": 2, "linear": 5, "none": 5}, "they come in order of arrival, whatever order is given"
    alone = [make_call(0, [1], [2]), make_call(1, [1, 2, 3], [4]), make_call(2, [7], [8])]
    assert {rule: len(build_samples(alone, merge=rule).samples) for rule in MERGES} == {
        "forest": 2, "linear": 2, "none": 3,
    }  # fmt: skip


@given(call_lists(), st.sets(st.sampled_from(CALL_KINDS)))
@settings(max_examples=150, deadline=None)
def test_a_filter_masks_by_name_and_moves_nothing_else(calls: list[Call], kinds: set[str]) -> None:
    classed = [replace(call, kind=CALL_KINDS[i % len(CALL_KINDS)]) for i, call in enumerate(calls)]
    kind_of = {call.id: call.kind for call in classed}
    everything = build_samples(classed).samples
    filtered = build_samples(classed, kinds=kinds).samples
    for one, other in zip(everything, filtered, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.segments == other.segments
        assert trained_tokens(other) == sum(
            int(one.mask[s.start : s.stop].sum()) for s in one.segments if kind_of[s.call_id] in kinds
        )
        counted = {n: c for n, c in other.masked.items() if n != "shared"}
        before = {n: c for n, c in one.masked.items() if n != "shared"}
        assert trained_tokens(other) + sum(counted.values()) == trained_tokens(one) + sum(before.values())


def test_a_side_call_is_context_for_what_follows() -> None:
    calls = [make_call(0, [1], [2], kind="side"), make_call(1, [1, 2, 3], [4])]
    (sample,) = build_samples(calls, kinds=["main"]).samples
    assert sample.mask.tolist() == [False, False, False, True] and sample.masked == {"filtered": 1}


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"no merge rule 'tree'.*forest, linear, none"):
        build_samples([make_call(0, [1], [2])], merge="tree")
    with pytest.raises(ValueError, match=r"no calls of kind judge"):
        build_samples([], kinds=["judge"])


def test_a_rollout_without_replies_gives_no_samples() -> None:
    assert build_samples([make_call(0, [1, 2], []), make_call(1, [], [])]).samples == []


def test_ids_out_of_vocabulary_and_versions_from_the_future_are_kept_as_they_came() -> None:
    call = make_call(0, [2**31 - 1], [2**30], versions=np.array([10**6], np.int32))
    (sample,) = build_samples([call]).samples
    assert sample.ids.tolist() == [2**31 - 1, 2**30] and sample.versions.tolist() == [-1, 10**6]

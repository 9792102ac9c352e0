"""Which call does each call continue? The links of the prefix forest.

Invariants:
* a node is a call, never an id path: calls with identical ids stay separate nodes;
* a parent completed before its child arrived, and the child's prompt starts with all of the parent's ids;
* among such parents the longest wins; between equals, the one whose minted ids the child echoes, then the one of the
  same thread, then the latest completed;
* a call with a missing id is nobody's parent; one whose prompt has a missing id has no parent either;
* every call here has sampled something, so a child is longer than its parent and the links have no cycle.

Other rules exist for comparison (`MERGES`): ``linear`` lets a call continue the call before it or nothing, as trainers
do that keep one open sample per rollout; ``none`` makes every call a sample of its own. No rule loses a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_lab.records import Call, Ids
from lightning_lab.samples.delivery import echoed_ids

Links = tuple[int | None, ...]
"""By node: the index of the node that it continues, or None."""


def usable_length(ids: Ids) -> int:
    """Number of ids before the first missing one (an id below 0)."""
    if not len(ids) or ids.min() >= 0:
        return len(ids)
    return int((ids < 0).argmax())


@dataclass(frozen=True, slots=True)
class Node:
    """A call and what of it can be used."""

    call: Call
    usable: int
    """Sampled ids before the first missing one; 0 when the prompt itself is not known."""
    length: int
    """Prompt ids + usable sampled ids; 0 when the prompt itself is not known."""
    complete: bool
    """No id is missing, so others may continue it."""


@dataclass(frozen=True, slots=True)
class Forest:
    """``parents[i]`` is the index of the node that node i continues, or None for a root."""

    nodes: tuple[Node, ...]
    parents: Links

    def path(self, index: int) -> list[int]:
        """From the root to the node, both included."""
        path = [index]
        while (parent := self.parents[path[-1]]) is not None:
            path.append(parent)
        return path[::-1]

    def leaves(self) -> list[int]:
        """Nodes that nobody continues, first completed first."""
        inner = {parent for parent in self.parents if parent is not None}
        leaves = (index for index in range(len(self.nodes)) if index not in inner)
        return sorted(leaves, key=lambda i: (self.nodes[i].call.finished_at, self.nodes[i].call.ordinal))


def grow(calls: Sequence[Call], merge: str = "forest") -> Forest:
    """Link calls (delivered, of one attempt). Calls that sampled nothing are left out: they have nothing to train.

    Raises ValueError for a rule that is not in `MERGES`.
    """
    if merge not in MERGES:
        raise ValueError(f"There is no merge rule {merge!r}. Use one of: {', '.join(MERGES)}.")
    nodes = tuple(_node(call) for call in calls if len(call.sampled_ids))
    return Forest(nodes, MERGES[merge](nodes))


def continues(call: Call, parent: Call) -> bool:
    """Whether the call's prompt starts with the parent's prompt and sampled ids.

    The sampled part is compared first: it is short, and nearly always tells strangers apart.
    """
    start = len(parent.prompt_ids)
    stop = start + len(parent.sampled_ids)
    return (
        stop <= len(call.prompt_ids)
        and bool((call.prompt_ids[start:stop] == parent.sampled_ids).all())
        and _equal(call.prompt_ids[:start], parent.prompt_ids)
    )


def _equal(ids: Ids, others: Ids) -> bool:
    """Calls read back from a store are views of one array where they continue each other: nothing to compare."""
    return ids.__array_interface__ == others.__array_interface__ or np.array_equal(ids, others)


def _node(call: Call) -> Node:
    known_prompt = len(call.prompt_ids) > 0 and usable_length(call.prompt_ids) == len(call.prompt_ids)
    usable = usable_length(call.sampled_ids) if known_prompt else 0
    length = len(call.prompt_ids) + usable if known_prompt else 0
    return Node(call, usable, length, known_prompt and usable == len(call.sampled_ids))


def _forest(nodes: Sequence[Node]) -> Links:
    """The longest completed call whose ids start the prompt.

    Lengths and last ids of all candidates are compared at once; what is left is compared id by id, longest first.
    """
    complete = sorted((i for i, node in enumerate(nodes) if node.complete), key=lambda i: nodes[i].length)
    lengths = [nodes[i].length for i in complete]
    last_places = np.array(lengths, np.int64) - 1
    last_ids = np.array([nodes[i].call.sampled_ids[-1] for i in complete], np.int64)
    links: list[int | None] = []
    for node in nodes:
        prompt = node.call.prompt_ids
        fitting = bisect_right(lengths, len(prompt)) if node.length else 0
        (likely,) = (prompt[last_places[:fitting]] == last_ids[:fitting]).nonzero()
        links.append(_longest(node, nodes, [complete[i] for i in likely[::-1].tolist()]))
    return tuple(links)


def _longest(node: Node, nodes: Sequence[Node], candidates: Sequence[int]) -> int | None:
    """Of the candidates, longest first, the one that the node continues; ties by the rule."""
    equals: list[int] = []
    for index in candidates:
        if equals and nodes[index].length < nodes[equals[0]].length:
            break
        in_time = nodes[index].call.finished_at <= node.call.arrived_at
        if in_time and nodes[index] is not node and continues(node.call, nodes[index].call):
            equals.append(index)
    if len(equals) <= 1:
        return equals[0] if equals else None
    echoed = echoed_ids(node.call)
    return max(
        equals,
        key=lambda i: (
            not echoed.isdisjoint(nodes[i].call.minted_ids),
            nodes[i].call.thread == node.call.thread,
            nodes[i].call.finished_at,
            nodes[i].call.ordinal,
        ),
    )


def _linear(nodes: Sequence[Node]) -> Links:
    """The call before it, if it is continued; calls come in order of arrival."""
    links: list[int | None] = [None] * len(nodes)
    for index in range(1, len(nodes)):
        node, before = nodes[index], nodes[index - 1]
        in_time = before.call.finished_at <= node.call.arrived_at
        if node.length and before.complete and in_time and continues(node.call, before.call):
            links[index] = index - 1
    return tuple(links)


def _none(nodes: Sequence[Node]) -> Links:
    return (None,) * len(nodes)


MERGES: dict[str, Callable[[Sequence[Node]], Links]] = {"forest": _forest, "linear": _linear, "none": _none}
"""Rules by which calls become samples."""

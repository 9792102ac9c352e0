"""Which call does each call continue? The links of the prefix forest.

Invariants:
* a node is a call, never an id path: calls with identical ids stay separate nodes;
* a parent completed before its child arrived, and the child's prompt starts with all of the parent's ids;
* among such parents the longest wins; between equals, the one whose minted ids the child echoes, then the one of the
  same thread, then the latest completed;
* a call with a missing id is nobody's parent; one whose prompt has a missing id has no parent either;
* every call here has sampled something, so a child is longer than its parent and the links have no cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_lab.records import Call, Ids
from lightning_lab.samples.delivery import echoed_ids


def usable_length(ids: Ids) -> int:
    """Number of ids before the first missing one (an id below 0)."""
    missing = ids < 0
    return int(missing.argmax()) if missing.any() else len(ids)


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
    parents: tuple[int | None, ...]

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


def grow(calls: Sequence[Call]) -> Forest:
    """Link calls (delivered, of one attempt). Calls that sampled nothing are left out: they have nothing to train."""
    nodes = tuple(_node(call) for call in calls if len(call.sampled_ids))
    by_length = sorted((i for i, node in enumerate(nodes) if node.complete), key=lambda i: -nodes[i].length)
    return Forest(nodes, tuple(_parent(node, nodes, by_length) for node in nodes))


def continues(call: Call, parent: Call) -> bool:
    """Whether the call's prompt starts with the parent's prompt and sampled ids.

    The sampled part is compared first: it is short, and nearly always tells strangers apart.
    """
    start = len(parent.prompt_ids)
    stop = start + len(parent.sampled_ids)
    return (
        stop <= len(call.prompt_ids)
        and np.array_equal(call.prompt_ids[start:stop], parent.sampled_ids)
        and np.array_equal(call.prompt_ids[:start], parent.prompt_ids)
    )


def _node(call: Call) -> Node:
    known_prompt = len(call.prompt_ids) > 0 and usable_length(call.prompt_ids) == len(call.prompt_ids)
    usable = usable_length(call.sampled_ids) if known_prompt else 0
    length = len(call.prompt_ids) + usable if known_prompt else 0
    return Node(call, usable, length, known_prompt and usable == len(call.sampled_ids))


def _parent(node: Node, nodes: Sequence[Node], by_length: Sequence[int]) -> int | None:
    if node.length == 0:
        return None
    equals: list[int] = []
    for index in by_length:
        candidate = nodes[index]
        if equals and candidate.length < nodes[equals[0]].length:
            break
        if (
            candidate is not node
            and candidate.call.finished_at <= node.call.arrived_at
            and continues(node.call, candidate.call)
        ):
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

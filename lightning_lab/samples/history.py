"""What had completed when a call arrived, indexed so that the call it should have continued is found without a search.

Conversations are compared by chains of hashes: ``chain[k]`` stands for a conversation's first k messages, system ones
aside. A completed call is filed under every chain value of its messages and reply, so the longest common beginning
with any earlier conversation is the longest chain value that is on file. Only roots ask, so calls are filed when one
does: latest first, and only under values that no later call holds, which is linear in what was said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from operator import is_

import numpy as np

from lightning_lab.records import Message
from lightning_lab.samples.causes import message_key
from lightning_lab.samples.delivery import echoed_ids
from lightning_lab.samples.parents import Forest

BRANCHES = 64
"""Branches of one shape that are looked through for the one that a call should have continued, latest first."""


class History:
    """Calls in order of completion. Nodes are named by their index in the forest."""

    def __init__(self, forest: Forest) -> None:
        self.completed: list[int] = []
        """Latest last."""
        self._forest = forest
        nodes = forest.nodes
        order = sorted(range(len(nodes)), key=lambda i: (nodes[i].call.finished_at, nodes[i].call.ordinal))
        self._coming = order[::-1]
        self._held_back: list[int] = []
        self._children = Counter(parent for parent in forest.parents if parent is not None)
        self._branches = any(count > 1 for count in self._children.values())
        self._enter, self._leave = _intervals(forest) if self._branches else ([], [])
        self._keys: dict[int, Hashable] = {}
        self._chains: dict[int, list[int]] = {}
        self._by_chain: dict[int | tuple[int, str], int] = {}
        self._unfiled: list[int] = []
        self._by_minted: dict[str, int] = {}
        self._by_length: dict[int, list[int]] = {}
        self._by_shape: dict[int, list[int]] = {}

    def advance(self, arrived_at: float, arriving: int) -> None:
        """File everything that completed until then, except the arriving call itself."""
        ready, self._held_back = self._held_back, []
        while self._coming and self._forest.nodes[self._coming[-1]].call.finished_at <= arrived_at:
            ready.append(self._coming.pop())
        for index in ready:
            if index == arriving:
                self._held_back.append(index)
            else:
                self._file(index)

    def expected(self, index: int) -> int | None:
        """The completed call that the arriving call was expected to continue, or None where nothing broke."""
        parent = self._forest.parents[index]
        return self._deeper(index, parent) if parent is not None else self._kin(index)

    def _deeper(self, index: int, parent: int) -> int | None:
        """Of the calls below its parent: the longest one whose reply the call's messages hold, latest first."""
        if self._children[parent] == 1:
            return None
        shapes = _shapes(self._forest.nodes[index].call.messages)
        for shape in reversed(shapes[1:]):
            for other in reversed(self._by_shape.get(shape, ())[-BRANCHES:]):
                if self._enter[parent] < self._enter[other] < self._leave[parent]:
                    return other
        return None

    def _kin(self, index: int) -> int | None:
        """For a root: the call whose ids it echoes, or that shares most messages, or its thread, or is the latest."""
        call = self._forest.nodes[index].call
        alike = self._by_length.get(len(call.prompt_ids), ())
        if any(np.array_equal(call.prompt_ids, self._forest.nodes[i].call.prompt_ids) for i in alike):
            return None
        chain = self._chain(index)
        echoed = {self._by_minted[name] for name in echoed_ids(call) if name in self._by_minted}
        if echoed:
            return max(echoed, key=lambda other: self._kinship(index, other))
        self._file_chains()
        turns = sum(message.role != "system" for message in call.messages)
        for value in reversed(chain[: turns + 1]):
            if value in self._by_chain:
                return self._by_chain.get((value, call.thread), self._by_chain[value])
        return None

    def _kinship(self, index: int, other: int) -> tuple[int, bool, float, int]:
        call, candidate = self._forest.nodes[index].call, self._forest.nodes[other].call
        common = _common(self._chain(index)[:-1], self._chain(other))
        return common, candidate.thread == call.thread, candidate.finished_at, candidate.ordinal

    def _file(self, index: int) -> None:
        call = self._forest.nodes[index].call
        self.completed.append(index)
        self._unfiled.append(index)
        self._by_minted.update(dict.fromkeys(call.minted_ids, index))
        self._by_length.setdefault(len(call.prompt_ids), []).append(index)
        if self._branches:
            self._by_shape.setdefault(_shapes([*call.messages, call.reply], said=True)[-1], []).append(index)

    def _file_chains(self) -> None:
        """A chain that holds a value holds all the shorter ones, so filing ends where a later call was filed."""
        for index in self._unfiled:
            self._chain(index)
        filed: set[int | tuple[int, str]] = set()
        for index in reversed(self._unfiled):
            thread = self._forest.nodes[index].call.thread
            for value in reversed(self._chains[index]):
                if (value, thread) in filed:
                    break
                filed.add((value, thread))
                self._by_chain[value, thread] = index
                if value not in filed:
                    filed.add(value)
                    self._by_chain[value] = index
        self._unfiled.clear()

    def _chain(self, index: int) -> list[int]:
        """Chain values of the call's turns, then of turns and reply: [turns + 2]."""
        if index not in self._chains:
            call = self._forest.nodes[index].call
            known, chain = self._inherited(index)
            value = chain[-1]
            for message in (*call.messages[known:], call.reply):
                if message.role != "system":
                    value = hash((value, self._key(message)))
                    chain.append(value)
            self._chains[index] = chain
        return self._chains[index]

    def _inherited(self, index: int) -> tuple[int, list[int]]:
        """How many messages the call has from its parent, as the same objects, and their chain."""
        parent = self._forest.parents[index]
        if parent is None or parent not in self._chains:
            return 0, [0]
        said, call = self._forest.nodes[parent].call, self._forest.nodes[index].call
        if len(said.messages) > len(call.messages) or not all(map(is_, said.messages, call.messages)):
            return 0, [0]
        return len(said.messages), self._chains[parent][:-1]

    def _key(self, message: Message) -> Hashable:
        """Calls of one conversation often share their message objects, which the forest keeps alive."""
        key = self._keys.get(id(message))
        if key is None:
            key = self._keys[id(message)] = hash(message_key(message))
        return key


def _shapes(messages: Sequence[Message], *, said: bool = False) -> list[int]:
    """Chain values of the roles; ``said``: the last message is a reply, whatever role it gives itself."""
    value = 0
    shapes = [value]
    for position, message in enumerate(messages):
        role = "assistant" if said and position == len(messages) - 1 else message.role
        value = hash((value, role))
        shapes.append(value)
    return shapes


def _common(chain: Sequence[int], other: Sequence[int]) -> int:
    """How many messages two conversations share from the start: chains agree exactly that far."""
    low, high = 0, min(len(chain), len(other)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if chain[middle] == other[middle] else (low, middle - 1)
    return low


def _intervals(forest: Forest) -> tuple[list[int], list[int]]:
    """A node lies below another if it is entered within the other's interval."""
    children: list[list[int]] = [[] for _ in forest.nodes]
    for index, parent in enumerate(forest.parents):
        if parent is not None:
            children[parent].append(index)
    enter, leave = [0] * len(children), [0] * len(children)
    clock = 0
    for root in (index for index, parent in enumerate(forest.parents) if parent is None):
        open_nodes = [(root, False)]
        while open_nodes:
            index, done = open_nodes.pop()
            if done:
                leave[index] = clock
                continue
            enter[index] = clock
            clock += 1
            open_nodes.append((index, True))
            open_nodes += [(child, False) for child in children[index]]
    return enter, leave

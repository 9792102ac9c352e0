"""A rollout as it is shown: secrets out of its texts, out of the ids of its samples, and out of what a break shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lightning_lab.notebook.cuts import Cuts
from lightning_lab.records import Break, Call, Ids, Message
from lightning_lab.samples import Decode
from lightning_lab.store import Redaction
from lightning_lab.store.hidden_ids import hidden, without


def redacted(cuts: Cuts, redaction: Redaction, decode: Decode | None) -> Cuts:
    """``decode``: ids → text; without one, all ids of a conversation with a secret are hidden.

    Of the calls, only those next to a break keep ids that somebody may look at.
    """
    return _Shown(cuts, redaction, decode).cuts()


class _Shown:
    def __init__(self, cuts: Cuts, redaction: Redaction, decode: Decode | None) -> None:
        self._cuts = cuts
        self._redaction = redaction
        self._decode = decode
        self._messages: dict[int, Message] = {}  # conversations share their messages: each is read once
        self._known: dict[int, set[str]] = {}
        self._said: Mapping[str, set[str]] = {call.id: self._secrets(call) for call in cuts.calls}

    def cuts(self) -> Cuts:
        cuts, broken = self._cuts, {id for one in self._cuts.breaks for id in (one.call_id, one.previous_call_id)}
        samples = [
            replace(sample, ids=self._ids(sample.ids, (segment.call_id for segment in sample.segments)))
            for sample in cuts.samples
        ]
        return replace(
            cuts,
            rollout=self._redaction.record(cuts.rollout),
            calls=[self._call(call, ids=call.id in broken) for call in cuts.calls],
            samples=samples,
            breaks=[self._break(one) for one in cuts.breaks],
            tampering=[self._redaction.value(one) for one in cuts.tampering],
            attempts=[self._redaction.value(one) for one in cuts.attempts],
        )

    def _call(self, call: Call, *, ids: bool) -> Call:
        messages = tuple(self._message(message) for message in call.messages)
        shown = self._redaction.record(replace(call, messages=(), reply=self._message(call.reply)))
        if ids:
            prompt, sampled = (self._ids(part, (call.id,)) for part in (call.prompt_ids, call.sampled_ids))
            shown = replace(shown, prompt_ids=prompt, sampled_ids=sampled)
        return replace(shown, messages=messages)

    def _break(self, found: Break) -> Break:
        secrets = self._of((found.call_id, found.previous_call_id))
        before, after = (self._redaction.window(side, secrets) for side in (found.before, found.after))
        return replace(found, before=before, after=after)

    def _ids(self, ids: Ids, calls: Iterable[str]) -> Ids:
        return without(ids, hidden(ids, self._of(calls), self._redaction, self._decode))

    def _of(self, calls: Iterable[str]) -> set[str]:
        return set().union(*(self._said.get(id, set()) for id in calls))

    def _message(self, message: Message) -> Message:
        if id(message) not in self._messages:
            self._messages[id(message)] = self._redaction.record(message)
        return self._messages[id(message)]

    def _secrets(self, call: Call) -> set[str]:
        found: set[str] = set()
        for message in (*call.messages, call.reply):
            if id(message) not in self._known:
                texts = [message.content, message.reasoning, message.tool_calls, message.images]
                self._known[id(message)] = self._redaction.secrets(texts)
            found |= self._known[id(message)]
        return found

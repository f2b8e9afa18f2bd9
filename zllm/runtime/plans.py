"""The plan pool: recordings compiled once per bucket and replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from zllm.backend.contract import Backend, Group, Plan, PlanKey, Recording
from zllm.runtime.recorder import Recorder

KEPT = 32  # plans; the least recently used is dropped


class PlanPool:
    def __init__(
        self, backend: Backend, decoder: Callable[[Any], None], groups: Sequence[Group]
    ) -> None:
        self._backend = backend
        self._decoder = decoder
        self._groups = tuple(groups)
        self._plans: OrderedDict[PlanKey, Plan] = OrderedDict()

    def get(self, key: PlanKey) -> Plan:
        """The plan of the bucket that holds `key`; exact prefill plans are not kept."""
        key = self._backend.bucket(key)
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
            return plan
        plan = self._backend.compile(self.record(key))
        if key.rows == key.seqs or self._backend.keeps_prefill:
            self._plans[key] = plan
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)
        return plan

    def forget(self) -> None:
        """Make every plan anew: the backend would compile them otherwise now."""
        self._plans.clear()

    def record(self, key: PlanKey) -> Recording:
        """The round as this backend runs it."""
        recorder = Recorder(key, self._backend.missing)
        self._decoder(recorder)
        return recorder.finish(self._groups)

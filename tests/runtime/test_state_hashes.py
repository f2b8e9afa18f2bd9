"""Discarded and cancelled rounds leave every cache of every model as if they had never run."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.cross_backend.test_golden import MODELS
from tests.helpers.golden import recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.embedded import Engine
from zllm.kv_cache.prefix import Cached

Json = dict[str, Any]
GREEDY: Json = {"temperature": 0, "return_token_ids": True}


def opened(folder: str, *, ahead: int) -> Engine:
    engine = Engine(model=GOLDEN / folder, backend="oracle", lanes=3)
    engine.backend.rounds_in_flight = ahead
    return engine


def longest(engine: Engine) -> Cached:
    return max(engine._loop.prefixes._retained, key=lambda cached: cached.tokens.size)


def state_hash(engine: Engine) -> dict[str, str]:
    """sha256 of what each cache keeps of the longest finished sequence's committed tokens.

    Pool keys and entries count only where they are final, which the raw values decide: arrays of
    raw values come first, derived ones last.
    """
    cached = longest(engine)
    slots = [cached.table.slot(position) for position in range(cached.tokens.size)]
    hashes = {"tokens": hashlib.sha256(cached.tokens.tobytes()).hexdigest()}
    for name, storage in engine.backend.caches.items():
        arrays = storage.arrays
        if storage.group == "state":
            assert cached.checkpoints is not None
            kept = [arrays[0][cached.checkpoints[cached.tokens.size]]]
        else:
            raw = arrays[:-1] if len(arrays) == 3 else arrays
            kept = [np.take(array, slots, storage.slot_axis) for array in raw]
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in kept))
        hashes[name] = digest.hexdigest()
    return hashes


@pytest.mark.parametrize("folder", MODELS)
def test_discarded_and_cancelled_rounds_leave_no_trace(folder: str) -> None:
    golden = recorded(folder)
    prompt, greedy = golden["p0_ids"].tolist(), golden["p0_greedy"].tolist()
    stop = {"stop_token_ids": [greedy[5]], "ignore_eos": True, "max_tokens": 16}
    long: Json = {"ignore_eos": True, "max_tokens": 30}
    hashes = []
    for ahead in (1, 2, 3):
        with opened(folder, ahead=ahead) as engine:
            first = engine.generate({"tokens": prompt, **GREEDY, **stop})
            after_stop = state_hash(engine)
            if ahead > 1:  # a neighbour that is cancelled with rounds in flight
                stream = engine.stream({"tokens": prompt[::-1], **GREEDY, **long})
                for _ in range(4):
                    next(stream)
                stream.close()
            answer = first["choices"][0]["token_ids"]
            turn = [*prompt, *answer, *prompt[:5]]
            engine.generate({"tokens": turn, **GREEDY, "ignore_eos": True, "max_tokens": 6})
            hashes.append((answer, after_stop, state_hash(engine)))
    assert hashes[0][0] == greedy[: len(hashes[0][0])]
    assert hashes[0] == hashes[1] == hashes[2]


def test_the_hash_sees_every_kind_of_cache() -> None:
    """One changed number of a committed token changes the hash of its cache, and no other."""
    with opened("glm5_next", ahead=1) as engine:
        engine.generate({"tokens": recorded("glm5_next")["p0_ids"].tolist(), **GREEDY})
        before, cached = state_hash(engine), longest(engine)
        for name, storage in engine.backend.caches.items():
            if storage.group == "state":
                assert cached.checkpoints is not None
                changed: Any = storage.arrays[0][cached.checkpoints[cached.tokens.size]]
            else:
                changed = np.moveaxis(storage.arrays[0], storage.slot_axis, 0)[cached.table.slot(3)]
            saved = changed.copy()
            changed += 1
            after = state_hash(engine)
            assert {key for key in after if after[key] != before[key]} == {name}
            changed[:] = saved

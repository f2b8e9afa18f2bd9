from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from zllm.backend.contract import BIAS, PENALTIES, Group, PlanKey, StepLayout
from zllm.kv_cache.paged import PagePool, PageTable
from zllm.runtime.decode import decode_pieces
from zllm.runtime.generation import BANNED, Drawn, Generation, Sequence
from zllm.runtime.prefill import prefill_pieces
from zllm.runtime.rounds import CARRIED, Piece, plan_key, step_words

GROUP = Group("full", 4, 9)


def sequence_of(prompt: int, *, lane: int = 0, pages: tuple[int, ...] = (), **says: object):
    sequence = Sequence(Generation(tuple(range(10, 10 + prompt)), 5, **says))  # type: ignore
    sequence.lane = lane
    sequence.table = PageTable(PagePool(9, 4), list(pages))
    return sequence


def test_prefill_is_first_come_first_served_within_its_rows() -> None:
    sequences = [sequence_of(n) for n in (3, 5, 9)]
    pieces = prefill_pieces(sequences, 10, last_alone=False)
    assert [(p.first, p.count, p.draws) for p in pieces] == [(0, 3, 1), (0, 5, 1), (0, 2, 0)]
    sequences[2].fed = 2
    rest = sequences[2:]
    assert [(p.first, p.count) for p in prefill_pieces(rest, 4, last_alone=False)] == [(2, 4)]
    whole = prefill_pieces(rest, 7, last_alone=False)
    assert [(p.first, p.count, p.draws) for p in whole] == [(2, 7, 1)]


def test_the_last_token_alone_leaves_a_state_right_before_it() -> None:
    sequence = sequence_of(5)
    before = prefill_pieces([sequence], 10, last_alone=True)
    assert [(p.first, p.count, p.draws) for p in before] == [(0, 4, 0)]
    sequence.fed = 4
    last = prefill_pieces([sequence], 10, last_alone=True)
    assert [(p.first, p.count, p.draws) for p in last] == [(4, 1, 1)]


def test_decode_takes_those_that_may_draw() -> None:
    prefilling, last, done, ready = (sequence_of(3) for _ in range(4))
    for sequence in (last, done, ready):
        sequence.fed = 3
        sequence.tokens.append(1)
    last.in_flight = 4  # of max_tokens 5, one known
    done.finish = "stop"
    assert [p.sequence for p in decode_pieces([prefilling, last, done, ready], 9)] == [ready]
    assert not decode_pieces([ready], 4), "the context is full"


def test_words_of_a_mixed_round() -> None:
    first = sequence_of(6, lane=2, pages=(3, 1), temperature=0.5, seed=(2**32 - 1, 7), top_k=9)
    second = sequence_of(2, lane=0, pages=(5,), repetition=2.0, logit_bias=((1, 2.0),))
    second.fed = 2  # its third token is still on the device
    pieces = [Piece(first, 1, 5, draws=True), Piece(second, 2, 1, draws=True)]
    key = plan_key(pieces)
    assert key == PlanKey(6, 2, 6, "token", "full")
    layout = StepLayout(PlanKey(8, 3, 10, "token", "full"), [GROUP])  # a bucket with padding
    words = step_words(layout, pieces, GROUP, scratch_lane=7)
    assert words.dtype == np.int32 and words.size == layout.words

    def of(name: str) -> list[int]:
        return words[layout.offset[name] :][: layout.size[name]].tolist()

    assert (of("valid_rows"), of("valid_seqs")) == ([6], [2])
    assert of("token") == [11, 12, 13, 14, 15, CARRIED, 0, 0]
    assert of("seq") == [0, 0, 0, 0, 0, 1, 0, 0]
    assert of("position") == [1, 2, 3, 4, 5, 2, 0, 0]
    assert of("full.row_slot") == [13, 14, 15, 4, 5, 22, 0, 0], "padding writes the scratch slot"
    assert of("full.table") == [3, 1, 0, 5, 0, 0, 0, 0, 0]
    assert of("lane") == [2, 0, 7] and of("length") == [6, 3, 0] and of("draw") == [6, 3, 0]
    assert of("first_row") == [0, 5, 0] and of("last_row") == [4, 5, 0]
    assert of("flags") == [0, PENALTIES | BIAS, 0]
    assert (of("seed_lo"), of("seed_hi"), of("top_k")) == ([-1, 0, 0], [7, 0, 0], [9, 0, 0])
    floats = words.view(np.float32)
    for name, values in (("temperature", [0.5, 0, 0]), ("repetition", [1, 2, 0])):
        assert floats[layout.offset[name] :][:3].tolist() == values


def test_words_do_not_overlap() -> None:
    layout = StepLayout(PlanKey(5, 3, 9, "token"), [GROUP, Group("window", 2, 9)])
    places = sorted((layout.offset[name], layout.size[name]) for name in layout.offset)
    assert places[0][0] == 0 and sum(size for _, size in places) == layout.words
    assert all(at + size == after for (at, size), (after, _) in pairwise(places))


@pytest.mark.parametrize(
    ("says", "draws", "emit", "sampler", "top"),
    [
        ({}, False, "none", "greedy", -1),
        ({}, True, "token", "greedy", -1),
        ({"top_logprobs": 2}, True, "token", "greedy", 2),
        ({"temperature": 0.1}, True, "token", "full", -1),
        ({"presence": 0.1}, True, "token", "full", -1),
        ({"min_tokens": 2}, True, "token", "full", -1),
        ({"logit_bias": ((1, 1.0),)}, True, "token", "full", -1),
        ({"temperature": 1.0, "top_logprobs": 3}, False, "none", "greedy", -1),
    ],
)
def test_plan_key(says: dict[str, object], draws: bool, emit: str, sampler: str, top: int) -> None:
    key = plan_key([Piece(sequence_of(4, **says), 0, 4, draws=draws)])
    assert (key.emit, key.sampler, key.top_logprobs) == (emit, sampler, top)


def test_counts_tell_prompt_from_answer() -> None:
    sequence = Sequence(Generation((1, 1, 3), 9))
    for token in (3, 4, 4):
        sequence.accept(Drawn(token), 100)
    assert sequence.counts(6).tolist() == [0, 1, 0, 3, 5, 0]


def test_stops_are_banned_until_enough_are_drawn_or_in_flight() -> None:
    says = {"min_tokens": 2, "stop_ids": frozenset({0, 2}), "logit_bias": ((1, 3.0), (2, 4.0))}
    sequence = Sequence(Generation((5,), 9, **says))  # type: ignore[arg-type]
    banned = np.float32(BANNED)
    assert sequence.bias(4).tolist() == [banned, 3, banned, 0]
    sequence.accept(Drawn(3), 100)
    assert sequence.banning
    sequence.in_flight = 1
    assert not sequence.banning and sequence.bias(4).tolist() == [0, 3, 4, 0]


def test_accept_ends_at_a_stop_a_maximum_or_the_context() -> None:
    stopped = Sequence(Generation((5,), 9, stop_ids=frozenset({2})))
    stopped.accept(Drawn(3), 100)
    assert stopped.finish is None
    stopped.accept(Drawn(2), 100)
    assert stopped.finish == "stop" and stopped.tokens == [5, 3, 2]
    for context, maximum in ((3, 9), (100, 2)):
        full = Sequence(Generation((5,), maximum))
        full.accept(Drawn(1), context)
        assert full.finish is None
        full.accept(Drawn(1), context)
        assert full.finish == "length"
    both = Sequence(Generation((5,), 1, stop_ids=frozenset({2})))
    both.accept(Drawn(2), 100)
    assert both.finish == "stop", "a stop token is a stop, even the last one"


def test_nothing_of_an_earlier_round_stays_in_the_words() -> None:
    """Seeded fault seen to fail: words that are not cleared."""
    layout = StepLayout(PlanKey(4, 2, 32, "token"), [GROUP])
    words, view = layout.blank()
    view[:] = memoryview(bytes([1]) * (4 * layout.words)).cast("i")
    again, _ = layout.blank()
    assert again is words and not again.any()

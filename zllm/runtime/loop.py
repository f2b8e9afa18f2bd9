"""The one engine loop: admits sequences, submits rounds, reads their records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from zllm.backend.contract import NOT_FINITE, Backend, Group, RecordLayout, Round, Ticket
from zllm.errors import RequestError
from zllm.kv_cache.paged import PagePool, PageTable
from zllm.kv_cache.planes import PlaneTable
from zllm.kv_cache.prefix import Cached, PrefixCache
from zllm.runtime.decode import decode_pieces
from zllm.runtime.generation import Drawn, Finish, Generation, Sequence
from zllm.runtime.pace import Pace
from zllm.runtime.plans import PlanPool
from zllm.runtime.prefill import prefill_pieces
from zllm.runtime.rounds import Piece, plan_key, step_words

# Planes a running sequence may need: committed, two in flight, two held at its prompt's ends.
RESERVED_PLANES = 5


@dataclass(frozen=True, slots=True)
class Flight:
    """A submitted round whose records the host has not read."""

    pieces: list[Piece]
    ticket: Ticket
    top_logprobs: int
    prefill_rows: int  # 0: a decode
    submitted_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    context: int  # most tokens of one sequence, prompt and answer
    lanes: int  # most sequences that run at once
    vocabulary: int
    # Sequences that may outgrow this many tokens take RoPE's long factors, others the short ones;
    # 0: there are no two kinds. Decided once, since cached keys are not turned again.
    short_rope: int = 0


class Loop:
    """`step` is the only place that waits. At most `backend.rounds_in_flight` rounds are unread."""

    def __init__(
        self,
        backend: Backend,
        plans: PlanPool,
        group: Group,
        limits: Limits,
        *,
        planes: PagePool | None = None,  # of a model with recurrent state
    ) -> None:
        self.backend = backend
        self.plans = plans
        self.group = group
        self.limits = limits
        self.pool = PagePool(group.pages, group.page_slots)
        self.planes = planes
        self.prefixes = PrefixCache(planes)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.flights: deque[Flight] = deque()
        self.pace = Pace()
        self._free_lanes = list(range(limits.lanes - 1, -1, -1))
        self._prefilled_last = False

    def add(self, generation: Generation, *, after: Sequence | None = None) -> Sequence:
        """Queue a generation, to start once the prompt of `after` is cached.

        RequestError if its prompt is empty or leaves no room for an answer.
        """
        self.check(generation.prompt)
        sequence = self.new_sequence(generation, after=after)
        self.waiting.append(sequence)
        return sequence

    def new_sequence(self, generation: Generation, *, after: Sequence | None = None) -> Sequence:
        limit = self.limits.short_rope
        long = 0 < limit < min(generation.longest, self.limits.context)
        return Sequence(generation, after=after, long=long)

    def check(self, prompt: tuple[int, ...]) -> None:
        tokens, context = len(prompt), self.limits.context
        if not tokens:
            raise RequestError("the prompt is empty: it must hold at least one token")
        if tokens >= context:
            raise RequestError(
                f"the prompt has {tokens} tokens, which leaves no room in a context of {context}; "
                "shorten it or raise --context"
            )

    def cancel(self, sequence: Sequence, finish: Finish = "cancelled") -> None:
        """End a sequence now, discarding its round in flight. Nothing if it has ended."""
        if sequence.finish is None:
            self._end(sequence, finish)

    def take_over(self, other: Loop) -> None:
        """Go on with the sequences of a loop whose device was lost, from their token ids."""
        unfinished = [s for s in (*other.running, *other.waiting) if s.finish is None]
        for sequence in unfinished:
            sequence.rewind()
        self.waiting.extend(unfinished)
        other.running.clear()
        other.waiting.clear()
        other.flights.clear()

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.flights)

    async def step(self) -> None:
        """Submit at most one round, then read rounds until no more than allowed are in flight."""
        pieces = self._next_pieces()
        if pieces:
            self._submit(pieces)
        allowed = self.backend.rounds_in_flight - 1 if pieces else 0
        while len(self.flights) > allowed:
            flight = self.flights.popleft()
            answer = await flight.ticket
            self._time(flight)
            self._read(flight, answer)

    def _next_pieces(self) -> list[Piece]:
        """Prefill and decode take turns, so that a long prompt does not stop running answers."""
        self._admit()
        if not self._prefilled_last:
            pieces = self._prefill() or self._decode()
        else:
            pieces = self._decode() or self._prefill()
        self._prefilled_last = bool(pieces) and pieces[0].sequence.prefilling
        return pieces

    def _prefill(self) -> list[Piece]:
        waiting = [sequence for sequence in self.running if sequence.prefilling]
        return prefill_pieces(
            waiting,
            self.pace.most(self.backend.prefill_rows),
            last_alone=self.planes is not None,
        )

    def _decode(self) -> list[Piece]:
        pieces: list[Piece] = []
        for piece in decode_pieces(self.running, self.limits.context):
            if self._room(piece.sequence, 1):
                pieces.append(piece)
        return pieces or self._make_room()

    def _room(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for `tokens` more rows of a running sequence, evicting prefixes if needed."""
        assert sequence.table is not None
        unread = sequence.fed - sequence.table.length
        needed = sequence.table.missing(unread + tokens)
        while needed > self.pool.free:
            if not self.prefixes.evict():
                return False
        sequence.table.begin(unread + tokens)
        return True

    def _make_room(self) -> list[Piece]:
        """Nobody could decode for want of pages: the youngest with nothing in flight steps back."""
        stuck = [s for s in self.running if s.may_decode(self.limits.context) and not s.in_flight]
        if len(self.running) > 1 and stuck:
            self._preempt(stuck[-1])
        elif stuck and not self.flights:
            self._end(stuck[0], "length")
        return []

    def _preempt(self, sequence: Sequence) -> None:
        """Give the pages back; the sequence is prefilled again, answer so far included."""
        self._leave(sequence)
        sequence.fed, sequence.target = 0, len(sequence.tokens)
        self.waiting.appendleft(sequence)

    def _admit(self) -> None:
        """Give waiting sequences a lane and pages, reusing the longest cached prefix."""
        while self.waiting and self._free_lanes and self.waiting[0].ready:
            sequence = self.waiting[0]
            table = self._open(sequence)
            if table is None:
                return
            self.waiting.popleft()
            sequence.fed = table.length
            sequence.lane = self._free_lanes.pop()
            if not sequence.answered:
                sequence.cached_tokens = table.length
            self.running.append(sequence)
            self._write_lane(sequence)

    def _open(self, sequence: Sequence) -> PageTable | None:
        """Give it pages for the whole prefill; None if it must wait for others to end."""
        tokens = sequence.tokens
        match = self.prefixes.match(tokens[:-1], self._live(), long=sequence.long)
        length, source = match or (0, None)
        shared = source.table.pages[: length // self.group.page_slots] if source else []
        needed = self.group.entries(len(tokens)) - len(shared)
        if needed > self.pool.free + self.prefixes.reclaimable(keep=shared):
            self._refuse_or_wait(sequence)
            return None
        while source and not self.pool.free and self.prefixes.evict(keep=source.table):
            pass
        table = PageTable(self.pool)
        if source and self.pool.free:
            table, moved_from, moved_to = source.table.fork(length)
            if moved_from:
                self.backend.copy_slots(self.group.name, moved_from, moved_to)
        planes = self.new_planes()
        if planes is not None and table.length:
            assert source is not None and source.checkpoints is not None
            planes.committed = planes.pool.share(source.checkpoints[table.length])
        while table.missing(len(tokens) - table.length) > self.pool.free:
            if not self.prefixes.evict():
                table.close()
                if planes is not None:
                    planes.close()
                self._refuse_or_wait(sequence)
                return None
        table.begin(len(tokens) - table.length)
        sequence.table, sequence.planes = table, planes
        if planes is not None and table.length:
            self._hold(sequence)  # the next to begin there may find only this sequence
        return table

    def new_planes(self) -> PlaneTable | None:
        """Of a sequence without any state yet; None if the model has no recurrent state."""
        return None if self.planes is None else PlaneTable(self.planes)

    def with_planes(self, piece: Piece) -> Piece:
        """The piece with the planes it reads and writes, evicting prefixes if none is free."""
        if self.planes is None or piece.sequence.planes is None:
            return piece
        while not self.planes.free:
            if not self.prefixes.evict():
                raise RequestError(
                    f"{self.planes.pages - 1} planes of recurrent state are too few for so many"
                    " sequences at once; use fewer"
                )
        return replace(piece, planes=piece.sequence.planes.begin())

    def _refuse_or_wait(self, sequence: Sequence) -> None:
        if not self.running and not self.flights:
            self.waiting.popleft()
            slots = (self.group.pages - 1) * self.group.page_slots
            sequence.finish = "error"
            sequence.error = (
                f"the sequence has {len(sequence.tokens)} tokens and the cache holds {slots}; "
                "raise the cache size"
            )

    def _live(self) -> Iterator[Cached]:
        for sequence in self.running:
            if sequence.table is not None and sequence.table.length:
                yield self._cached(sequence, sequence.table)

    def _cached(self, sequence: Sequence, table: PageTable) -> Cached:
        tokens = np.asarray(sequence.tokens[: table.length], np.int32)
        checkpoints = None if self.planes is None else sequence.checkpoints
        return Cached(tokens, table, checkpoints, sequence.long)

    def _write_lane(self, sequence: Sequence) -> None:
        generation, vocabulary = sequence.generation, self.limits.vocabulary
        self.backend.write_lane(
            sequence.lane,
            counts=sequence.counts(vocabulary) if generation.penalised else None,
            bias=sequence.bias(vocabulary) if generation.biased else None,
        )
        sequence.unbanned = not sequence.banning

    def _submit(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._lift_ban(piece.sequence)
        pieces = [self.with_planes(piece) for piece in pieces]
        key = plan_key(pieces)
        plan = self.plans.get(key)
        words = step_words(plan.layout, pieces, self.group, self.limits.lanes)
        rows = 0 if key.rows == key.seqs else key.rows
        now = perf_counter()
        self.flights.append(Flight(pieces, plan.submit(words), key.top_logprobs, rows, now))
        for piece in pieces:
            piece.sequence.fed += piece.count
            piece.sequence.in_flight += piece.draws

    def _time(self, flight: Flight) -> None:
        """Rounds of devices only: the oracle's rows are exact, and no clock may change its bits."""
        if flight.prefill_rows and self.backend.keeps_prefill:
            most = self.backend.prefill_rows
            self.pace.done(flight.prefill_rows, most, flight.submitted_s, perf_counter())
        else:
            self.pace.other_done(perf_counter())

    def _lift_ban(self, sequence: Sequence) -> None:
        """Once min_tokens are drawn the stop tokens may be drawn again."""
        if not sequence.unbanned and not sequence.banning:
            sequence.unbanned = True
            bias = sequence.bias(self.limits.vocabulary)
            self.backend.write_lane(sequence.lane, counts=None, bias=bias)

    def _read(self, flight: Flight, answer: Round) -> None:
        for seq, piece in enumerate(flight.pieces):
            sequence = piece.sequence
            sequence.in_flight -= piece.draws
            if sequence.table is None:  # it ended while the round was in flight
                continue
            sequence.table.commit(piece.count)
            if sequence.planes is not None:
                sequence.planes.commit()
                if not piece.draws and self._may_hold(sequence):
                    self._hold(sequence)
            if piece.draws:
                self._accept(sequence, answer.records, seq, flight.top_logprobs)

    def _accept(self, sequence: Sequence, records: memoryview, seq: int, top_logprobs: int) -> None:
        if records[seq, RecordLayout.FLAGS] & NOT_FINITE:
            sequence.error = (
                f"the logits after token {len(sequence.tokens)} are not finite: "
                "the weights hold NaN or infinity, or the model file is damaged"
            )
            self._end(sequence, "error")
            return
        drawn = _drawn(records, seq, sequence.generation, top_logprobs)
        sequence.accept(drawn, self.limits.context)
        if sequence.finish is not None:
            self._release(sequence)

    def _end(self, sequence: Sequence, finish: Finish) -> None:
        sequence.finish = finish
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Keep what is cached for reuse; rounds still in flight for the sequence are discarded."""
        table = sequence.table
        assert table is not None
        if sequence.finish == "error" or not table.length:
            self._leave(sequence)
            return
        if sequence.planes is not None:
            sequence.planes.rollback()
            self._hold(sequence)
        cached = self._cached(sequence, table)
        self._leave(sequence, keep=True)
        self.prefixes.retain(cached)

    def _may_hold(self, sequence: Sequence) -> bool:
        """At the end of a chunk: right before a prompt's last token, and where planes are spare."""
        assert self.planes is not None and sequence.table is not None
        if sequence.table.length == len(sequence.generation.prompt) - 1:
            return True
        return self.planes.free > RESERVED_PLANES * self.limits.lanes

    def _hold(self, sequence: Sequence) -> None:
        """Hold the committed state of a sequence for reuse at exactly this length."""
        assert sequence.planes is not None and sequence.table is not None
        if sequence.table.length not in sequence.checkpoints:
            sequence.checkpoints[sequence.table.length] = sequence.planes.checkpoint()

    def _leave(self, sequence: Sequence, *, keep: bool = False) -> None:
        """Give back lane, planes and pages; `keep`: pages and checkpoints belong to a prefix."""
        assert sequence.table is not None
        sequence.table.rollback()
        if not keep:
            sequence.table.close()
            for plane in sequence.checkpoints.values():
                assert self.planes is not None
                self.planes.release(plane)
        if sequence.planes is not None:
            sequence.planes.close()
        sequence.table = sequence.planes = None
        sequence.checkpoints = {}
        self.running.remove(sequence)
        # A discarded round still writes this lane, but before any round of its next owner.
        self._free_lanes.append(sequence.lane)


def _drawn(records: memoryview, seq: int, generation: Generation, top_logprobs: int) -> Drawn:
    token: int = records[seq, RecordLayout.TOKEN]
    if generation.top_logprobs < 0:
        return Drawn(token)
    record, top = np.asarray(records)[seq], RecordLayout.TOP
    floats = record.view(np.float32)
    pairs = zip(
        record[top : top + generation.top_logprobs].tolist(),
        floats[top + top_logprobs :][: generation.top_logprobs].tolist(),
        strict=True,
    )
    return Drawn(token, float(floats[RecordLayout.LOGPROB]), tuple(pairs))

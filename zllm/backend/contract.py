"""What a backend owes to the runtime: values, recorded ops, plans, step and record words.

A recording is the single interface below a model: the oracle runs it with NumPy, WebGPU and
JavaScript replay it, native plugins receive it as their op list. Nothing here holds memory.

Axes: R rows of a round (new tokens of all sequences, flat), B sequences of a round, D width,
N rows of a matrix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zllm.kv_cache.spec import CacheSpec
    from zllm.weight.linear_weight import LinearWeight


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a recorded op: a number and a shape. Only a compiled plan knows its memory."""

    id: int
    shape: tuple[int, ...]
    dtype: Literal["f32", "i32"] = "f32"


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [N, D] or vector [N] resident at the backend, in whatever form the backend chose.

    `parts` are the rows of each matrix joined into it (q, k and v read the same input once).
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """Storage of one layer, addressed through the step words of its group."""

    name: str
    group: str


@dataclass(frozen=True, slots=True)
class Group:
    """Caches that share an address table. A slot is one token's place; a page a run of slots."""

    name: str
    page_slots: int
    pages: int  # page 0 is scratch: padding rows write there

    def entries(self, context: int) -> int:
        """Table entries (pages) that a sequence of `context` tokens needs."""
        return -(-context // self.page_slots)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything a recorded list may depend on; all else is data in the step words."""

    rows: int  # R; decode: rows == seqs and row i belongs to sequence i
    seqs: int  # B
    context: int  # longest context of the round: bounds tables, grids and scratch
    emit: Literal["none", "token", "logits"]  # "none": every prefill chunk but the last
    sampler: Literal["greedy", "full"] = "greedy"
    top_logprobs: int = -1  # -1: no logprobs; 0: of the drawn token; n: of the n likeliest as well


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: `name` is also the name of its spec, reference, kernel and test."""

    name: str
    ins: tuple[Value | Weight | Cache | None, ...]
    outs: tuple[Value, ...]
    spec: Any = None  # frozen dataclass of plain numbers

    def value(self, index: int) -> Value:
        operand = self.ins[index]
        assert isinstance(operand, Value), self
        return operand

    def weight(self, index: int) -> Weight:
        operand = self.ins[index]
        assert isinstance(operand, Weight), self
        return operand

    def cache(self, index: int) -> Cache:
        operand = self.ins[index]
        assert isinstance(operand, Cache), self
        return operand


class StepLayout:
    """Where each word of a round's step buffer lies.

    int32 throughout: uint32 cannot index NumPy on wasm32. Floats are stored as their bits. Padding
    rows have seq 0, position 0 and the scratch slot 0; padding sequences have the scratch lane and
    length 0.
    """

    HEAD = ("valid_rows", "valid_seqs")
    # token -1: read the carried token of the sequence's lane, written by the round before.
    ROW = ("token", "seq", "position")
    # length: tokens cached once the round is done. draw: position of the token to be drawn.
    SEQ = ("lane", "length", "first_row", "last_row", "flags", "seed_lo", "seed_hi", "draw")
    # Recurrent state: the plane to begin from (at position 0: zeros instead) and that to write.
    SEQ_STATE = ("read_plane", "written_plane")
    SEQ_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence")

    def __init__(self, key: PlanKey, groups: Sequence[Group]) -> None:
        self.offset: dict[str, int] = {}
        self.size: dict[str, int] = {}
        self.table_entries = {group.name: group.entries(key.context) for group in groups}
        self.words = 0
        self._blank: tuple[NDArray[np.int32], memoryview, memoryview, bytes] | None = None
        for name in self.HEAD:
            self._place(name, 1)
        for name in self.ROW:
            self._place(name, key.rows)
        first = self.words
        for name in self.SEQ + self.SEQ_STATE + self.SEQ_SAMPLING:
            self._place(name, key.seqs)
        self.sequences = slice(first, self.words)  # the words of sequence s: [s :: seqs]
        for group in groups:
            self._place(f"{group.name}.row_slot", key.rows)  # where each new row is written
            self._place(f"{group.name}.table", key.seqs * self.table_entries[group.name])

    def _place(self, name: str, words: int) -> None:
        self.offset[name], self.size[name] = self.words, words
        self.words += words

    def blank(self) -> tuple[NDArray[np.int32], memoryview]:
        """Words of zeros, and a view to set them by. Always the same ones: plans copy them.

        Setting a few words through a memoryview takes a fraction of NumPy's time, and what
        NumPy does for a token is long out of a processor's caches by the next.
        """
        if self._blank is None:
            array = np.zeros(self.words, np.int32)
            raw = array.data.cast("B")
            # NumPy's int32 is a C long on wasm32.
            self._blank = array, raw.cast("i"), raw, bytes(raw)
        array, words, raw, zeros = self._blank
        raw[:] = zeros
        return array, words


# Ops that read a matrix by rows or by products: a weight that only they read may stay packed.
PACKED_USES = frozenset(
    {"embed", "linear", "gated_linear", "experts", "attend_latent", "grouped_linear"}
)

# Bits of the step word `flags`. LONG: RoPE tables have two halves, the sequence reads the second.
PENALTIES, BIAS, LONG = 1, 2, 4

NOT_FINITE = 1  # bit of the record word `flags`


class RecordLayout:
    """Words of the record that a round returns per sequence: int32 [B, words], floats as bits."""

    TOKEN, LOGPROB, FLAGS, TOP = 0, 1, 2, 3

    def __init__(self, top_logprobs: int) -> None:
        self.top = max(top_logprobs, 0)
        self.words = self.TOP + 2 * self.top  # top ids, then their logprobs


@dataclass(frozen=True, slots=True)
class Recording:
    """A round as data: the unit that a backend compiles."""

    key: PlanKey
    layout: StepLayout
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What came back of a round."""

    records: memoryview  # int32 [B, RecordLayout.words]; empty for emit "none" and "logits"
    logits: NDArray[np.float32] | None = None  # [R, V] for emit "logits"


class Ticket(Awaitable[Round], Protocol):
    """A submitted round. `await` blocks natively and never yields; in the page it yields."""


class Plan(Protocol):
    """A compiled recording."""

    layout: StepLayout

    def submit(self, step: NDArray[np.int32], /) -> Ticket:
        """Run after all rounds submitted before; never waits. `step` [layout.words] is copied."""
        ...


class Backend(Protocol):
    """Owns memory, residency and submission. The runtime owns the integers."""

    name: str
    rounds_in_flight: int  # 2: one round may run ahead of its answer; 1 where submit blocks
    prefill_rows: int  # most rows of one prefill round: bounds its memory and its time
    keeps_prefill: (
        bool  # prefill plans are bucketed and worth keeping; False: exact rows, made anew
    )

    def load(
        self,
        name: str,
        parts: Sequence[LinearWeight],
        /,
        *,
        uses: frozenset[str],
        together: int = 1,
        most: int | None = None,
    ) -> Weight:
        """Make `parts` resident, rows joined. `uses`: the ops that will read it.

        together: so many rows, as those of one expert, are to lie in one buffer. most: rows of one
        buffer, where fewer are wanted than fit.
        """
        ...

    def new_cache(self, name: str, spec: CacheSpec, /, *, group: Group) -> Cache:
        """Zeroed storage for every slot of `group`. A plane of state is a page of one slot."""
        ...

    def copy_slots(self, group: str, source: Sequence[int], target: Sequence[int], /) -> None:
        """Copy tokens' entries in every cache of the group, after all submitted rounds."""
        ...

    def write_lane(
        self, lane: int, /, *, counts: NDArray[np.int32] | None, bias: NDArray[np.float32] | None
    ) -> None:
        """Set a lane's carried sampling state [V], after all submitted rounds.

        counts: 2 × times generated + (1 if seen in the prompt or the answer).
        bias: added to logits.
        """
        ...

    def bucket(self, key: PlanKey, /) -> PlanKey:
        """The smallest plan kept here that holds `key`. Rows equal seqs only if they did before."""
        ...

    def missing(self, op: Op, /) -> str | None:
        """None if the op runs here, else the reason: the recorder then tries simpler ops."""
        ...

    def compile(self, recording: Recording, /) -> Plan: ...

    def memory(self) -> Mapping[str, int]:
        """Bytes held: weights, caches, activations."""
        ...

    def weight_bytes(self, weight: Weight, /) -> int:
        """Of one weight, as resident."""
        ...

    def slot_bytes(self, group: str, /) -> int:
        """Of one token in every cache of the group, as resident."""
        ...

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        ...

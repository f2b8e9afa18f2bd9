"""Kernels are checked before they are used: once per adapter and WGSL text, on a small case.

A wrong one gives way to another variant of the same op, and at last to the reference. In a page
making a plan cannot wait for a device: there the checks are put off until `settle` is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from zllm.backend.contract import Op, PlanKey, Value, Weight
from zllm.backend.drive import drive
from zllm.backend.verdicts import RIGHT, UNREACHED, WRONG, Verdicts, digest
from zllm.backend.webgpu.device import DeviceInfo, Dispatch
from zllm.backend.webgpu.launch import lower, missing
from zllm.backend.webgpu.lowering import Bank
from zllm.backend.webgpu.product import NormedSpec
from zllm.backend.webgpu.product_pairs import takes_pairs
from zllm.errors import BackendError, notice

if TYPE_CHECKING:
    from zllm.backend.webgpu.plan import Compiler
    from zllm.backend.webgpu.reference import Reference

REFUSED = "kernel "  # how drivers begin what they say of a shader or a pipeline
HALF = 1e-2  # tolerance of ops that read or write caches of f16
PAIRS = 3e-4  # of products whose x is integers of 16 bits; a gated result is a product of two
# Formats of banks and those of weights that become them.
STORED_AS = {
    "e4m3": "scaled_e4m3",
    "e5m2": "scaled_e5m2",
    "e2m1": "scaled_e2m1",
    "int5": "packed_int",
    "int8": "scaled_i8",
    "int8_pair": "iq2_s",
}


def coarse(info: DeviceInfo, formats: Iterable[str], rows: int, *, half: bool) -> dict[str, float]:
    """Ops that are less exact than f32, with the difference that is allowed them, of the largest
    result. half: caches are of f16. formats: of a product's banks. rows: of the plan.
    """
    found = dict.fromkeys(("rope_append", "attend"), HALF) if half else {}
    if any(takes_pairs(format, rows, info) for format in formats):
        found |= {"linear": PAIRS, "gated_linear": PAIRS}
    return found


class Scratch(Protocol):
    """A backend on the same device, for one case."""

    def release(self) -> None: ...


# Some kernels are chosen only for many rows, sequences, heads or experts.
LARGER = {"rows": 160, "seqs": 8, "history": 200, "heads": 32, "experts": 64, "chosen": 64}

Lowering = Callable[[Op, "Compiler"], "list[Dispatch] | None"]
OpenScratch = Callable[[Lowering, frozenset[str], int], Any]  # how, ops on the host, lanes


@dataclass(frozen=True, slots=True)
class Question:
    """Kernels without a verdict, and the op of a plan that they serve."""

    op: Op
    key: PlanKey
    formats: dict[str, tuple[str, ...]]  # of its matrices
    banks: dict[str, int]  # that they lie in
    info: DeviceInfo  # as its launcher was told
    unknown: frozenset[str]  # digests


class Trust:
    """The lowering of a backend that uses no kernel without a verdict.

    later: verdicts are found by `settle`; until then what has none is used.
    """

    def __init__(
        self,
        verdicts: Verdicts,
        oracle: Callable[[int], Reference],
        scratch: OpenScratch,
        *,
        half: bool,
        later: bool,
    ) -> None:
        self._verdicts = verdicts
        self._oracle = oracle
        self._scratch = scratch
        self._half = half
        self._later = later
        self._open: dict[frozenset[str], Question] = {}
        self._why: dict[str, str] = {}  # an op's kernel was found wrong
        self._told: set[str] = set()

    def lowered(self, op: Op, compiler: Compiler) -> list[Dispatch] | None:
        """The dispatches of the first variant whose kernels are right; None: the reference."""
        for what, info in variants(compiler.info):
            if what and missing(plain(op)[0], info) is not None:
                continue
            with compiler.seen_as(info):
                dispatches = lower(op, compiler)
            used = digests(op, dispatches)
            if unknown := used - self._verdicts.of.keys():
                stored = stored_formats(op, compiler), bank_counts(op, compiler)
                self._ask(Question(op, compiler.key, *stored, info, frozenset(unknown)))
            if not any(self._verdicts.of.get(d) == WRONG for d in used):
                if what and used <= self._verdicts.of.keys():
                    self._tell(op, f"replaced by the kernels {what}")
                return dispatches
        self._tell(op, "replaced by the NumPy reference, which is slow", self._why.get(op.name, ""))
        return None

    def _tell(self, op: Op, done: str, why: str = "") -> None:
        if op.name not in self._told:
            self._told.add(op.name)
            detail = f" ({why})" if why else ""
            notice(f"webgpu: the kernel of {op.name} is wrong on this adapter{detail}: {done}")

    def _ask(self, question: Question) -> None:
        if self._later:
            self._open[question.unknown] = question
        else:
            drive(self._answer(question))

    async def settle(self) -> bool:
        """Find the verdicts that were put off. True if a plan uses a kernel that is wrong."""
        wrong = False
        while self._open:
            _, question = self._open.popitem()
            wrong |= await self._answer(question)
        return wrong

    async def _answer(self, question: Question) -> bool:
        """Verdicts for the kernels in question; whether one is wrong."""
        unknown = question.unknown - self._verdicts.of.keys()
        found: dict[str, str] = {}
        for larger in (False, True):
            if unknown <= found.keys():
                break
            used, message = await self._probe(question, larger=larger)
            fresh = used - self._verdicts.of.keys() - found.keys()
            found |= dict.fromkeys(fresh, WRONG if message else RIGHT)
            if message:
                self._why.setdefault(question.op.name, message)
        self._verdicts.add(dict.fromkeys(unknown, UNREACHED) | found)
        return any(self._verdicts.of[d] == WRONG for d in question.unknown)

    async def _probe(self, question: Question, *, larger: bool) -> tuple[set[str], str]:
        """The kernels that a small case of the op ran, and what was wrong with its results."""
        from zllm.backend.selftest.case import LANES
        from zllm.backend.selftest.cases import case_of
        from zllm.backend.selftest.reduce import SMALL
        from zllm.backend.selftest.run import checked

        single, norm = plain(question.op)
        used: set[str] = set()

        def lowering(other: Op, scratch: Compiler) -> list[Dispatch]:
            with scratch.seen_as(question.info):
                dispatches = lower(other, scratch)
            if other.name == question.op.name:
                used.update(digests(other, dispatches))
            return dispatches

        try:
            size = replace(SMALL, **LARGER) if larger else SMALL
            case = case_of(
                single,
                question.key,
                question.formats,
                size=size,
                norm=norm,
                banks=question.banks,
            )
        except (KeyError, AssertionError):  # there is no such case
            return used, ""
        own = {single.name} if norm is None else {single.name, norm.name}
        scratch = self._scratch(lowering, (case.ops | {"embed", "logits"}) - own, LANES)
        try:
            formats = chain(*question.formats.values())
            less = coarse(question.info, formats, question.key.rows, half=self._half)
            outcome = await checked(case, scratch, self._oracle(LANES), coarse=less)
            return used, outcome.message
        except BackendError as error:
            if not str(error).startswith(REFUSED):
                raise  # memory that is short, a device that is lost: no word on the kernel
            return used, str(error)
        finally:
            scratch.release()


def variants(info: DeviceInfo) -> Iterator[tuple[str, DeviceInfo]]:
    """What launchers may be told of the device, the truth first."""
    yield "", info
    bare = replace(info, features=info.features - {"subgroups"}, subgroup_size=0)
    if bare != info:
        yield "without subgroups", bare
    other = "GPUs" if info.software else "software adapters"
    yield f"for {other}", replace(bare, software=not info.software)


def digests(op: Op, dispatches: Sequence[Dispatch]) -> set[str]:
    """Of the kernels of an op: one text may serve several ops, and be right for some of them."""
    return {digest(op.name, dispatch.kernel.wgsl) for dispatch in dispatches}


def plain(op: Op) -> tuple[Op, Op | None]:
    """The op as recorded, and the norm that was folded into it."""
    if not isinstance(op.spec, NormedSpec):
        return op, None
    x, w, *rest = op.ins
    assert isinstance(x, Value)
    between = Value(1 << 30, x.shape)
    norm = Op("rms_norm", (x, w), (between,), op.spec.norm)
    name = op.name.removeprefix("norm_")
    return Op(name, (between, *rest), op.outs, op.spec.product), norm


def stored_formats(op: Op, compiler: Compiler) -> dict[str, tuple[str, ...]]:
    """For each matrix the formats of its parts, such as become the banks that it has here."""
    formats: dict[str, tuple[str, ...]] = {}
    for operand in op.ins:
        if isinstance(operand, Weight) and len(operand.shape) == 2:
            banks = compiler.banks(operand)
            starts = [sum(operand.parts[:at]) for at in range(len(operand.parts))]
            formats[operand.name] = tuple(_format(banks, start) for start in starts)
    return formats


def bank_counts(op: Op, compiler: Compiler) -> dict[str, int]:
    """In how many banks each matrix lies."""
    matrices = (w for w in op.ins if isinstance(w, Weight) and len(w.shape) == 2)
    return {weight.name: len(compiler.banks(weight)) for weight in matrices}


def _format(banks: Sequence[Bank], row: int) -> str:
    held = next((b.format for b in banks if b.first_row <= row < b.first_row + b.rows), "f32")
    return STORED_AS.get(held, held)

"""Launcher of the sampler: a scan over all logits, then one workgroup a sequence."""

from __future__ import annotations

from typing import Any

from zllm.backend.contract import Op, RecordLayout
from zllm.backend.webgpu.device import Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.elementwise import places
from zllm.backend.webgpu.kernels import ceil_div, constants
from zllm.backend.webgpu.lowering import Context, View
from zllm.kernel.wgsl.source import compose
from zllm.sampling import SampleSpec

CANDIDATE_TOKENS = 24  # of the vocabulary that one thread of the scan looks at; measured
MAX_CANDIDATES = 8192
RUN_BYTES = 24  # of struct Run
SCAN_THREADS = 32
RECORD_THREADS = 256


def missing_sample(op: Op, info: DeviceInfo) -> str | None:
    spec: SampleSpec = op.spec
    if spec.vocabulary >= 1 << 24:
        return f"a vocabulary of {spec.vocabulary} is not counted exactly in f32"
    return None


def lower_sample(op: Op, context: Context) -> list[Dispatch]:
    spec: SampleSpec = op.spec
    logits = context.view(op.value(0))
    candidates = min(ceil_div(spec.vocabulary, CANDIDATE_TOKENS), MAX_CANDIDATES)
    runs = context.scratch(RUN_BYTES * logits.rows * candidates)
    scores = context.scratch(4 * logits.rows * spec.vocabulary) if spec.full else None
    values = _shared(spec, context, logits, candidates)
    return [
        _scan(context, logits, values, runs, scores),
        _record(spec, context, logits, values, runs, scores),
    ]


def _shared(spec: SampleSpec, context: Context, logits: View, candidates: int) -> dict[str, float]:
    return (
        {
            "VOCABULARY": spec.vocabulary,
            "CANDIDATES": candidates,
            "LOGPROBS": spec.top_logprobs >= 0,
        }
        | _words(context, "valid_seqs", "lane", "flags")
        | places(x=logits)
    )


def _words(context: Context, *names: str) -> dict[str, float]:
    """The offsets of step words, by their names in capitals."""
    return {name.upper(): context.layout.offset[name] for name in names}


def _scan(
    context: Context,
    logits: View,
    shared: dict[str, float],
    runs: Buffer,
    scores: Buffer | None,
) -> Dispatch:
    values, buffers = dict(shared), [logits.buffer, context.step, runs]
    access: list[Any] = ["read", "read", "write"]
    adjust = "adjust_none"
    if scores is not None:
        adjust = "adjust_full"
        values |= _words(context, "repetition", "frequency", "presence")
        buffers += [context.carry_counts(), context.carry_bias(), scores]
        access += ["read", "read", "write"]
    wgsl = compose("sample", adjust, "sample_scan")
    kernel = Kernel("sample_scan", wgsl, tuple(access), constants(values))
    grid = (ceil_div(int(shared["CANDIDATES"]), SCAN_THREADS), logits.rows, 1)
    return Dispatch(kernel, tuple(buffers), grid)


def _record(
    spec: SampleSpec,
    context: Context,
    logits: View,
    shared: dict[str, float],
    runs: Buffer,
    scores: Buffer | None,
) -> Dispatch:
    record = RecordLayout(spec.top_logprobs)
    values = shared | {
        "THREADS": RECORD_THREADS,
        "TOP": record.top,
        "RECORD_WORDS": record.words,
        "RECORD_TOKEN": record.TOKEN,
        "RECORD_LOGPROB": record.LOGPROB,
        "RECORD_FLAGS": record.FLAGS,
        "RECORD_TOP": record.TOP,
    }
    buffers = [logits.buffer, context.step, runs, context.carry_token(), context.result]
    access: list[Any] = ["read", "read", "write", "write", "write"]
    pick = "pick_likeliest"
    if scores is not None:
        pick = "pick_draw"
        values |= _words(
            context, "temperature", "top_k", "top_p", "min_p", "seed_lo", "seed_hi", "draw"
        )
        buffers += [scores, context.carry_counts()]
        access += ["write", "write"]
    wgsl = compose("sample", pick, "sample_record")
    kernel = Kernel("sample_record", wgsl, tuple(access), constants(values))
    return Dispatch(kernel, tuple(buffers), (logits.rows, 1, 1))

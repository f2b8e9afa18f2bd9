"""Cases of what ends a round: the last rows, sampling and its carried state."""

from __future__ import annotations

from zllm.backend.contract import BIAS, PENALTIES, Value
from zllm.backend.selftest.build import DRAWS, Builder
from zllm.backend.selftest.case import Case, Recorder, Sampling
from zllm.sampling import SampleSpec

CARRIED_VOCABULARY = 256  # tokens at most, so that the table of inputs holds a row for each
TOP = 20


def logits(b: Builder) -> Case:
    """Numbers pass unchanged."""
    return b.case([b.input(b.op.value(0).shape[1])], tolerance=0.0)


def last_rows(b: Builder) -> Case:
    """The likeliest columns of each sequence's last row."""
    b.ops.add("sample")
    x, columns = b.operand(0), b.op.value(0).shape[1]
    spec = SampleSpec(columns, False, min(columns, TOP))

    def record(recorder: Recorder) -> None:
        rows = recorder.key.seqs
        (last,) = recorder.run("last_rows", (x(recorder),), (columns,), rows=rows)
        recorder.run("sample", (last,), (), spec)

    return b.case([record], emit="token", top_logprobs=spec.top_logprobs)


def sample(b: Builder) -> Case:
    """Small vocabularies in a second round again, of rows that the drawn tokens name."""
    spec: SampleSpec = b.op.spec
    carried = spec.vocabulary <= CARRIED_VOCABULARY and len(b.rounds) > 1
    rows = max(b.tokens, spec.vocabulary) if carried else b.tokens
    x = b.input(spec.vocabulary, DRAWS["sample", 0], rows=rows)

    def record(recorder: Recorder) -> None:
        recorder.run("sample", (x(recorder),), (), spec)

    return b.case(
        [record],
        emit="token",
        sampler="full" if spec.full else "greedy",
        top_logprobs=spec.top_logprobs,
        sampling=_sampling(b, spec.vocabulary) if spec.full else Sampling(),
        carried=carried,
    )


def _sampling(b: Builder, vocabulary: int) -> Sampling:
    words = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01}
    words |= {"repetition": 1.2, "frequency": 0.3, "presence": 0.2, "seed_lo": 7, "seed_hi": -9}
    counts = b.rng.integers(0, 6, vocabulary, dtype="int32")
    bias = b.rng.standard_normal(vocabulary).astype("float32")
    return Sampling(words, PENALTIES | BIAS, counts, bias)


def embed(b: Builder) -> Case:
    """The table itself is under test, in its format."""
    table = b.operand(0)

    def record(recorder: Recorder) -> Value:
        return b.run([table], recorder)[0]

    return b.case([record])

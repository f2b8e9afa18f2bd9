"""Which tests of the cross-backend suite a page runs: less than natively, since SwiftShader takes
0.2 s of both cores a pipeline. Every op and architecture is there on each backend, and a third of
the weight formats; with ZLLM_BROWSER_SUITE=all in every shape that has kernels of its own, and by
three tests a model.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from tests.cross_backend import test_golden, test_ops
from tests.cross_backend.backends import BACKENDS

FOLDER = "tests/cross_backend"
# Ops with kernels of their own for rounds of single tokens.
DECODED = {"linear", "gated_linear", "grouped_linear", "experts", "embed"}
# Models whose ops are those of another, with other weights: natively they run everywhere.
ONLY_NATIVE = {
    "deepseek_v3_noqlora",
    "glm5_next_b",
    "glm5_next_fp8",
    "glm5_next_mtp",
    "glm5_next_notail",
    "llama_rope3",
}

ALL = os.environ.get("ZLLM_BROWSER_SUITE") == "all"
WHOLE = "test_full[{}-0]"  # a prompt at once: one plan
# A prefill, an append and single tokens; greedy ids.
STEPS = ["test_prefill_append_decodes[{}-1]", "test_greedy_ids[{}]"]
STEPPED = {"llama"}  # without ALL only these meet the first of STEPS


def _ops(backend: str) -> Iterator[str]:
    """Of each title (an entry's name without its shape) one shape, or two where kernels differ."""
    titles: dict[str, list[str]] = {}
    for entry in test_ops.ENTRIES:
        titles.setdefault(entry.name.rpartition(",")[0], []).append(entry.name)
    for names in titles.values():
        # Formats are decoded by the same text natively: here each third, drawn by its name.
        if not ALL and names[0].startswith("linear") and zlib.crc32(names[0].encode()) % 3:
            continue
        decoded = ALL and test_ops.NAMED[names[0]].op.name in DECODED
        uneven = [name for name in names if name.endswith(", uneven")]
        for name in dict.fromkeys([*names[: int(decoded)], *(uneven or names[-1:])]):
            yield f"{FOLDER}/test_ops.py::test_op[{backend}-{name}]"


def _models(backend: str) -> Iterator[str]:
    for model in test_golden.MODELS:
        if model not in ONLY_NATIVE:
            steps = STEPS if ALL else STEPS[: int(model in STEPPED)]
            for test in (WHOLE, *steps):
                yield f"{FOLDER}/test_golden.py::{test.format(f'{backend}-{model}')}"


OPS = [test for backend in BACKENDS for test in _ops(backend)]
MODELS = [test for backend in BACKENDS for test in _models(backend)]

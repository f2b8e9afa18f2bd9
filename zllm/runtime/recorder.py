"""The recorder: turns one call of a decoder into the list of operations of a plan key."""

from __future__ import annotations

from zllm.runtime.recorders.attention import AttentionRecorder
from zllm.runtime.recorders.compressed import CompressedRecorder
from zllm.runtime.recorders.core import CoreRecorder
from zllm.runtime.recorders.mixing import HyperRecorder, KdaRecorder, MoeRecorder


class Recorder(
    CoreRecorder,
    AttentionRecorder,
    CompressedRecorder,
    KdaRecorder,
    MoeRecorder,
    HyperRecorder,
):
    """Implements every capability Protocol."""

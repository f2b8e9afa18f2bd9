"""What weights and caches take on a device, and how much memory there is: nothing is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from zllm.backend.contract import Group, Op
from zllm.backend.webgpu.device import DeviceInfo
from zllm.backend.webgpu.host_rows import resident_format
from zllm.backend.webgpu.launch import resident
from zllm.backend.webgpu.store import Dtype, slot_sizes
from zllm.kv_cache.spec import CacheSpec
from zllm.moe.experts import ExpertsSpec
from zllm.weight.linear_weight import LinearWeight

MEMINFO = "/proc/meminfo"


def matrix_bytes(parts: Sequence[LinearWeight], info: DeviceInfo) -> int:
    """As `upload_matrix` holds [N, D] parts."""
    columns = parts[0].shape[1]
    words = (p.shape[0] * resident(resident_format(p), columns, info).row_words for p in parts)
    return 4 * sum(words)


def f32_bytes(parts: Sequence[LinearWeight]) -> int:
    """As `upload_f32` holds them."""
    return 4 * sum(math.prod(part.shape) for part in parts)


def cache_bytes(spec: CacheSpec, group: Group, kv_dtype: Dtype) -> int:
    """As `open_store` holds every slot of the group."""
    return group.pages * group.page_slots * sum(slot_sizes(spec, kv_dtype))


def scratch_bytes(op: Op, info: DeviceInfo) -> int:
    """What its kernels leave to each other, at most, where that may be more than its results."""
    if op.name != "experts":
        return 0
    spec: ExpertsSpec = op.spec
    pairs = op.value(0).shape[0] * op.value(1).shape[1]
    if info.software:
        return 4 * pairs * spec.width
    order = 4 * pairs + 1  # of pairs, and as many tiles
    return 4 * (order + pairs * (spec.width + op.outs[0].shape[1]))


def free_memory() -> int | None:
    """Bytes of the machine's memory that programs may still take; None where it does not say."""
    try:
        with open(MEMINFO, encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None

"""Formats without a kernel are refused before anything is uploaded."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.weights import tensor
from zllm.backend.webgpu.upload import upload_matrix
from zllm.errors import BackendError
from zllm.quant.block_scaled import BlockScaleSpec
from zllm.weight.linear_weight import Encoded, LinearWeight, Quantized

DATA = tensor(np.zeros(1024, np.uint8)).data
SCALED = Encoded((4, 4), DATA, "scaled_e4m3", {}, BlockScaleSpec(4, 4, 4))


@pytest.mark.parametrize("weight", [Quantized((4, 256), DATA, "iq1_s"), SCALED])
def test_one_line_names_weight_format_and_way_out(weight: LinearWeight) -> None:
    message = (
        f"^layers.0.q: no WebGPU kernel decodes {weight.format}, there are kernels for f32,.*"
        " use --backend oracle$"
    )
    with pytest.raises(BackendError, match=message):
        upload_matrix(cast(Any, None), "layers.0.q", [weight])

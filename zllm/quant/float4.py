"""Four-bit floats E2M1 (OCP Microscaling Formats v1.0, section 5.3.3), and GGUF's blocks of them.

Layouts: ggml, `ggml-common.h` (block_mxfp4, block_nvfp4). A GGUF block keeps its first half in low
nibbles and its second half in high ones; safetensors keep neighbours in one byte.
"""

from __future__ import annotations

import numpy as np

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
# Both elements of a byte, low nibble first: [256, 2].
PAIRS = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], axis=1)

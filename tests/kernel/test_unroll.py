"""Loops written out. Seeded fault seen to fail: an inner `// end` ends the outer loop."""

from __future__ import annotations

import pytest

from zllm.kernel.wgsl.unroll import unroll

NESTED = """a
  // unroll i TWO
  let x_$i = $iu;
  // unroll k 3
  y_$i_$k;
  // end
  // end
b"""


def test_bodies_are_repeated_and_numbered() -> None:
    lines = [line.strip() for line in unroll(NESTED, {"TWO": 2}).split("\n")]
    first = ["let x_0 = 0u;", "y_0_0;", "y_0_1;", "y_0_2;"]
    second = ["let x_1 = 1u;", "y_1_0;", "y_1_1;", "y_1_2;"]
    assert lines == ["a", *first, *second, "b"]


def test_other_text_stays() -> None:
    text = "// unrolled\nfor (var i = 0u; i < 2u; i++) { s += $i; }\n// ending"
    assert unroll(text, {}) == text


def test_a_loop_without_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="no '// end'"):
        unroll("// unroll i 2\nx", {})

"""The cases that every backend has to pass: every op, over awkward shapes."""

from __future__ import annotations

from zllm.backend.contract import Cache
from zllm.backend.selftest.build import Rounds

# Rounds of ops that look at one row at a time: alone, a decode of three sequences, a prefill.
ONE: Rounds = ((1,),)
THREE: Rounds = ((1, 1, 1),)
PREFILL: Rounds = ((5, 1, 7),)
MANY: Rounds = ((67,),)
# Of ops that look along a sequence: prefill, append, decode; sequences of different lengths, one of
# which pauses and one begins late.
ALONE: Rounds = ((1,), (1,), (19,), (1,))
UNEVEN: Rounds = ((33, 0, 3), (5, 9, 2), (1, 1, 1), (1, 0, 1))
LONG: Rounds = ((130, 7), (1, 1))
ROWS = {"one": ONE, "three": THREE, "prefill": PREFILL, "many": MANY}
SEQUENCES = {"alone": ALONE, "uneven": UNEVEN, "long": LONG}

CACHE = Cache("", "")

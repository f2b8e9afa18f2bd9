"""What each kind of cache keeps: per token in a slot, or per sequence in a plane."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvSpec:
    """Per token one key and one value of K numbers for each of G heads."""

    kv_heads: int  # G
    head_size: int  # K

    @property
    def halved(self) -> bool:
        """Whether it may be kept as f16: kernels read eight such numbers at once."""
        return self.head_size % 8 == 0


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Per token one vector that all heads share: MLA's latent and rotated key, side by side."""

    width: int


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Per token the key by which an indexer finds it.

    pool > 1: keys are scored in pools of that many consecutive tokens; the raw key and gate of each
    token are kept, and a pool's key in the slot of its last token.
    """

    size: int  # e
    pool: int = 1


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """Per token what a compressor reads of it: a key and a gate, each of 2·size if windows overlap.

    The entry of a window, of `size` numbers, is kept in the slot of the window's last token.
    """

    size: int  # K
    overlap: bool

    @property
    def width(self) -> int:
        """Numbers of a token's key, and of its gate."""
        return 2 * self.size if self.overlap else self.size


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Per sequence one array: a recurrent state, or a convolution's last inputs."""

    shape: tuple[int, ...]


CacheSpec = KvSpec | LatentSpec | IndexSpec | EntrySpec | StateSpec


def values_per_token(spec: CacheSpec) -> int:
    """Numbers that one more token adds."""
    match spec:
        case KvSpec(kv_heads=heads, head_size=size):
            return 2 * heads * size
        case LatentSpec(width=width):
            return width
        case IndexSpec(size=size, pool=pool):
            return size if pool == 1 else 3 * size
        case EntrySpec(size=size, width=width):
            return size + 2 * width
        case StateSpec():
            return 0

"""Paged key/value cache: which pages a sequence owns. Arithmetic only; backends own the memory."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PagePool:
    """Reference-counted pages. Page 0 is scratch and is never handed out."""

    pages: int
    page_slots: int
    references: list[int] = field(init=False)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.references = [0] * self.pages
        self._free = list(range(self.pages - 1, 0, -1))  # popped from the end: ascending pages

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        page = self._free.pop()
        self.references[page] = 1
        return page

    def share(self, page: int) -> int:
        assert self.references[page] > 0
        self.references[page] += 1
        return page

    def release(self, page: int) -> None:
        assert self.references[page] > 0
        self.references[page] -= 1
        if not self.references[page]:
            self._free.append(page)


@dataclass(slots=True)
class PageTable:
    """The pages of one sequence, and how many of its tokens are cached.

    `begin(n)` makes room for n tokens after `length`, a round writes them, `commit(k)` keeps the
    first k, `rollback` drops the pages beyond `length`. Rows past `length` are never read.
    """

    pool: PagePool
    pages: list[int] = field(default_factory=list)
    length: int = 0  # committed tokens

    def missing(self, tokens: int) -> int:
        """Pages to allocate before `tokens` more fit."""
        return max(0, -(-(self.length + tokens) // self.pool.page_slots) - len(self.pages))

    def begin(self, tokens: int) -> None:
        """Make room; the caller has checked `missing` against `pool.free`."""
        for _ in range(self.missing(tokens)):
            self.pages.append(self.pool.allocate())

    def commit(self, tokens: int) -> None:
        self.length += tokens
        assert self.length <= len(self.pages) * self.pool.page_slots

    def rollback(self) -> None:
        keep = -(-self.length // self.pool.page_slots)
        while len(self.pages) > keep:
            self.pool.release(self.pages.pop())

    def slot(self, position: int) -> int:
        """Where the token at `position` is stored."""
        page, offset = divmod(position, self.pool.page_slots)
        return self.pages[page] * self.pool.page_slots + offset

    def fork(self, tokens: int) -> tuple[PageTable, list[int], list[int]]:
        """A table with this one's first `tokens`: full pages shared, the open page copied.

        Returns it with the slots to copy from and to; the caller has checked that one page is free.
        """
        full, open_slots = divmod(tokens, self.pool.page_slots)
        twin = PageTable(self.pool, [self.pool.share(page) for page in self.pages[:full]], tokens)
        if not open_slots:
            return twin, [], []
        twin.pages.append(self.pool.allocate())
        first = full * self.pool.page_slots
        positions = range(first, first + open_slots)
        return twin, [self.slot(p) for p in positions], [twin.slot(p) for p in positions]

    def close(self) -> None:
        while self.pages:
            self.pool.release(self.pages.pop())
        self.length = 0

"""Prefetching: the next batch of data is read while the engine runs the current one."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from evaluators import cores

T = TypeVar("T")
_WORTH_S = 0.001  # a read that takes less is not worth a thread


def read_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items in the same order, each read by one other thread while the caller works on the one before it.

    Reading begins in the caller's thread and moves to the other once it takes a while. What reading raises is raised
    where its item would have come. Close the generator, or exhaust it, before the items' source is used otherwise.
    """
    for item in items:
        yield item
        start = time.perf_counter()
        following = next(items, None)
        if following is None:
            return
        if time.perf_counter() - start > _WORTH_S:
            yield from _beside(following, items)
            return
        yield following


def _beside(item: T | None, items: Iterator[T]) -> Generator[T, None, None]:
    with ThreadPoolExecutor(1, "reading", initializer=cores.bind_thread, initargs=(cores.spare_cpus(),)) as pool:
        while item is not None:
            coming = pool.submit(next, items, None)
            yield item
            item = coming.result()

"""Calls that several threads make at the same time."""

import threading
from concurrent import futures


def at_once(call, times=8):
    """Call something in so many threads at once; return what the calls returned."""
    begin = threading.Barrier(times)

    def run(_number):
        begin.wait(30)
        return call()

    with futures.ThreadPoolExecutor(times) as pool:
        return list(pool.map(run, range(times)))

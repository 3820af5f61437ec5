"""Running what is asynchronous from a test that is not."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(once: Coroutine[Any, Any, Result]) -> Result:
    """In a thread of its own: a browser of other tests may have left a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, once).result()

"""How late an event loop gets to its work: one that has a process of its own says so as JSON.

python -m benchmarks.dashboard_loop SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys

TICK_S = 0.01


async def lags(seconds: float) -> list[float]:
    """How late the loop is each time that it was to do something."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    found: list[float] = []
    while (now := loop.time()) < end:
        await asyncio.sleep(TICK_S)
        found.append(loop.time() - now - TICK_S)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(lags(float(sys.argv[1])))))

"""The real worker process on the reach task: ``python -m tests.reach_worker collect|evaluate ...``."""

from __future__ import annotations

import os
import sys

if os.environ.get("REACH_WORKER_BROKEN"):
    sys.exit("the simulator is broken on purpose")

from sim import worker
from tests.reach import ReachEnv

if __name__ == "__main__":
    worker.make_environment = lambda environment: ReachEnv()
    worker.main(sys.argv[1:])

"""A learner process on the reach task, to be killed by tests: ``python -m tests.reach_learner RUN``."""

from __future__ import annotations

import sys
from pathlib import Path

from flowrl.learner.loop import finetune
from flowrl.learner.run import Run
from tests.learner.test_asynchronous import reach_simulation

if __name__ == "__main__":
    run = Run(Path(sys.argv[1]))
    finetune(run, run.config(), reach_simulation())

# SPDX-License-Identifier: Apache-2.0
"""pacemaker.py CORE PARENT: interrupts whatever runs on a core twice a millisecond, until process PARENT has ended.

Linux enforces CPU quotas when it looks at the clock: at its ticks, every 4 ms with the usual 250 Hz, and whenever another
process gets the core. With ticks alone a rank that may run 1 ms in 10 runs for 4 ms and is stopped for 40, which no
slow processor does. A process that becomes ready twice a millisecond makes the kernel look that often.
"""

import os
import sys
import time

SECONDS = 500e-6


def main():
    core, parent = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while os.getppid() == parent:
        time.sleep(SECONDS)


if __name__ == "__main__":
    main()

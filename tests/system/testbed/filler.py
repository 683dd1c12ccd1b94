# SPDX-License-Identifier: Apache-2.0
"""filler.py PARENT: uses what its control group has left of its processor time, until process PARENT has ended.

A quota is for a period: a rank that waits for a message in it may compute at the core's full speed afterwards, until the
quota is used up. A slow processor does not do that. So this uses the time meanwhile, at a priority below all others.
"""

import os
import sys


def main():
    parent = int(sys.argv[1])
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("filling", flush=True)
    while os.getppid() == parent:
        pass


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Ports for jobs of tests, which no other test takes."""

import contextlib
import socket


def listens(port):
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as jobs do
        probe.bind(("", port))
        probe.listen()
        return True
    return False


class FreePorts:
    """`port` and the next one, where the keepers of a job meet, are free. While this lives no other test gets either of them,
    nor do connections, as in tests/tools/run/jobs.h, which claims ports by the same names."""

    def __init__(self):
        for port in range(20000, 32768, 2):  # Linux takes the local ports of connections from 32768 on
            self.claim = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):  # another test has the name
                self.claim.bind(f"\0agpcs-test-port-{port}")
                if listens(port) and listens(port + 1):
                    self.port = port
                    return
            self.claim.close()
        raise OSError("no port is free")

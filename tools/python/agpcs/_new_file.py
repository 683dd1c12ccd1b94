# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all."""

import contextlib
import os
import secrets
import stat


def write(path, content):
    """Writes text (UTF-8, LF) or bytes to a file, which has its old content until all of the new one is there. Meanwhile the
    new one lies beside it under a name that nobody can guess. A device or a pipe is written to as it is. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    target = os.path.realpath(path)  # a link stays one
    mode = os.stat(target).st_mode if os.path.exists(target) else None
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as file:
            file.write(data)
        return
    new = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            file.write(data)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise

# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all."""

import contextlib
import os
import secrets
import stat


def write(path, content):
    """Writes text (UTF-8, LF) or bytes to a file that a user names, as `replace` does; but a link to a file stays one, and a
    device or a pipe is written to as it is. Raises OSError."""
    if not os.path.exists(path):  # also a link to nowhere
        return replace(path, content)
    target, mode = os.path.realpath(path), os.stat(path).st_mode
    # The real path of /dev/stdout is none where that is a pipe, or a file without a name.
    if not (stat.S_ISREG(mode) and os.path.exists(target)):
        with open(path, "wb") as file:
            file.write(_bytes_of(content))
    else:
        replace(target, content, mode, os.fspath(path))


def replace(path, content, mode=None, named=None):
    """Puts a file in the place of whatever has that name, even of a link. What was there stays until all of the new file is
    written. Meanwhile it lies beside under a name that nobody can guess. `mode` is the file's, if the umask does not decide
    it; errors name the path as `named`. Raises OSError."""
    new = f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, named or os.fspath(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            file.write(_bytes_of(content))
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _bytes_of(content):
    return content.encode() if isinstance(content, str) else content

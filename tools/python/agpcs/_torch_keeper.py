# SPDX-License-Identifier: Apache-2.0
"""Keeper: knows which rank of a process group is gone, whatever the group's backend makes of it.

Each rank keeps one TCP connection to rank 0, on which a thread waits. The kernel closes a process's connections when it
ends, however it ends, so rank 0 learns at once that a rank is gone, and tells the others; they learn of rank 0 themselves.
A step sends nothing.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import multiprocessing.util
import os
import re
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
import warnings
import weakref

import torch.distributed as dist

from agpcs._errors import RankLost

PING_SECONDS = 10.0  # rank 0 asks so often whether a rank still answers
SILENT_SECONDS = 30.0  # a rank that has not answered for so long is told
VANISHED_SECONDS = 20  # a machine whose kernel has not answered for so long is gone
NAMED_SECONDS = 5.0  # an error of the group waits so long for the name of the rank that is gone
LEAVE_SECONDS = 8.0  # a process that waits for a rank that is gone ends after so long, if nothing else ends it
CONNECT_SECONDS = 3.0  # of each of rank 0's addresses
MOST_BYTES = 1 << 16  # of a message
MOST_STRANGERS = 128  # connections that have not shown that they know the token
OF_GROUPS = re.compile("gloo|nccl|connection|timed out", re.IGNORECASE)  # what errors of process groups say

HINT = ("\n  hint: what it printed last, or the kernel's log on its host (out of memory?), says why; torchrun "
        "--max-restarts=N starts the job again, from your last checkpoint")
ITS_ERROR = "\n  hint: its own output has the whole error"
STOPPED = ("\n  hint: it is stopped, or its machine is overloaded; the job waits for it as long as "
           "init_process_group(timeout=...) says")

_keepers = weakref.WeakKeyDictionary()  # by process group
_keepers_of_forks = weakref.WeakSet()  # a process that a rank forks must not hold the rank's connections


def keeper_of(links):
    """Returns the Keeper of a group, and makes it if there is none. All ranks of the group call it alike."""
    group = dist.distributed_c10d._get_default_group() if links.group is None else links.group
    if group not in _keepers:
        keeper = _keepers[group] = Keeper(links)
        weakref.finalize(group, keeper.close)  # also when the interpreter ends
        # Processes of multiprocessing end in another way.
        multiprocessing.util.Finalize(None, lambda: keeper.close(sys.exc_info()[1]), exitpriority=100)
    return _keepers[group]


class Keeper:
    """Watches the ranks of a group, from its making to the group's end."""

    def __init__(self, links):
        self.lost = None  #: what is known of the first rank that is gone, as the text of an error
        self.waiting = False  #: whether this process does nothing but wait for other ranks just now
        self._cuda = links.device.type == "cuda"  # there, processes wait after the call that asked for something
        self._rank, self._ranks = links.rank, links.ranks
        self._left, self._silent = None, {}  # a rank that ended without an error; those that do not answer; as texts
        self._news = threading.Condition()
        self._said, self._closed = threading.Event(), threading.Event()
        self._sockets, self._thread, self._process = [], None, os.getpid()
        if self._ranks > 1:
            self._connect(links)

    def _connect(self, links):
        listener = _Listener() if self._rank == 0 else None
        mine = {"host": socket.gethostname(), "process": os.getpid(), **(listener.facts if listener else {})}
        every = links.gather(mine)
        self._names = [f"rank {links.global_rank(rank)} (host {facts['host']}, process {facts['process']})"
                       for rank, facts in enumerate(every)]
        if listener is not None:
            self._end = _Hub(self, listener)
        else:
            line = _call(every[0], self._rank)
            self._end = None if line is None else _Spoke(self, line)
        _keepers_of_forks.add(self)
        if self._end is not None:
            self._thread = threading.Thread(target=self._run, name="agpcs-keeper", daemon=True)
            self._thread.start()
        unreached = [rank for rank, fine in enumerate(links.gather(self._end is not None)) if not fine]
        if unreached:
            self.close()
            self._thread = None
            if self._rank == 0:
                warnings.warn(f"{self._names[unreached[0]]} cannot connect to rank 0 at "
                              f"{', '.join(every[0]['addresses'])}: a rank that dies will not be named\n"
                              "  hint: ranks need TCP between their hosts, on any port")

    @contextlib.contextmanager
    def naming(self):
        """For a time in which this process waits for others: an error of the process group becomes RankLost."""
        self.waiting = True
        try:
            yield
        except RuntimeError as error:
            self.explain(error)
            raise
        finally:
            self.waiting = False

    def explain(self, error):
        """Raises the RankLost that explains an error of the process group. Returns if nobody is gone."""
        # Other errors than those of a process group need not wait for news of other ranks.
        if not isinstance(error, RankLost) and self._is_known(NAMED_SECONDS if OF_GROUPS.search(str(error)) else 0.0):
            self._said.set()
            raise RankLost(self.lost) from error

    def check(self):
        """Raises RankLost if a rank is known to be gone."""
        if self.lost is not None:
            self._said.set()
            raise RankLost(self.lost)

    def _is_known(self, seconds):
        """Waits until it is known which rank is gone. Returns False if that does not become known."""
        if self._thread is None:
            return False
        with self._news:
            self._news.wait_for(lambda: self.lost or self._left or self._silent, seconds)
            if self.lost is None:
                self.lost = next(iter(self._silent.values()), self._left)
            return self.lost is not None

    def close(self, failure=None):
        """Ends the watching, and tells the others that this rank ends by itself. `failure`: what ends it."""
        if os.getpid() != self._process:
            return
        if self._thread is not None and not self._closed.is_set():
            self._tell_the_others(failure)
        if self._thread is threading.current_thread():
            return  # it collects garbage: it closes the sockets once it has heard of the end
        if self._thread is not None:
            # It may collect garbage just now. A process aborts where a thread still frees a process group while the
            # interpreter ends (PyTorch issue 38228).
            self._thread.join(LEAVE_SECONDS)
        self.forget_sockets()

    def _tell_the_others(self, failure):
        failure = failure or getattr(sys, "last_value", None)  # what ended the script
        if isinstance(failure, SystemExit):
            failure = failure.__context__ if failure.code else None
        if OF_GROUPS.search(str(failure)) and not self._said.is_set() and self._is_known(NAMED_SECONDS):
            self._say()
        self._closed.set()
        self._said.set()  # nothing waits to be said any more
        ended = "ended", None if failure is None else f"{type(failure).__name__}: {failure}".splitlines()[0][:1000]
        self._end.leave(*(ended if self.lost is None else ("gone", self.lost)))

    def _say(self):
        if not self._said.is_set():
            self._said.set()
            _print(self.lost)

    def _run(self):
        self._end.watch()
        if self._closed.is_set():
            self.forget_sockets()
            return
        if self.lost is None or self._said.wait(LEAVE_SECONDS):
            return
        self._say()
        if self.waiting or self._cuda:
            # The process group does not notice. NCCL never does, nor does Gloo while children of that process hold its
            # connections, or when its machine vanished. No exception reaches a thread that waits outside of Python.
            _print("this process still waits for it, and ends")
            os._exit(1)

    # What the thread has heard ------------------------------------------------------------------------------------------

    def name_of(self, rank):
        return self._names[rank]

    def is_lost(self, what):
        with self._news:
            if self.lost is None and not self._closed.is_set():
                self.lost = what
            self._news.notify_all()

    def has_left(self, rank):
        with self._news:
            self._left = self._left or (f"{self._names[rank]} has ended, and this rank still waits for it\n"
                                        "  hint: all ranks make as many steps; PlanSampler gives them as many batches")
            self._news.notify_all()

    def is_silent(self, rank, tells):
        """A rank does not answer. The rank that `tells` prints it."""
        what = f"{self._names[rank]} has not answered for {SILENT_SECONDS:.3g} s{STOPPED}"
        with self._news:
            if rank in self._silent:
                return
            self._silent[rank] = what
            self._news.notify_all()
        if tells:
            _print(what)

    def answers(self, rank, tells):
        with self._news:
            if self._silent.pop(rank, None) is None:
                return
        if tells:
            _print(f"{self._names[rank]} answers again")

    @property
    def silent(self):
        return sorted(self._silent)

    def forget_sockets(self):
        for each in self._sockets:
            each.close()


def _print(text):
    sys.stderr.write(f"agpcs: {text}\n")  # at once, for other ranks write to the same place
    sys.stderr.flush()


def _in_child():
    for keeper in list(_keepers_of_forks):
        keeper.forget_sockets()


os.register_at_fork(after_in_child=_in_child)


# The two ends of the connections ----------------------------------------------------------------------------------------

class _Line:
    """A connection that carries lists, one a line, as JSON."""

    def __init__(self, connection):
        self.socket, self._bytes, self._lock = connection, b"", threading.RLock()
        self.rank = None  # of the other end, once it is known
        self.nonces = None  # on rank 0, until then: both ends'
        connection.settimeout(CONNECT_SECONDS)
        for level, option, value in ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                                     (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                                     (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_SECONDS // 2),
                                     (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_SECONDS // 4),
                                     (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
                                     (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_SECONDS * 1000)):
            connection.setsockopt(level, option, value)

    def send(self, *what):
        with self._lock, contextlib.suppress(OSError):  # `receive` tells that the other end is gone
            self.socket.sendall(json.dumps(what).encode() + b"\n")

    def receive(self):
        """Returns the messages that have come, and waits for some. Raises OSError or ValueError at the connection's end."""
        came = self.socket.recv(MOST_BYTES)
        *lines, self._bytes = (self._bytes + came).split(b"\n")
        if not came or len(self._bytes) > MOST_BYTES:
            raise ConnectionResetError
        return [json.loads(line) for line in lines]


def _proof(token, end, rank, nonces):
    """Returns what shows that one end of rank `rank`'s connection knows the token, on this connection alone."""
    return hmac.new(token.encode(), json.dumps([end, rank, *nonces]).encode(), hashlib.sha256).hexdigest()


def _same(proof, expected):
    return hmac.compare_digest(str(proof).encode(), expected.encode())


def _end_of(error):
    """Returns how a rank's connection has ended."""
    vanished = getattr(error, "errno", None) in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
    return f"is gone: its machine has not answered for {VANISHED_SECONDS} s" if vanished else "is gone: its process ended"


class _Listener:
    """Rank 0's socket, and what others need to know to connect to it."""

    def __init__(self):
        both = socket.has_dualstack_ipv6()
        self.socket = socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET,
                                           dualstack_ipv6=both, backlog=4096)
        self.facts = {"addresses": _addresses(), "port": self.socket.getsockname()[1], "token": secrets.token_hex(16)}


def _addresses():
    """Returns the addresses of this machine, those first by which others are likely to reach it."""
    found = [os.environ["MASTER_ADDR"]] if "MASTER_ADDR" in os.environ else []
    names = sorted((name for _, name in socket.if_nameindex()), key=lambda name: name == "lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in names:
            with contextlib.suppress(OSError):  # it has no address
                said = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(said[20:24]))
    return list(dict.fromkeys(found))


def _call(hub, rank):
    """Connects to rank 0. Returns the _Line, or None."""
    for address in hub["addresses"]:
        try:
            line = _Line(socket.create_connection((address, hub["port"]), timeout=CONNECT_SECONDS))
        except OSError:
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):  # another program listens there
            nonce = secrets.token_hex(16)
            line.send(nonce)
            [[other]] = line.receive()
            line.send(rank, _proof(hub["token"], "rank", rank, [nonce, other]))
            [[proof]] = line.receive()
            if _same(proof, _proof(hub["token"], "rank 0", rank, [nonce, other])):
                return line
        line.socket.close()
    return None


class _Hub:
    """Rank 0's end of all connections."""

    def __init__(self, keeper, listener):
        self._keeper, self._token, self._listener = keeper, listener.facts["token"], listener.socket
        self._lines, self._heard, self._asked = {}, {}, set()  # by rank: its line, when it was heard; who was asked
        self._strangers = []  # lines that have not shown that they know the token, the oldest first
        woken, self._waker = socket.socketpair()
        keeper._sockets += [self._listener, woken, self._waker]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._welcome)
        self._selector.register(woken, selectors.EVENT_READ, None)

    def leave(self, *words):
        self._tell(*words)
        with contextlib.suppress(OSError):  # `watch` has ended just now, and its thread has closed the sockets
            self._waker.send(b"!")

    def watch(self):
        """Returns when a rank is gone, or when this process ends."""
        asks = time.monotonic() + PING_SECONDS
        while self._keeper.lost is None:
            for key, _ in self._selector.select(max(asks - time.monotonic(), 0.0)):
                if key.data is None:
                    return
                key.data()
            if time.monotonic() >= asks:
                if time.monotonic() - asks >= PING_SECONDS:  # this process was stopped, and heard nothing meanwhile
                    self._heard = dict.fromkeys(self._heard, time.monotonic())
                self._ask()
                asks = time.monotonic() + PING_SECONDS
        self._tell("gone", self._keeper.lost)

    def _tell(self, *what):
        for line in list(self._lines.values()):
            line.send(*what)

    def _is_gone(self, rank, what, hint=HINT):
        said = f"{self._keeper.name_of(rank)} {what}{hint}"
        self._tell("gone", said)  # first, for this process may end at once when it knows
        self._keeper.is_lost(said)

    def _welcome(self):
        with contextlib.suppress(OSError):
            line = _Line(self._listener.accept()[0])
            self._keeper._sockets.append(line.socket)
            self._selector.register(line.socket, selectors.EVENT_READ, lambda: self._hear(line))
            self._strangers.append(line)
            if len(self._strangers) > MOST_STRANGERS:  # a rank introduces itself at once
                self._forget(self._strangers[0])

    def _hear(self, line):
        try:
            for message in line.receive():
                if line.rank is None:
                    if self._introduce(line, *message):
                        self._heard[line.rank] = time.monotonic()
                    continue
                if message[0] in ("ended", "gone"):
                    self._forget(line)
                    self._has_ended(line.rank, *message)
                    return
                self._keeper.answers(line.rank, tells=True)
                self._heard[line.rank] = time.monotonic()
                self._asked.discard(line.rank)
        except (OSError, ValueError, TypeError) as error:
            self._forget(line)
            if line.rank is not None:
                self._is_gone(line.rank, _end_of(error))

    def _introduce(self, line, *words):
        """Takes a nonce and gives one, then takes a rank and its proof and gives one. Returns whether that is done."""
        if line.nonces is None:
            [nonce] = words
            line.nonces = [str(nonce), secrets.token_hex(16)]
            line.send(line.nonces[1])
            return False
        rank, proof = words
        if not _same(proof, _proof(self._token, "rank", rank, line.nonces)):
            raise ValueError("a stranger")
        line.send(_proof(self._token, "rank 0", rank, line.nonces))
        line.rank, self._lines[rank] = rank, line
        self._strangers.remove(line)
        if len(self._lines) == self._keeper._ranks - 1:
            self._selector.unregister(self._listener)
            self._listener.close()
            for stranger in list(self._strangers):
                self._forget(stranger)
        return True

    def _has_ended(self, rank, kind, what):
        if kind == "gone":  # it ends because of another one
            self._tell("gone", what)
            self._keeper.is_lost(what)
        elif what is not None:
            self._is_gone(rank, f"ended with {what}", ITS_ERROR)
        else:
            self._keeper.has_left(rank)
            self._tell("left", rank)

    def _forget(self, line):
        if line.socket.fileno() < 0:  # already forgotten, by a select that also told of what it said
            return
        self._selector.unregister(line.socket)
        line.socket.close()
        self._lines.pop(line.rank, None)
        if line in self._strangers:
            self._strangers.remove(line)

    def _ask(self):
        for rank, line in self._lines.items():
            if time.monotonic() - self._heard[rank] >= SILENT_SECONDS:
                self._keeper.is_silent(rank, tells=True)
        for rank in set(self._lines) - self._asked:
            self._asked.add(rank)
            self._lines[rank].send("there?", self._keeper.silent)


class _Spoke:
    """The end of the connection on another rank."""

    def __init__(self, keeper, line):
        self._keeper, self._line = keeper, line
        keeper._sockets.append(line.socket)
        line.socket.settimeout(SILENT_SECONDS)

    def leave(self, *words):
        self._line.send(*words)
        with contextlib.suppress(OSError):
            self._line.socket.shutdown(socket.SHUT_RDWR)  # which ends `watch`

    def watch(self):
        """Returns when a rank is gone, or when rank 0 or this process ends."""
        keeper, tells = self._keeper, self._keeper._rank == 1
        while keeper.lost is None:
            try:
                messages = self._line.receive()
            except (OSError, ValueError) as error:
                if isinstance(error, socket.timeout) and error.errno is None:
                    keeper.is_silent(0, tells)
                    continue
                keeper.is_lost(f"{keeper.name_of(0)} {_end_of(error)}{HINT}")
                return
            keeper.answers(0, tells)
            for kind, what in messages:
                if kind == "gone":
                    keeper.is_lost(what)
                elif kind == "left":
                    keeper.has_left(what)
                elif kind == "ended":
                    self._hub_ended(what)
                    return
                else:
                    self._hear_silent(what)
                    self._line.send("here")

    def _hub_ended(self, failure):
        if failure is None:
            self._keeper.has_left(0)
        else:
            self._keeper.is_lost(f"{self._keeper.name_of(0)} ended with {failure}{ITS_ERROR}")

    def _hear_silent(self, silent):
        for rank in set(silent) - set(self._keeper.silent):
            self._keeper.is_silent(rank, tells=False)
        for rank in set(self._keeper.silent) - set(silent):
            self._keeper.answers(rank, tells=False)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job's keepers alone: strangers at rank 0's listener hear a nonce at most, and keep no rank out; a keeper's end waits for
its thread."""

import contextlib
import json
import secrets
import socket
import threading
import unittest

try:
    import torch

    from agpcs import _torch_keeper as keeper
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(77)


class Watcher:
    """What rank 0's end needs of its keeper."""

    def __init__(self, ranks):
        self._ranks, self._sockets, self.lost, self.silent, self.left = ranks, [], None, {}, []

    def name_of(self, rank):
        return f"rank {rank}"

    def answers(self, rank, tells):
        pass

    def is_lost(self, what):
        self.lost = what

    def has_left(self, rank):
        self.left.append(rank)


class KeepersTest(unittest.TestCase):
    def setUp(self):
        listener = keeper._Listener()
        self.facts = {**listener.facts, "addresses": ["127.0.0.1"]}
        self.watcher = Watcher(ranks=3)
        self.hub = keeper._Hub(self.watcher, listener)
        self.thread = threading.Thread(target=self.hub.watch)
        self.thread.start()
        self.addCleanup(self.end)

    def end(self):
        self.hub.leave("left", 0)
        self.thread.join()
        for opened in self.watcher._sockets:
            opened.close()

    def stranger(self):
        connection = socket.create_connection(("127.0.0.1", self.facts["port"]), timeout=10)
        self.addCleanup(connection.close)
        return connection

    def heard_by(self, *words):
        """All that a stranger hears that says `words`, each once it was answered."""
        connection, heard = self.stranger(), b""
        for number, word in enumerate(words):
            connection.sendall(word if isinstance(word, bytes) else json.dumps(word).encode() + b"\n")
            if number + 1 < len(words):
                heard += connection.recv(4096)
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(4096):
                heard += more
        return heard

    def expect_ranks_to_come(self):
        lines = [keeper._call(self.facts, rank) for rank in (1, 2)]
        self.addCleanup(lambda: [line.socket.close() for line in lines])
        self.assertNotIn(None, lines)
        self.assertIsNone(self.watcher.lost)
        lines[0].send("ended", None)
        self.assertEqual(lines[1].receive(), [["left", 1]])
        self.assertEqual(self.watcher.left, [1])

    def test_garbage_is_answered_by_nothing(self):
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[]\n", b"[1, 2, 3, 4]\n", secrets.token_bytes(100) + b"\n"):
            self.assertEqual(self.heard_by(words), b"", words)
        self.expect_ranks_to_come()

    def test_a_guess_hears_a_nonce_and_no_more(self):
        for proof in ("", "guess", 1, None, keeper._proof("guess", "rank", 1, ["a", "b"])):
            heard = self.heard_by(["nonce"], [1, proof])
            self.assertEqual(len(json.loads(heard)[0]), 32, proof)
        self.expect_ranks_to_come()

    def test_a_proof_of_another_connection_is_worth_nothing(self):
        old = keeper._proof(self.facts["token"], "rank", 1, ["nonce", "old"])
        self.assertEqual(len(json.loads(self.heard_by(["nonce"], [1, old]))[0]), 32)
        self.expect_ranks_to_come()

    def test_a_crowd_that_says_nothing_keeps_nobody_out(self):
        for _ in range(keeper.MOST_STRANGERS + 20):
            self.stranger()
        self.expect_ranks_to_come()


class ImpostorTest(unittest.TestCase):
    def call(self, answer):
        """What a rank gets that calls one that does not know the token, and answers what it was told by `answer`."""
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            with listener, listener.accept()[0] as caller, contextlib.suppress(OSError):
                for _ in range(2):
                    caller.sendall(json.dumps(answer(json.loads(caller.recv(4096)))).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        line = keeper._call({"addresses": ["127.0.0.1"], "port": listener.getsockname()[1], "token": "secret"}, 1)
        thread.join()
        return line

    def test_who_does_not_know_the_token_is_not_rank_0(self):
        self.assertIsNone(self.call(lambda told: ["guess"]))
        self.assertIsNone(self.call(lambda told: told))
        self.assertIsNone(self.call(lambda told: told[-1:]))
        self.assertIsNone(self.call(lambda told: None))

    def test_the_token_is_not_sent(self):
        told = []
        self.call(lambda words: told.append(json.dumps(words)) or ["guess"])
        self.assertEqual(len(told), 2)
        self.assertNotIn("secret", "".join(told))


class LinksInOneProcess:
    """Two ranks that are threads of this process."""

    def __init__(self, rank, meeting, said):
        self.rank, self.ranks, self.device = rank, 2, torch.device("cpu")
        self._meeting, self._said = meeting, said

    def global_rank(self, rank):
        return rank

    def gather(self, fact):
        self._said[self.rank] = fact
        self._meeting.wait()
        every = [self._said[0], self._said[1]]
        self._meeting.wait()
        return every


class EndTest(unittest.TestCase):
    def keepers(self):
        """Those of rank 0 and rank 1."""
        meeting, said, keepers = threading.Barrier(2, timeout=20), {}, {}

        def make(rank):
            keepers[rank] = keeper.Keeper(LinksInOneProcess(rank, meeting, said))
        makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        return keepers

    def test_waits_for_a_thread_that_closed_the_keeper(self):
        # So it does where that thread collects a process group as garbage.
        keepers = self.keepers()
        closed, collected, order = threading.Event(), threading.Event(), []

        def collects(failure):
            keepers[1].close()
            closed.set()
            collected.wait()
            order.append("collected")
        keepers[1]._end._hub_ended = collects
        keepers[0].close()
        self.assertTrue(closed.wait(20))
        ending = threading.Thread(target=lambda: (keepers[1].close(), order.append("closed")))
        ending.start()
        ending.join(0.2)  # an end that does not wait is over by then
        collected.set()
        ending.join()
        self.assertEqual(order, ["collected", "closed"])

    def test_rank_0s_thread_ends_that_closed_its_keeper(self):
        keepers = self.keepers()
        keepers[0].has_left = lambda rank: keepers[0].close()
        keepers[1].close()
        keepers[0]._thread.join(5)
        self.assertFalse(keepers[0]._thread.is_alive())
        self.assertEqual([each.fileno() for each in keepers[0]._sockets], [-1] * len(keepers[0]._sockets))


if __name__ == "__main__":
    unittest.main()

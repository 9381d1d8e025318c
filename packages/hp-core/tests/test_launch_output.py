# SPDX-License-Identifier: Apache-2.0
"""What ranks print, on its way to our output: any bytes, any reader, none lost without a word. No framework here."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from hp_core.launch.console import descriptor, say
from hp_core.launch.output import OutputPump
from hp_core.launch.signals import EndedBySignal, StopSignals


class Pipes:
    """A rank's end of a pipe, and the end where our output is read."""

    def __init__(self) -> None:
        source, self.rank = os.pipe()
        self.reader, self.destination = os.pipe()
        self.pump = OutputPump()
        self.pump.add(os.fdopen(source, "rb", buffering=0), self.destination, "[0] ")

    def finished(self) -> bytes:
        """Let the rank end, and return all that came."""
        os.close(self.rank)
        self.rank = -1
        chunks: list[bytes] = []
        reading = threading.Thread(target=lambda: chunks.extend(iter(lambda: os.read(self.reader, 1 << 16), b"")))
        reading.start()
        self.pump.finish()
        os.close(self.destination)
        self.destination = -1
        reading.join(30)
        return b"".join(chunks)

    def fill(self) -> None:
        """Fill the pipe of our output: its reader has stalled."""
        os.set_blocking(self.destination, False)
        for size in (1 << 16, 1):
            try:
                while True:
                    os.write(self.destination, b"." * size)
            except BlockingIOError:
                pass
        os.set_blocking(self.destination, True)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.pump.finish(within_s=0.0)
    for fd in (made.rank, made.reader, made.destination):
        if fd >= 0:
            os.close(fd)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"\n\n", [b"", b""]),
        (b"no end", [b"no end"]),
        (b"\xff\xfe not utf-8 \x80\n", [b"\xff\xfe not utf-8 \x80"]),
        (b"dos\r\n\r\n", [b"dos\r", b"\r"]),
        (b"\r 1%\r 2%\rdone\n", [b" 1%", b" 2%", b"done"]),
        (b"1%\r2%\r", [b"1%", b"2%\r"]),
    ],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["whole", "byte by byte"])
def test_bytes_become_lines_with_the_rank_in_front(pipes, printed, shown, at_once):
    pipes.pump.start()
    for part in [printed] if at_once else [printed[n : n + 1] for n in range(len(printed))]:
        os.write(pipes.rank, part)
        if not at_once:
            time.sleep(0.005)
    assert pipes.finished() == b"".join(b"[0] " + line + b"\n" for line in shown)


def test_a_progress_bar_shows_while_its_line_goes_on(pipes):
    pipes.pump.start()
    os.write(pipes.rank, b"\r 1%\r 2%")
    assert os.read(pipes.reader, 100) == b"[0]  1%\n"


def test_a_line_of_ten_megabytes_is_whole_but_for_the_places_where_it_is_cut(pipes):
    line = bytes(range(48, 58)) * 1_000_000
    pipes.pump.start()

    def write() -> None:
        rest = memoryview(line + b"\nend\n")
        while rest:
            rest = rest[os.write(pipes.rank, rest) :]

    writing = threading.Thread(target=write)
    writing.start()
    chunks = bytearray()
    while not chunks.endswith(b"[0] end\n"):
        chunks += os.read(pipes.reader, 1 << 20)
    writing.join()
    *pieces, last = chunks.splitlines()
    assert last == b"[0] end"
    assert all(piece.startswith(b"[0] ") for piece in pieces)
    assert b"".join(piece[4:] for piece in pieces) == line
    assert len(pieces) <= 10


def test_a_rank_waits_for_a_reader_that_stalls_and_nothing_is_lost(pipes):
    pipes.fill()
    pipes.pump.start()
    os.set_blocking(pipes.rank, False)
    written = 0
    deadline = time.monotonic() + 30
    blocked_since = time.monotonic()
    while time.monotonic() - blocked_since < 0.3:
        assert time.monotonic() < deadline
        try:
            written += os.write(pipes.rank, b"x" * 99 + b"\n")
            blocked_since = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
        assert written < 1 << 20  # or all that a rank prints would be kept here
    out = pipes.finished()
    assert out.count(b"x") == written // 100 * 99 + min(written % 100, 99)
    assert pipes.pump.lost is None


def test_a_stalled_reader_of_one_stream_does_not_hold_up_the_other(pipes):
    source, rank_errors = os.pipe()
    errors, destination = os.pipe()
    pipes.pump.add(os.fdopen(source, "rb", buffering=0), destination, "[0] ")
    pipes.fill()
    pipes.pump.start()
    os.write(pipes.rank, b"stuck\n")
    time.sleep(0.05)
    os.write(rank_errors, b"free\n")
    assert os.read(errors, 100) == b"[0] free\n"
    pipes.pump.finish(within_s=0.0)
    for fd in (rank_errors, errors, destination):
        os.close(fd)


def test_a_limit_ends_the_wait_for_a_stalled_reader_and_the_loss_is_known(pipes):
    pipes.fill()
    pipes.pump.start()
    os.write(pipes.rank, b"never read\n")
    begin = time.monotonic()
    pipes.pump.finish(within_s=0.2)
    assert time.monotonic() - begin < 5
    assert pipes.pump.lost == "nobody reads it"


def test_a_wait_that_a_signal_has_broken_off_can_be_ended_with_a_limit(pipes):
    pipes.fill()
    pipes.pump.start()
    os.write(pipes.rank, b"never read\n")
    before = signal.signal(signal.SIGALRM, StopSignals().handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(EndedBySignal):
            pipes.pump.finish()
    finally:
        signal.signal(signal.SIGALRM, before)
    pipes.pump.finish(within_s=0.1)
    assert pipes.pump.lost == "nobody reads it"


def test_a_process_that_prints_for_ever_does_not_keep_the_pump_from_ending(pipes):
    pipes.pump.start()
    yes = subprocess.Popen(["yes"], stdout=pipes.rank)
    seen = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(pipes.reader, 1 << 16), b"")])
    seen.start()
    time.sleep(0.1)
    begin = time.monotonic()
    ending = threading.Thread(target=pipes.pump.finish, daemon=True)
    ending.start()
    ending.join(10)
    took_s = time.monotonic() - begin
    yes.kill()
    yes.wait()
    os.close(pipes.destination)
    pipes.destination = -1
    seen.join(10)
    assert took_s < 9
    assert pipes.pump.lost is None


def test_what_the_pipe_holds_at_the_end_is_shown_though_a_process_keeps_it_open(pipes):
    os.write(pipes.rank, b"first\nlast")
    pipes.pump.start()
    pipes.pump.finish()
    assert os.read(pipes.reader, 100) == b"[0] first\n[0] last\n"


def test_an_output_that_others_made_non_blocking_is_waited_for(pipes):
    os.set_blocking(pipes.destination, False)
    pipes.pump.start()
    writing = threading.Thread(target=lambda: [os.write(pipes.rank, b"y" * 999 + b"\n") for _ in range(1000)])
    writing.start()
    time.sleep(0.1)
    out = b""
    while out.count(b"y") < 999_000:
        out += os.read(pipes.reader, 1 << 16)
    writing.join()
    assert pipes.finished() == b""
    assert pipes.pump.lost is None


def test_a_full_disk_is_known_as_a_loss_and_a_reader_that_has_gone_is_not(pipes, capfd):
    source, rank = os.pipe()
    errors_source, rank_errors = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    os.close(pipes.reader)
    pipes.reader = -1
    pipes.pump.add(os.fdopen(errors_source, "rb", buffering=0), descriptor(sys.stderr), "[1] ")
    pipes.pump.start()
    for _ in range(3):
        os.write(pipes.rank, b"nobody\n")
        time.sleep(0.02)
    pipes.pump.finish()
    assert pipes.pump.lost is None
    pump = OutputPump()
    pump.add(os.fdopen(source, "rb", buffering=0), full, "[1] ")
    pump.start()
    os.write(rank, b"no room\n")
    pump.finish()
    assert pump.lost == "[Errno 28] No space left on device"
    for fd in (rank, rank_errors, full):
        os.close(fd)
    said = capfd.readouterr().err
    assert said == "hp run: the reader of the output has gone, the job goes on without it\n"


def test_no_descriptor_is_left_by_a_pump_that_never_started():
    before = len(os.listdir("/proc/self/fd"))
    source, rank = os.pipe()
    pump = OutputPump()
    pump.add(os.fdopen(source, "rb", buffering=0), 1, "")
    pump.finish()
    os.close(rank)
    assert len(os.listdir("/proc/self/fd")) == before


def test_our_own_words_are_given_up_when_nobody_reads_them():
    code = "import sys\nfrom hp_core.launch.console import say\nsay('x' * 200000, within_s=0.2)\nprint('said')\n"
    reader, writer = os.pipe()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, timeout=60)
    os.close(writer)
    os.close(reader)
    assert done.returncode == 0
    assert done.stdout == b"said\n"


def test_our_own_words_may_have_any_character(capfd):
    say("a name with \udcff and é")
    assert capfd.readouterr().err == "a name with \\udcff and é\n"


def test_the_capacity_of_a_pipe_does_not_matter(pipes):
    fcntl.fcntl(pipes.rank, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(pipes.rank, b"z" * 99 + b"\n" + b"z" * 900_000)
    pipes.pump.start()
    out = pipes.finished()
    assert out.count(b"z") == 900_099

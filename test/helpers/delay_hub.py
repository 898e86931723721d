# A hub for network namespaces that hands every Ethernet frame on after a delay: delay_hub.py SECONDS TAP... Prints "ready" when the TAP
# devices are there, which then go into the namespaces as their network cards; ends when its stdin does.
import collections
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def frames(fd):
    while True:
        try:
            yield os.read(fd, 65536)
        except (BlockingIOError, OSError):
            return


def main():
    delay, taps = float(sys.argv[1]), [tap(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    waiting, behind = collections.deque(), {}
    while True:
        left = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        readable = select.select([0, *taps], [], [], left)[0]
        if 0 in readable:
            return
        for fd in readable:
            for frame in frames(fd):
                behind[frame[6:12]] = fd
                waiting.append((time.monotonic() + delay, fd, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, source, frame = waiting.popleft()
            known = behind.get(frame[:6])
            for fd in taps if known is None else [known]:
                if fd == source:
                    continue
                try:
                    os.write(fd, frame)
                except OSError:
                    pass  # its namespace is not up yet, or its queue is full: a frame is lost, as on a wire


main()

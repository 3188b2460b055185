"""Runs a page's program with every way off this machine closed: `python run_page.py program.py`."""

import ipaddress
import runpy
import sys

LEAVING = {"socket.connect", "socket.sendto", "socket.getaddrinfo"}


def stay(event: str, args: tuple[object, ...]) -> None:
    """An audit hook: the interpreter calls it before it connects, sends or looks a name up."""
    if event not in LEAVING:
        return
    address = args[0] if event == "socket.getaddrinfo" else args[1]
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(address, str | bytes) and event != "socket.getaddrinfo":
        return  # a Unix socket
    if host in (None, "", "localhost", b"localhost"):
        return
    try:
        if ipaddress.ip_address(str(host)).is_loopback:
            return
    except ValueError:
        pass
    raise PermissionError(f"the code of a page may not leave this machine: {event} {address!r}")


if __name__ == "__main__":
    program = sys.argv[1]
    sys.argv = [program]
    sys.addaudithook(stay)
    runpy.run_path(program, run_name="__main__")

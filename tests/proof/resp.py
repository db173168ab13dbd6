"""A client for the Redis protocol (RESP2) over a Unix socket: what the redis case needs of it."""

import socket


class ServerError(Exception):
    """The server answered with an error."""


class Client:
    """One connection. Commands are sequences of bytes or strings; answers are bytes, int, None or
    lists of them."""

    def __init__(self, path, timeout):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._socket.connect(path)
        self._reader = self._socket.makefile("rb", buffering=1 << 16)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._reader.close()
        self._socket.close()

    def call(self, *command):
        """Sends one command and returns its answer; raises ServerError if that is an error."""
        return self.pipeline([command])[0]

    def pipeline(self, commands):
        """Sends all commands at once and returns all answers."""
        self._socket.sendall(b"".join(map(_encode, commands)))
        return [self._answer() for _ in commands]

    def _line(self):
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        return line[:-2]

    def _answer(self):
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"+":
            return text
        if kind == b"-":
            raise ServerError(text.decode())
        if kind == b":":
            return int(text)
        if kind == b"$":
            if int(text) < 0:
                return None
            body = self._reader.read(int(text) + 2)
            if len(body) != int(text) + 2:
                raise ConnectionError("the server closed the connection")
            return body[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(int(text))]
        raise ConnectionError(f"not an answer: {line!r}")


def _encode(command):
    parts = [part.encode() if isinstance(part, str) else part for part in command]
    return b"".join(
        [b"*%d\r\n" % len(parts)] + [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
    )

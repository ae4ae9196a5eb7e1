"""A CoAP lamp in a thread: GET reads its state, PUT and POST set it, and each state that is set is kept."""

from __future__ import annotations

import socket
import threading

import aiocoap


class CoapLamp:
    """states: those that requests have set, in order; doubled: states that a POST has set although the lamp had them.

    A request that comes again is answered as before, and sets nothing.
    """

    def __init__(self) -> None:
        self.state = "OFF"
        self.states: list[str] = []
        self.doubled: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._answers: dict[tuple[object, int], bytes] = {}
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> CoapLamp:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.sendto(b"", ("127.0.0.1", self.port))  # which ends the thread
        self._thread.join(60)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, source = self._socket.recvfrom(2048)
            if not data:
                return
            request = aiocoap.Message.decode(data)
            key = source, request.mid
            if request.mtype is not aiocoap.CON or not request.code.is_request():
                continue
            if key not in self._answers:
                self._answers[key] = self._answer(request, data)
            self._socket.sendto(self._answers[key], source)

    def _answer(self, request: aiocoap.Message, data: bytes) -> bytes:
        body = b""
        if request.code in (aiocoap.PUT, aiocoap.POST):
            state = request.payload.decode()
            if request.code == aiocoap.POST and state == self.state:
                self.doubled.append(state)
            self.states.append(state)
            self.state, code = state, int(aiocoap.CHANGED)
        else:
            code, body = int(aiocoap.CONTENT), b"\xff" + self.state.encode()
        token = data[4 : 4 + (data[0] & 15)]
        return bytes([0x60 | len(token), code]) + data[2:4] + token + body

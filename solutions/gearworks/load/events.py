"""Server-sent events, however the network cuts them.

Source: WHATWG HTML, section 9.2.6. Left out on purpose: names and ids of events, and the time
after which a client is to connect again; OpenAI's API uses none of them.
"""

import re

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


class EventParser:
    """Takes the bytes of a stream as they come, and gives the data of its events.

    >>> parser = EventParser()
    >>> parser.feed(b'data: {"a"'), parser.feed(b': 1}\\n\\n: a comment\\n\\ndata: x\\n')
    ([], ['{"a": 1}'])
    >>> parser.feed(b"\\n")
    ['x']
    """

    def __init__(self):
        self._rest = b""                                    # a line whose end has not come
        self._data: list[str] = []                          # of an event whose end has not come
        self._first = True
        self._after_return = False

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that end within these bytes."""
        if not received:
            return []
        if self._after_return and received.startswith(b"\n"):   # the second half of one end
            received = received[1:]
        self._after_return = received.endswith(b"\r")
        *lines, self._rest = _END_OF_LINE.split(self._rest + received)
        return [data for line in lines if (data := self._line(line)) is not None]

    def _line(self, line: bytes) -> str | None:
        """The data of the event that this line ends, if it does."""
        text = line.decode("utf-8", errors="replace")
        if self._first:
            self._first, text = False, text.removeprefix("\ufeff")
        if text:
            name, _, value = text.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        event, self._data = self._data, []
        return "\n".join(event) if event else None

"""What was measured of one request, as plain data.

All times are seconds after the start of the run, by one clock of the client's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

UNFINISHED = "unfinished"
Clock = Callable[[], float]


class Stopwatch:
    """A clock that tells the seconds since it was started, or made."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        """Begin at 0 again."""
        self._started = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._started


@dataclass
class Measurement:
    """One request, from its arrival to the end of its answer.

    arrival: when it was to be sent; every latency counts from here. sent: when it really was.
    chunks: when each piece of the answer's text came. end: when all was over, also by a
    failure. error: None for an answer that came whole, else its kind: "HTTP 429", "cut",
    "timeout", ... message: what the server or the system said of it. retry_after: the header of
    that name. asked_prompt_tokens, asked_output_tokens: what the load wanted. prompt_tokens,
    output_tokens, cached_tokens: the server's own counts, None where it gave none.
    """

    arrival: float
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    group: str | None = None
    sent: float | None = None
    chunks: list[float] = field(default_factory=list)
    end: float | None = None
    status: int | None = None
    error: str | None = UNFINISHED
    message: str = ""
    retry_after: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token. None before there is one.

        >>> Measurement(1.0, sent=1.5, chunks=[3.0, 3.25]).ttft     # the wait to be sent counts
        2.0
        """
        return self.chunks[0] - self.arrival if self.chunks else None

    @property
    def e2e(self) -> float | None:
        """From the arrival to the end of the answer; None when it did not come whole."""
        return self.end - self.arrival if self.error is None else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies as a client sees them: between one piece of text and the next.

        A piece is a token for most servers, but what came together in one packet has gaps of 0.
        """
        return [after - before for before, after in zip(self.chunks, self.chunks[1:])]

    @property
    def generated(self) -> int:
        """Tokens of the answer: the server's count, or else how many pieces of text came."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: the request's mean, whatever its pieces.

        None for answers of fewer than two tokens.

        >>> Measurement(0.0, chunks=[1.0, 1.5, 2.0], output_tokens=5).tpot
        0.25
        """
        if not self.chunks or self.generated < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.generated - 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Measurement":
        """What `to_dict` gave. Raises TypeError for names and types that it never gives."""
        measured = cls(**found)
        optional = [measured.sent, measured.end, measured.prompt_tokens,
                    measured.output_tokens, measured.cached_tokens]
        numbers = [measured.arrival, *measured.chunks,
                   *(value for value in optional if value is not None)]
        if measured.error is None:
            numbers.append(measured.end)                    # what came whole has an end
        if not all(type(number) in (int, float) for number in numbers):
            raise TypeError("a time or a count is no number")
        if not isinstance(measured.error, str | None):
            raise TypeError("an error is no text")
        return measured

"""Calls across the border, both ways: the judge calls the subject, the subject calls back.

Each side keeps its objects and gives out handles to them. A call takes its arguments by value,
or by handle, and brings back the result together with what the call has changed in its
arguments; an exception travels as its type, its message and the learner's line. Neither side
ever waits for anything but the answer to its own last request, so calls nest.
"""

import builtins
import threading
import types
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np

import gearworks.errors
import gearworks.server.api_error
from autograder.checking import CheckFailure
from autograder.checking.learner_code import is_not_attempted, line_of
from autograder.judge import wire
from autograder.judge.wire import Message, WireError
from autograder.processes.limits import TimeLimit
from gearworks.errors import GearworksError
from gearworks.server.api_error import APIError

# What Python itself calls on a type. A handle has those that its object has.
OPERATIONS = ("__call__", "__len__", "__getitem__", "__setitem__", "__delitem__",
              "__contains__", "__iter__", "__next__", "__enter__", "__exit__", "__index__",
              "__float__", "__bool__")
# The attributes of which an error of the engine can be made again, in the order of its
# arguments.
PARTS = {GearworksError: ("what", "why", "hint"),
         APIError: ("status", "message", "param", "code")}

# What no attribute of a judge's object may be, wherever it came from.
_SEALED = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType,
           types.GeneratorType, type)


class Handle:
    """Stands for an object of the other side, with its attributes, methods and operators."""

    __slots__ = ("_peer", "_number", "_data")

    def __init__(self, peer: "Peer", data: dict):
        self._peer, self._number, self._data = peer, data["number"], data

    def __getattr__(self, name: str) -> Any:
        # What Python and NumPy look for by themselves is not for the other side to answer:
        # an `__array_interface__` is an address in this process.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._peer.request({"op": "read", "handle": self._number, "name": name})

    def __repr__(self) -> str:
        return self._peer.request({"op": "describe", "handle": self._number})


class Peer:
    """One side of a conversation. `ask` delivers a request to the other, and gives its answer.

    open_objects: whether the other side may read every attribute of the objects given out. The
    judge gives out its call-back functions with this off: they can be called, and nothing of
    them can be read. With it on, dataclasses without equality are given out as handles, so that
    what the judge sends becomes an object of the other side, and stays the same one.
    """

    def __init__(self, ask: Callable[[Message], Message] | None = None, *, open_objects: bool):
        self.ask = ask
        self._open = open_objects
        self._given: list[Any] = []                 # by number; a handle keeps its object alive
        self._number_of: dict[int, int] = {}                 # id of an object -> its number
        self._handles: dict[int, Handle] = {}
        self._raised: list[BaseException] = []      # by number: an exception finds its way home

    def give(self, value: Any) -> dict:
        """The data of a handle: to an object of this side, or back to one of the other side."""
        if isinstance(value, Handle) and value._peer is self:
            return {"kind": "handle", "number": value._number, "yours": True}
        if id(value) not in self._number_of:
            self._number_of[id(value)] = len(self._given)
            self._given.append(value)
        kind = type(value)
        operations = [name for name in OPERATIONS if getattr(kind, name, None) is not None]
        return {"kind": "handle", "number": self._number_of[id(value)], "type": kind.__name__,
                "operations": operations}

    def take(self, data: dict) -> Any:
        """What a handle's data stands for on this side."""
        number = data["number"]
        if data.get("yours"):
            return self._given[number]
        if number not in self._handles:
            operations = tuple(name for name in OPERATIONS if name in data["operations"])
            self._handles[number] = _handle_type(str(data["type"])[:60], operations)(self, data)
        return self._handles[number]

    def encode(self, value: Any, blobs: list[bytes]) -> Any:
        """A value as JSON data and blobs."""
        return wire.encode(value, blobs, self.give, identity=self._open)

    def decode(self, data: Any, blobs: list[bytes]) -> Any:
        """The value again."""
        return wire.decode(data, blobs, self.take)

    def request(self, data: dict, args: Sequence[Any] = (),
                kwargs: dict[str, Any] | None = None) -> Any:
        """Ask the other side for something. Returns its value, or raises what it raised.

        What the call changed in its arguments is changed in them here too.
        """
        arguments, blobs = [list(args), dict(kwargs or {})], []
        data["arguments"] = [self.encode(part, blobs) for part in arguments]
        answer = self.ask(Message(data, blobs))
        if "changed" in answer.data:
            after = [self.decode(part, answer.blobs) for part in answer.data["changed"]]
            _bring_up_to_date(arguments, after)
        if "error" in answer.data:
            raise self._error(answer.data["error"])
        return self.decode(answer.data["value"], answer.blobs)

    def answer(self, request: Message) -> Message:
        """Do what the other side asks for.

        Raises KeyboardInterrupt, TimeLimit, and WireError when it is no request; no other.
        """
        data, blobs = request.data, []
        try:
            target = self._given[data["handle"]]
            args, kwargs = (self.decode(part, request.blobs) for part in data["arguments"])
            operation = data["op"]
        except (KeyError, TypeError, IndexError) as error:
            raise WireError("a message that is no request") from error
        try:
            if operation == "call":
                value = self._operation(target, data["name"])(*args, **kwargs)
            elif operation == "read":
                value = self._attribute(target, data["name"])
            elif operation == "describe":
                value = repr(target) if self._open else f"<{type(target).__name__}>"
            else:
                raise WireError("a request of an unknown kind")
            reply = {"value": self.encode(value, blobs)}
        except (KeyboardInterrupt, WireError):
            raise
        except BaseException as error:
            if isinstance(error, TimeLimit) and self._open:
                raise
            blobs.clear()
            reply = {"error": self._told(error)}
        try:
            if not self._are_as_sent([args, kwargs], request):
                reply["changed"] = [self.encode(part, blobs) for part in (args, kwargs)]
        except RecursionError as error:                   # an argument that now contains itself
            blobs.clear()
            reply = {"error": self._told(error)}
        return Message(reply, blobs)

    def _are_as_sent(self, arguments: list, request: Message) -> bool:
        def sent(value: Any) -> dict:
            return value._data if isinstance(value, Handle) else self.give(value)

        blobs: list[bytes] = []
        after = [wire.encode(part, blobs, sent) for part in arguments]
        return after == request.data["arguments"] and blobs == request.blobs

    def _operation(self, target: Any, name: str) -> Callable:
        if name not in OPERATIONS:
            raise WireError(f"a call of {str(name)[:40]!r}")
        return target if name == "__call__" else getattr(target, name)

    def _attribute(self, target: Any, name: str) -> Any:
        if self._open:
            return getattr(target, name)
        # From a generator there is a way to its frame, from there to `eval`. So of a judge's
        # object those attributes are read that this course's own classes show, no others.
        if _is_ours(type(target)) and not name.startswith("_"):
            value = getattr(target, name)
            if not isinstance(value, _SEALED) and not (
                    isinstance(value, types.MethodType) and isinstance(value.__self__, type)):
                return value
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")

    def _told(self, error: BaseException) -> dict:
        """What the other side learns of an exception."""
        home = getattr(error, "_home", None)
        if home is not None and home[0] is self:          # it came through the learner's code
            return {"yours": home[1], "line": line_of(error) if self._open else ""}
        self._raised.append(error)
        # What a check says in a call-back is for its report; it must not be read by the code
        # that is checked.
        is_secret = not self._open and isinstance(error, CheckFailure)
        parts = next(([_simple(getattr(error, name, None)) for name in names]
                      for kind, names in PARTS.items() if isinstance(error, kind)), None)
        try:
            text = "" if is_secret else str(error)
        except Exception:
            text = ""
        kinds = [kind.__name__ for kind in type(error).__mro__
                 if _error_kind(kind.__name__) is not None]
        return {"number": len(self._raised) - 1, "type": type(error).__name__,
                "text": text[:2000], "kinds": kinds, "parts": parts,
                "line": line_of(error) if self._open else "",
                "not attempted": is_not_attempted(error)}

    def _error(self, data: dict) -> BaseException:
        """What stands for an exception of the other side: of the nearest kind known here."""
        try:
            if "yours" in data:
                error = self._raised[data["yours"]]
                if data.get("line"):
                    error.line = str(data["line"])
                return error
            kinds = [_error_kind(name) for name in data["kinds"]]
            if data["not attempted"]:
                kinds.insert(0, NotImplementedError)
            nearest = next((kind for kind in kinds if kind is not None), Exception)
            error = _new_error(nearest, str(data["type"])[:60], str(data["text"]),
                               data["parts"])
            error._home, error.line = (self, data["number"]), str(data["line"])
            return error
        except (LookupError, TypeError, ValueError) as error:
            raise WireError("a message that tells of no error") from error


def connect(peer: Peer, reader: BinaryIO, writer: BinaryIO) -> None:
    """Let a peer ask over two pipes, and answer what the other side asks meanwhile."""
    lock = threading.RLock()              # call-backs may come from any thread of the learner's

    def ask(request: Message) -> Message:
        with lock:
            wire.write(writer, request)
            while True:
                message = wire.read(reader)
                if not isinstance(message.data, dict):
                    raise WireError("a message of an unknown kind")
                if "op" not in message.data:
                    return message
                wire.write(writer, peer.answer(message))
    peer.ask = ask


def _is_ours(kind: type) -> bool:
    """Whether instances of a class may be read by the other side: the engine's, the checks'."""
    return (kind is types.SimpleNamespace
            or kind.__module__.startswith(("gearworks.", "autograder.")))


@lru_cache(maxsize=1024)                  # of names that learners make up
def _handle_type(name: str, operations: tuple[str, ...]) -> type[Handle]:
    def forward(operation: str) -> Callable:
        def call(self: Handle, *args: Any, **kwargs: Any) -> Any:
            return self._peer.request({"op": "call", "handle": self._number, "name": operation},
                                      args, kwargs)
        return call
    members = {operation: forward(operation) for operation in operations}
    return type(name, (Handle,), {"__slots__": ()} | members)


def _error_kind(name: str) -> type[BaseException] | None:
    """An exception class that both sides know: Python's own, the engine's and NumPy's.

    But for the interrupt of the person in front, which no message can be.
    """
    if name == "KeyboardInterrupt":
        return None
    for module in (builtins, gearworks.errors, gearworks.server.api_error, np.linalg):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    return CheckFailure if name == "CheckFailure" else None


def _new_error(kind: type[BaseException], name: str, text: str,
               parts: list | None) -> BaseException:
    if issubclass(kind, UnicodeError):    # its subclasses want a position, which did not travel
        kind = UnicodeError
    named = type(name, (kind,), {"__module__": kind.__module__, "__str__": lambda self: text})
    if issubclass(kind, GearworksError) and parts is not None:
        return named(*map(str, parts))
    if issubclass(kind, APIError):
        status, message, param, code = parts
        return named(status if type(status) is int else 0, str(message), param, code)
    if issubclass(kind, CheckFailure):
        return named("", text)
    return named(text)


def _simple(value: Any) -> Any:
    """A part of an error as JSON has it; whatever else a learner made it of, as text."""
    return value if type(value) in (int, str, type(None)) else f"{value!s:.2000}"


def _bring_up_to_date(value: Any, after: Any) -> Any:
    """Change a value in place into another of its kind; return the other where none can be."""
    if value is after or isinstance(value, Handle):
        return value
    if type(value) is not type(after):
        return after
    if isinstance(value, np.ndarray):
        if value.shape != after.shape or value.dtype != after.dtype:
            return after
        if value.flags.writeable and value.tobytes() != after.tobytes():
            value[...] = after
        return value
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = after.bit_generator.state
        return value
    if isinstance(value, (list, deque)):
        items = ([_bring_up_to_date(old, new) for old, new in zip(value, after)]
                 + list(after)[len(value):])
        value.clear()
        value.extend(items)
        return value
    if isinstance(value, dict):
        items = {key: _bring_up_to_date(value[key], new) if key in value else new
                 for key, new in after.items()}
        value.clear()
        value.update(items)
        return value
    if isinstance(value, set):
        value.clear()
        value.update(after)
        return value
    if isinstance(value, bytearray):
        value[:] = after
        return value
    if isinstance(value, tuple) and len(value) == len(after):
        items = [_bring_up_to_date(old, new) for old, new in zip(value, after)]
        return value if all(new is old for new, old in zip(items, value)) else tuple(items)
    if is_dataclass(value):
        for each in fields(value):
            old = getattr(value, each.name)
            new = _bring_up_to_date(old, getattr(after, each.name))
            # a frozen one cannot be changed by right code, and checks rely on that
            if new is not old and not value.__dataclass_params__.frozen:
                setattr(value, each.name, new)
        return value
    return after if value != after else value

"""Pickle programs that describe tensors, run by a machine that cannot do anything else.

A pickle is no table of values but a program for a small stack machine: push this number, put
these items into that dictionary, look up this function, call it. Loading one with Python's
`pickle` runs it, and the function may be `os.system`. The usual advice, an `Unpickler` with a
strict `find_class`, refuses that call, and still lets ten bytes reserve gigabytes (the place of
a value in the memo is any number) and a megabyte end the process (the hash of a million nested
tuples). So this machine is written by hand: it knows the instructions that PyTorch writes,
looks nothing up, calls nothing, and takes only strings for keys.

Left out on purpose: training checkpoints, whole modules, quantized and sparse tensors, text
pickles (protocol 0).
Source: the instructions as in CPython's pickletools; what PyTorch writes, as in
torch/_utils.py.
"""

import pickletools
from dataclasses import dataclass

from gearworks.errors import FormatError

SAFETENSORS_INSTEAD = ("do not load it with pickle or torch: use a copy of the model in "
                       "safetensors")
FETCH_AGAIN = "the file may be cut off or damaged: fetch it again"
SAVE_AGAIN = ("use a copy of the model in safetensors, or have its publisher save nothing but "
              "the dictionary of its weights, with today's PyTorch")

MAX_PROGRAM_BYTES = 2**22       # some 130 bytes describe a tensor: 30,000 of them

# What a storage holds: PyTorch's class to the dtype's name in safetensors. An untyped one
# counts bytes.
STORAGES = {"torch.FloatStorage": "F32", "torch.DoubleStorage": "F64",
            "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
            "torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16",
            "torch.CharStorage": "I8", "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
            "torch.ComplexFloatStorage": "C64", "torch.storage.UntypedStorage": "U8"}
# dtypes without a class of storage of their own; tensors of these name an untyped one.
LATER_DTYPES = {
    "torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64",
    "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2",
}
REBUILD = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2",
           "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter"}


@dataclass(frozen=True)
class Global:
    """A name that a program asked for, `module.name`: a label, nothing that can be called."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A run of stored bytes, by the key under which the archive has it.
    size: in items of dtype."""

    dtype: str
    key: str
    size: int


@dataclass(frozen=True)
class StridedTensor:
    """A tensor as a view of a storage.
    dtype: its own; offset and strides: in items of dtype."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def unpickle(program: bytes | memoryview) -> object:
    """Run a pickle program that may only describe tensors; returns what it leaves on the stack.

    program: the bytes of a pickle of protocol 2 to 5. Returns dictionaries with strings as
    keys, lists, tuples, strings, numbers, bools, None, and a StridedTensor for each tensor or
    parameter; attributes of dictionaries are dropped. Whether a tensor's shape and strides make
    sense is not checked here.

    Raises FormatError, naming it, for every name outside `STORAGES`, `LATER_DTYPES` and
    `REBUILD` (nothing is imported to find out what it is), for an instruction that is not
    needed, and for a program that breaks off, is longer than `MAX_PROGRAM_BYTES`, or leaves the
    rules in another way. Runs in time and memory proportional to the program.

    >>> import pickle
    >>> unpickle(pickle.dumps({"layers": 2, "sizes": (3, 4)}))
    {'layers': 2, 'sizes': (3, 4)}
    >>> try:
    ...     unpickle(pickle.dumps(print))
    ... except FormatError as error:
    ...     print(error.why.replace(": ", ":\\n"))
    it asks for builtins.print, which Python would look up and could call:
    code from the file would run
    """
    if len(program) > MAX_PROGRAM_BYTES:
        raise FormatError("cannot run the pickle",
                          f"it has {len(program)} bytes, and more than {MAX_PROGRAM_BYTES} are "
                          "not allowed", SAFETENSORS_INSTEAD)
    try:
        return _run(bytes(program))
    except FormatError:
        raise
    except (ValueError, IndexError, KeyError) as error:
        # cut off; an empty stack; a place that was never filled
        raise FormatError("cannot run the pickle", "the program breaks off or does not add up",
                          FETCH_AGAIN) from error


def _run(program: bytes) -> object:
    stack, outer_stacks, memo = [], [], {}
    for instruction, argument, _ in pickletools.genops(program):
        match instruction.name:
            case "PROTO" | "FRAME":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE" as name:
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE":
                argument.encode("utf-8")     # half of a surrogate pair is no text: a ValueError
                stack.append(argument)
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "MARK":
                outer_stacks.append(stack)
                stack = []
            case "TUPLE":
                items, stack = stack, outer_stacks.pop()
                stack.append(tuple(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                count = int(name[-1])
                if len(stack) < count:
                    raise IndexError
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND":
                item = stack.pop()
                _require(stack[-1], list).append(item)
            case "APPENDS":
                items, stack = stack, outer_stacks.pop()
                _require(stack[-1], list).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _require(stack[-1], dict)[_require(key, str)] = value
            case "SETITEMS":
                items, stack = stack, outer_stacks.pop()
                for key, value in zip(items[::2], items[1::2], strict=True):
                    _require(stack[-1], dict)[_require(key, str)] = value
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL" | "INST":
                stack.append(_look_up(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_look_up(f"{_require(module, str)}.{_require(name, str)}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_rebuild(_require(function, Global).name,
                                      _require(arguments, tuple)))
            case "BUILD":
                stack.pop()
                _require(stack[-1], dict)
            case "STOP":
                return stack.pop()
            case name:
                raise FormatError("cannot run the pickle",
                                  f"it holds the instruction {name}, which no dictionary of "
                                  "tensors needs", SAFETENSORS_INSTEAD)
    raise ValueError("no STOP")


def _look_up(name: str) -> Global:
    if name not in REBUILD and name not in STORAGES and name not in LATER_DTYPES:
        raise FormatError("cannot run the pickle",
                          f"it asks for {name[:80]}, which Python would look up and could "
                          "call: code from the file would run", SAFETENSORS_INSTEAD)
    return Global(name)


def _require(value: object, kind: type):
    """Return the value if it is of exactly this kind: True is no int.
    The message shows no value; it may be huge."""
    if type(value) is not kind:
        why = (f"it holds a value of type {type(value).__name__} where one of type "
               f"{kind.__name__} belongs")
        raise FormatError("cannot run the pickle", why, SAFETENSORS_INSTEAD)
    return value


def _storage(identity: object) -> Storage:
    match _require(identity, tuple):
        case ("storage", Global(kind), str(key), str(), size) if kind in STORAGES:
            return Storage(STORAGES[kind], key, _require(size, int))
    raise FormatError("cannot run the pickle", "it names a storage in an unknown way",
                      SAFETENSORS_INSTEAD)


def _rebuild(function: str, arguments: tuple) -> object:
    """What the call of a function of `REBUILD` would give.
    Two more arguments, on gradients, are of no interest."""
    match function, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch._utils._rebuild_parameter", (StridedTensor() as tensor, _, _):
            return tensor
        case ("torch._utils._rebuild_tensor_v2",
              (Storage() as storage, offset, shape, strides, _, _)):
            return StridedTensor(storage, storage.dtype, *_geometry(offset, shape, strides))
        case ("torch._utils._rebuild_tensor_v3",
              (Storage(dtype="U8") as storage, offset, shape, strides, _, _,
               Global(dtype))) if dtype in LATER_DTYPES:
            return StridedTensor(storage, LATER_DTYPES[dtype],
                                 *_geometry(offset, shape, strides))
    raise FormatError("cannot run the pickle",
                      f"it calls {function} with arguments that are not supported", SAVE_AGAIN)


def _geometry(offset: object, shape: object,
              strides: object) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    for size in (*_require(shape, tuple), *_require(strides, tuple)):
        _require(size, int)
    return _require(offset, int), shape, strides

"""What in a learner's code is worth an instructor's look, beside its results.

Nothing here changes a score: a cheat gains nothing from the checks, and honest code may do any
of this for a reason. What is listed can be seen without running the code, so a determined cheat
is not found here.
"""

import ast
from collections.abc import Iterator

from autograder.reference.names import home_of, methods_of, module_of, names_of

REFERENCE = "takes the exercise itself from the reference engine"
SOURCES = "looks for the source of modules"
GRADER = "imports the autograder"
FRAMES = "looks into the frames, closures or objects of code that calls it"
PATCHES = "replaces functions of a module that is not its own"
LIARS = "has a number, text or array class of its own that decides what it is equal to"
PROCESS = "ends, starts or signals processes"
NETWORK = "uses the network"
MEMORY = "uses raw memory or foreign functions"
FILES = "opens files of the machine"
HOOKS = "runs code at exit, on signals or while anything else runs"

_MODULES = {"autograder": GRADER, "nbgrader": GRADER, "subprocess": PROCESS,
            "multiprocessing": PROCESS, "signal": HOOKS, "atexit": HOOKS, "socket": NETWORK,
            "urllib": NETWORK, "requests": NETWORK, "httpx": NETWORK, "http": NETWORK,
            "ctypes": MEMORY, "mmap": MEMORY, "cffi": MEMORY, "gc": FRAMES, "pty": PROCESS,
            "sqlite3": FILES, "resource": PROCESS, "faulthandler": HOOKS}
_ATTRIBUTES = {**dict.fromkeys(["_getframe", "_current_frames", "currentframe", "f_back",
                                "f_locals", "f_globals", "tb_frame", "gi_frame",
                                "cell_contents", "__closure__", "__globals__",
                                "__subclasses__", "get_objects", "get_referrers"], FRAMES),
               **dict.fromkeys(["_exit", "kill", "killpg", "abort", "fork", "forkpty",
                                "system", "popen", "execv", "execve", "posix_spawn",
                                "setrlimit"], PROCESS),
               **dict.fromkeys(["getsource", "getsourcelines", "__file__", "__loader__",
                                "__spec__"], SOURCES),
               **dict.fromkeys(["settrace", "setprofile", "addaudithook", "meta_path"], HOOKS),
               "ctypeslib": MEMORY, "as_strided": MEMORY, "memmap": FILES}
_CALLS = {**dict.fromkeys(["quit", "exit"], PROCESS), "__import__": GRADER}
_PLACES = ("/proc", "/etc", "/root", "/home", "/dev/", "/sys", "gradebook", "autograder")
_COMPARES = {"__eq__", "__ne__", "__array_ufunc__", "__array_function__", "__array__"}
_PLAIN = {"int", "float", "str", "bytes", "list", "tuple", "dict", "bool", "complex", "ndarray",
          "float32", "float64", "int64"}


def signs_of_tampering(exercise: str, code: str) -> tuple[str, ...]:
    """What a learner's code of an exercise does that no solution needs, in words, once each.

    >>> signs_of_tampering("layers.softmax", "import autograder; autograder.check = max")
    ('imports the autograder', 'replaces functions of a module that is not its own')
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(dict.fromkeys(_signs(tree, exercise)))


def _signs(tree: ast.Module, exercise: str) -> Iterator[str]:
    home, own = home_of(module_of(exercise)), {*names_of(exercise)}
    methods = {*methods_of(exercise)}
    if methods and any(isinstance(node, ast.ClassDef) and node.name in own
                       and methods <= {*map(_defined, node.body)} for node in ast.walk(tree)):
        own = set()                     # a class that builds on the reference's own
    modules = {"np", "torch", "builtins", "sys", "os", "time"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _of_import(alias.name)
                    if alias.name == home:
                        yield REFERENCE
            case ast.ImportFrom(module=str(module), names=names):
                yield from _of_import(module)
                if module == home and (own | {"*"}) & {alias.name for alias in names}:
                    yield REFERENCE
            case ast.Attribute(attr=name) if name in _ATTRIBUTES:
                yield _ATTRIBUTES[name]
            case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
                yield _CALLS[name]
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), *_]) if (
                    name in modules):
                yield PATCHES
            case ast.Constant(value=str(text)) if text == home:
                yield REFERENCE
            case ast.Constant(value=str(text)) if text.startswith(_PLACES):
                yield FILES
            case ast.ClassDef(bases=bases, body=body) if (
                    {_last_name(base) for base in bases} & _PLAIN
                    and _COMPARES & {*map(_defined, body)}):
                yield LIARS
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Attribute) and _first_name(target) in modules:
                yield PATCHES


def _of_import(module: str) -> Iterator[str]:
    sign = _MODULES.get(module.partition(".")[0])
    if sign:
        yield sign


def _defined(statement: ast.stmt) -> str:
    return getattr(statement, "name", "")


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")

"""The names of exercises and components, and where in the reference what they name is written.

A component is `module.name`, or `module.Class.method`; an exercise names one component or two
that belong together, `module.a+b`, or some methods of a class, `module.Class.a+b+c`. Its module
is a short name: the one that learners, checks, mutants and grades know.
"""

# Where a module is not at the top of the package, by its short name. All others are
# `gearworks.<short name>`.
HOMES = {
    "deepseek": "gearworks.families.deepseek",
    "engine": "gearworks.serving.engine",
    "gguf": "gearworks.formats.gguf",
    "gguf_k_quants": "gearworks.formats.gguf_k_quants",
    "kernels.cpu": "gearworks.kernels.cpu.int4",
    "safetensors": "gearworks.formats.safetensors",
    "scheduler": "gearworks.serving.scheduler",
    "server": "gearworks.server.protocol",
    "unigram": "gearworks.vocabularies.unigram",
    "wordpiece": "gearworks.vocabularies.wordpiece",
}
_SHORT = {home: module for module, home in HOMES.items()}


def home_of(module: str) -> str:
    """Where a module of the reference is written, from its short name.

    >>> home_of("attention"), home_of("gguf")
    ('gearworks.attention', 'gearworks.formats.gguf')
    """
    return HOMES.get(module, f"gearworks.{module}")


def short_name(home: str) -> str:
    """The short name of a module of the reference; of any other module, "".

    >>> short_name("gearworks.formats.gguf"), short_name("numpy.linalg")
    ('gguf', '')
    """
    if home in _SHORT:
        return _SHORT[home]
    return home.removeprefix("gearworks.") if home.startswith("gearworks.") else ""


def module_of(name: str) -> str:
    """The short name of the module of a component or an exercise.

    It is what comes before a class, or before the last name.

    >>> module_of("tokenizer.count_pairs+merge_pair"), module_of("engine.Engine.step")
    ('tokenizer', 'engine')
    >>> module_of("kernels.cpu.int4_matvec")
    'kernels.cpu'
    """
    parts = name.split(".")
    owner = next((index for index, part in enumerate(parts) if part[:1].isupper()),
                 len(parts) - 1)
    return ".".join(parts[:owner])


def names_of(exercise: str) -> list[str]:
    """The functions or classes that an exercise names, in the order that its checks expect.

    >>> names_of("tokenizer.count_pairs+merge_pair"), names_of("engine.LLMEngine.step")
    (['count_pairs', 'merge_pair'], ['LLMEngine'])
    """
    return exercise.removeprefix(f"{module_of(exercise)}.").split(".")[0].split("+")


def methods_of(exercise: str) -> list[str]:
    """The methods that an exercise names; none where it is about functions or a whole class.

    >>> methods_of("kv_cache.BlockPool.allocate+free"), methods_of("kv_cache.KVCache")
    (['allocate', 'free'], [])
    """
    _, _, methods = exercise.removeprefix(f"{module_of(exercise)}.").partition(".")
    return methods.split("+") if methods else []


def components_of(exercise: str) -> list[str]:
    """The components of an exercise: `module.name`, one for each name, or for each method.

    >>> components_of("tokenizer.count_pairs+merge_pair")
    ['tokenizer.count_pairs', 'tokenizer.merge_pair']
    >>> components_of("kv_cache.BlockPool.allocate+free")
    ['kv_cache.BlockPool.allocate', 'kv_cache.BlockPool.free']
    """
    prefix, _, names = exercise.rpartition(".")
    return [f"{prefix}.{name}" for name in names.split("+")]

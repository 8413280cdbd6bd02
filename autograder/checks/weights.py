"""Checks of names and loading, on tiny models written to files, against the reference."""

import dataclasses
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, attempted, expect_agreement
from autograder.checking.files import temporary_folder
from autograder.generators.arrays import numbers
from autograder.generators.calls import Call
from gearworks.config import ModelConfig
from gearworks.errors import FormatError, ModelError, NotAvailableError
from gearworks.weights import expected_shapes, gguf_name
from gearworks.weights import load_checkpoint as reference_load
from gearworks.weights import map_names as reference_names
from gearworks.weights import unpermute_rope as unpermuted

NAMINGS = ("Hugging Face's names", "Hugging Face's names without `model.`", "GGUF's names")
FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def tiny(rng, architecture: str = "LlamaForCausalLM", tied: bool = True) -> dict:
    """A config.json of a tiny model: more query than key heads, no sizes equal by accident."""
    return {"architectures": [architecture],
            "model_type": architecture.removesuffix("ForCausalLM").lower(),
            "vocab_size": int(rng.integers(11, 20)), "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": int(rng.integers(1, 4)), "num_attention_heads": 6,
            "num_key_value_heads": 3, "head_dim": 8, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": tied,
            "hidden_act": "silu"}


def config_of(rng, architecture: str = "LlamaForCausalLM", tied: bool = True) -> ModelConfig:
    return ModelConfig.from_hf(tiny(rng, architecture, tied))


def found_in(config: ModelConfig, naming: str) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a file that holds just the weights of this configuration."""
    write = {NAMINGS[0]: str, NAMINGS[1]: lambda name: name.removeprefix("model."),
             NAMINGS[2]: lambda name: gguf_name(name, config.architecture)}[naming]
    return {write(name): shape for name, shape in expected_shapes(config).items()}


def expect_mapped(map_names, found: dict, config: ModelConfig, of: str, hint: str) -> None:
    with expect_unchanged(found):
        got = map_names(found, config)
    wanted = reference_names(found, config)
    expect_returned(got, f"{of} to be a dict")
    absent = [name for name in wanted if name not in got] if isinstance(got, dict) else []
    expect(not absent, f"{of} to have a key for each name of `expected_shapes`",
           f"none for {'; '.join(absent[:1])}", hint)
    expect_equal(got, wanted, of=of, hint=hint)


def expect_mismatch(map_names, found: dict, config: ModelConfig, names: list[str], when: str,
                    hint: str) -> None:
    """Fail unless a ModelError names all of these, by the file's name or Hugging Face's."""
    of_hf = {gguf_name(name, config.architecture): name for name in expected_shapes(config)}
    of_hf |= {name.removeprefix("model."): name for name in expected_shapes(config)}
    with expect_error(ModelError, when=when, hint=hint):
        try:
            map_names(found, config)
        except ModelError as error:
            absent = [name for name in names
                      if name not in str(error) and of_hf.get(name, name) not in str(error)]
            if absent:
                raise CheckFailure(f"the error to name {' and '.join(names)} when {when}",
                                   f"{str(error).splitlines()[1].strip()!r}, without "
                                   f"{absent[0]}",
                                   "Collect all that is wrong before you raise.") from error
            raise


example_of_map_names = docstring_example("weights.map_names", points=1)


@check("weights.map_names", points=2, public=True)
def three_namings(map_names, rng):
    """The names of Hugging Face, with and without their prefix,
    and those of GGUF are all understood."""
    config = config_of(rng)
    for naming in NAMINGS:
        expect_mapped(map_names, found_in(config, naming), config,
                      f"the map for a file with {naming}",
                      "From Hugging Face's name to the name in this file. Which names give "
                      "each naming away?")


@check("weights.map_names", points=1.5, public=True)
def missing_ones(map_names, rng):
    """What a file lacks is an error that lists all of it."""
    config = config_of(rng)
    for naming in NAMINGS:
        found = found_in(config, naming)
        gone = [str(name) for name in rng.choice(list(found), 3, replace=False)]
        for name in gone:
            del found[name]
        expect_mismatch(map_names, found, config, gone,
                        f"a file with {naming} lacks {', '.join(gone)}",
                        "`expected_shapes(config)` says what there must be; not one may stay "
                        "as it was initialised.")


@check("weights.map_names", points=1, public=True)
def unexpected_ones(map_names, rng):
    """A tensor that no weight is made of is an error, too."""
    config = config_of(rng)
    for name in ("model.layers.0.self_attn.q_proj.bias",
                 "model.layers.0.self_attn._orig_mod.q_proj.weight",
                 "model.layers.7.mlp.up_proj.weight"):
        expect_mismatch(map_names, found_in(config, NAMINGS[0]) | {name: (48,)}, config, [name],
                        f"a file holds {name} besides",
                        "Which names of the file has the map not used?")


@check("weights.map_names", points=1, public=True)
def misshapen_ones(map_names, rng):
    """Shapes are compared, and size is no shape."""
    config = config_of(rng)
    found = found_in(config, NAMINGS[0])
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    found |= {up: found[up][::-1], down: (prod(found[down]),)}
    expect_mismatch(map_names, found, config, [up, down],
                    f"{up} is transposed and {down} is flat",
                    "Every shape against the one that the configuration asks for.")


@check("weights.map_names", points=1, public=True)
def what_may_be_left(map_names, rng):
    """A copy of a tied head and RoPE frequencies may be left over;
    an untied head may not be missing."""
    for naming, head in ((NAMINGS[0], "lm_head.weight"), (NAMINGS[2], "output.weight")):
        config = config_of(rng, tied=True)
        found = found_in(config, naming) | {head: (config.vocab_size, config.hidden_size)}
        expect_mapped(map_names, found, config,
                      f"the map for a tied model whose file has {head}",
                      "A tied head is the embedding; a copy of it carries no information.")
        untied = dataclasses.replace(config, tie_word_embeddings=False)
        found.pop(head)
        expect_mismatch(map_names, found, untied, [head],
                        "the head of a model is missing that is not tied",
                        "Only a tied model can do without.")
    config = config_of(rng)
    found = (found_in(config, NAMINGS[0])
             | {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)})
    expect_mapped(map_names, found, config, "the map for a file that keeps RoPE frequencies",
                  "What can be computed from the configuration need not be read.")


@dataclasses.dataclass(frozen=True)
class File:
    """Names and shapes in a file, for a tiny model of this family; what is done to them."""

    family: str
    tied: bool
    naming: str
    layers: int
    changes: tuple[tuple[str, str], ...]

    def made(self) -> tuple[dict, ModelConfig]:
        settings = tiny(np.random.default_rng(0), self.family, self.tied)
        config = ModelConfig.from_hf(settings | {"num_hidden_layers": self.layers})
        found = found_in(config, self.naming)
        for change, name in self.changes:
            names = [each for each in found if each.endswith(name)]
            match change:
                case "more":
                    found[name] = (4,)
                case "less" if names:
                    found.pop(names[-1])
                case "turned" if names:
                    found[names[-1]] = found[names[-1]][::-1]
                case "flat" if names:
                    found[names[-1]] = (prod(found[names[-1]]),)
        return found, config

    def typed(self) -> str:
        changes = ", ".join(f"{change} {name}" for change, name in self.changes)
        return (f"map_names(found, config), for a {'tied' if self.tied else 'not tied'} "
                f"{self.family} of {self.layers} layers in {self.naming}"
                + (f", changed: {changes}" if changes else ""))


def changes_of(naming: str, layers: int) -> st.SearchStrategy[tuple]:
    """What may be wrong with a file: tensors that are missing, turned, flat, or too many."""
    ends = {NAMINGS[2]: ["attn_q.weight", "ffn_norm.weight", "output_norm.weight",
                         "token_embd.weight", "attn_k.bias"]}.get(
        naming, ["q_proj.weight", "input_layernorm.weight", "norm.weight",
                 "embed_tokens.weight", "k_proj.bias", "lm_head.weight"])
    more = ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight", "output.weight",
            "model.layers.0.self_attn.o_proj.bias", f"model.layers.{layers}.mlp.up_proj.weight",
            "stranger"]
    change = st.one_of(st.tuples(st.sampled_from(["less", "turned", "flat"]),
                                 st.sampled_from(ends)),
                       st.tuples(st.just("more"), st.sampled_from(more)))
    return st.one_of(st.just(()), st.lists(change, min_size=1, max_size=2).map(tuple))


FILES = st.tuples(st.sampled_from(NAMINGS), st.integers(1, 2)).flatmap(
    lambda drawn: st.builds(File, st.sampled_from(FAMILIES), st.booleans(), st.just(drawn[0]),
                            st.just(drawn[1]), changes_of(*drawn)))


def is_decided(file: File) -> bool:
    """Whether the docstring says what becomes of a file. It does not speak of a head of another
    shape beside a tied one, and of a mixture of namings."""
    more = [name for change, name in file.changes if change == "more"]
    if file.naming == NAMINGS[1] and any(name.startswith("model.") for name in more):
        return False
    return not (file.tied and {"lm_head.weight", "output.weight"} & {*more})


def map_of(map_names, file: File) -> Seen:
    found, config = file.made()
    return [("", attempted(map_names, args=(found, config))), ("`found` after", found)]


@check("weights.map_names", points=1, public=True)
def any_names(map_names, rng):
    """Files in every naming, of every family, whole, and with tensors that are missing,
    turned, or too many."""
    expect_agreement(map_names, reference_names, FILES.filter(is_decided), rng, run=map_of,
                     examples=150,
                     hint="Hold the names of `expected_shapes(config)` against the file's, and "
                          "the other way round. Who may be left over, and in which model?")


@check("weights.map_names", points=0.5, public=True)
def another_prefix(map_names, rng):
    """GPT-2's names begin with `transformer.`, and in the file of 2019 with nothing;
    that file has each layer's causal mask, too."""
    D = 4 * int(rng.integers(2, 6))
    config = ModelConfig.from_hf({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 13,
        "n_embd": D, "n_layer": 2, "n_head": 2, "n_positions": 8, "layer_norm_epsilon": 1e-5})
    shapes = expected_shapes(config)
    bare = {name.removeprefix("transformer."): shape for name, shape in shapes.items()}
    masks = {f"h.{layer}.attn.bias": (1, 1, 8, 8) for layer in range(2)}
    whose = "`config.architecture` says whose names they are."
    for found, holds, hint in ((shapes, "the prefix", whose), (bare, "no prefix", whose),
                               (bare | masks, "`h.0.attn.bias`, a causal mask, in it",
                                "`is_idle(name, config)` knows what may be left over.")):
        expect_mapped(map_names, found, config, f"the map for a GPT-2 file with {holds}", hint)


@check("weights.map_names", points=0.5, public=False)
def other_families(map_names, rng):
    """Qwen2 with its biases and Qwen3 with its norms, in every naming, tied and not."""
    for architecture in FAMILIES:
        for tied in (True, False):
            config = config_of(rng, architecture, tied)
            for naming in NAMINGS:
                expect_mapped(map_names, found_in(config, naming), config,
                              f"the map for {architecture}", "")


@check("weights.map_names", points=0.5, public=False)
def all_at_once(map_names, rng):
    """Everything that is wrong is in one error,
    and a configuration of a million layers is refused at once."""
    config = config_of(rng, tied=False)
    found = found_in(config, NAMINGS[0])
    missing = "model.layers.0.self_attn.k_proj.weight"
    turned = "model.layers.0.mlp.gate_proj.weight"
    found.pop(missing)
    found |= {turned: found[turned][::-1], "stranger": (1,)}
    expect_mismatch(map_names, found, config, [missing, turned, "stranger"],
                    "three things are wrong", "")
    with expect_error(ModelError, when="a file of ten tensors announces 10**9 layers"):
        map_names({f"model.{n}": (1,) for n in range(10)},
                  dataclasses.replace(config, num_hidden_layers=10**9))


# --- load_checkpoint


def random_state(rng, config: ModelConfig) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in expected_shapes(config).items()}


@contextmanager
def folder_of(settings: dict, state: dict[str, np.ndarray]) -> Iterator[Path]:
    """A Hugging Face folder with these contents, gone afterwards."""
    # Windows keeps what is still mapped.
    with temporary_folder() as folder:
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        safetensors.numpy.save_file(state, folder / "model.safetensors", {"format": "pt"})
        yield folder


def text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as GGUF's llama architecture keeps them: RoPE pairs are neighbours."""
    return np.concatenate([np.stack(np.split(head, 2), axis=1).reshape(head.shape)
                           for head in np.split(weight, heads)])


def q8_0(weight: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The blocks of an array, and what they stand for."""
    rows = weight.reshape(-1, 32)
    scale = (np.abs(rows).max(axis=1, keepdims=True) / 127).astype("<f2")
    codes = np.rint(rows / scale.astype(np.float32)).astype(np.int8)
    raw = np.hstack([scale.view(np.uint8), codes.view(np.uint8)]).tobytes()
    return raw, (codes * scale.astype(np.float32)).reshape(weight.shape)


@contextmanager
def gguf_of(config: ModelConfig,
            state: dict[str, np.ndarray]) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """A GGUF file of this model, Q8_0 where rows allow it, and the arrays it stands for."""
    integers = {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
                "feed_forward_length": config.intermediate_size,
                "context_length": config.max_position_embeddings,
                "attention.head_count": config.num_attention_heads,
                "attention.key_length": config.head_dim,
                "attention.value_length": config.head_dim,
                "rope.dimension_count": config.head_dim,
                "attention.head_count_kv": config.num_key_value_heads}
    floats = {"attention.layer_norm_rms_epsilon": config.rms_norm_eps,
              "rope.freq_base": config.rope_theta}
    tokens = b"".join(text(f"t{n}") for n in range(config.vocab_size))
    metadata = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        *(text(f"llama.{key}") + struct.pack("<II", 4, value)
          for key, value in integers.items()),
        *(text(f"llama.{key}") + struct.pack("<If", 6, value) for key, value in floats.items()),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, config.vocab_size) + tokens]
    rows, data, meant = [], b"", {}
    for name, weight in state.items():
        heads = {"q_proj": config.num_attention_heads,
                 "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if weight.shape[-1] % 32 or weight.ndim == 1:        # a row is a whole number of blocks
            weight = permuted(weight, heads) if heads else weight
            raw, meant[name], kind = weight.astype("<f4").tobytes(), state[name], 0
        else:
            _, meant[name] = q8_0(weight)
            raw, _ = q8_0(permuted(weight, heads) if heads else weight)
            kind = 8
        rows.append(text(gguf_name(name)) + struct.pack("<I", weight.ndim)
                    + struct.pack(f"<{weight.ndim}Q", *weight.shape[::-1])
                    + struct.pack("<IQ", kind, len(data)))
        data += raw + bytes(-len(raw) % 32)
    head = (b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(metadata)) + b"".join(metadata)
            + b"".join(rows))
    with temporary_folder() as folder:
        path = folder / "tiny.gguf"
        path.write_bytes(head + bytes(-len(head) % 32) + data)
        yield path, meant


def arrays_of(weights) -> dict[str, np.ndarray]:
    """All arrays of a model's weights, by the places where the engine looks for them."""
    arrays = {name: array for name, array in vars(weights).items()
              if isinstance(array, np.ndarray)}
    for number, layer in enumerate(weights.layers):
        arrays |= {f"layers[{number}].{name}": array
                   for name, array in vars(layer).items() if array is not None}
    return arrays


def loaded(load_checkpoint, path: Path) -> tuple:
    """What a loader returned, if it is a pair."""
    got = load_checkpoint(path)
    expect_returned(got, "a pair, the configuration and the weights")
    expect(isinstance(got, tuple) and len(got) == 2,
           "a pair, the configuration and the weights", f"an object of {type(got).__name__}",
           "`return config, weights` makes a pair.")
    return got


def expect_loaded(load_checkpoint, path: Path, of: str, hint: str) -> None:
    """The very configuration and arrays that the reference loads."""
    got, (config, weights) = loaded(load_checkpoint, path), reference_load(path)
    expect_equal(got[0], config, of=f"the configuration of {of}",
                 hint="It is read from the file, not made up.")
    mine, right = arrays_of(got[1]), arrays_of(weights)
    expect_equal(sorted(mine), sorted(right), of=f"the arrays of {of}")
    for name, array in right.items():
        expect_close(mine[name], array, of=f"{name} of {of}",
                     axes=["row", "column"][:array.ndim], atol=0, rtol=0, hint=hint)


example_of_load_checkpoint = docstring_example("weights.load_checkpoint", points=1)


@check("weights.load_checkpoint", points=2, public=True)
def from_a_folder(load_checkpoint, rng):
    """A folder with config.json and model.safetensors; integers are no weights."""
    settings = tiny(rng)
    state = random_state(rng, ModelConfig.from_hf(settings))
    with folder_of(settings, state) as folder:
        expect_loaded(load_checkpoint, folder, "a folder",
                      "`map_names` says which tensor of the file is which weight.")
    norm = "model.norm.weight"
    with folder_of(settings, state | {norm: state[norm].astype(np.int32)}) as folder:
        with expect_error(FormatError, when=f"{norm} holds integers",
                          hint="The given `read_into` brings a tensor to its place, as its "
                               "family keeps it, or refuses it."):
            load_checkpoint(folder)


@check("weights.load_checkpoint", points=2, public=True)
def from_a_gguf_file(load_checkpoint, rng):
    """A GGUF file of quantized matrices, its rows of q and k back in Hugging Face's order."""
    config = ModelConfig.from_hf(tiny(rng))
    with gguf_of(config, random_state(rng, config)) as (path, meant):
        weights = loaded(load_checkpoint, path)[1]
        queries = meant["model.layers.0.self_attn.q_proj.weight"]
        expect_close(weights.layers[0].qkv_proj[:len(queries)], queries,
                     of="q_proj of layer 0, from a GGUF file", axes=["row", "column"], atol=0,
                     rtol=0, hint="`read_into` knows in which order GGUF keeps these rows.")
        expect_loaded(load_checkpoint, path, "a GGUF file",
                      "`map_names` leads from Hugging Face's names to those of this file.")


@check("weights.load_checkpoint", points=1, public=True)
def another_head(load_checkpoint, rng):
    """Models with a head of their own, from both kinds of file."""
    settings = tiny(rng, tied=False)
    config = ModelConfig.from_hf(settings)
    state = random_state(rng, config)
    with folder_of(settings, state) as folder:
        expect_loaded(load_checkpoint, folder, "a folder whose model is not tied", "")
    with gguf_of(config, state) as (path, _):
        expect_loaded(load_checkpoint, path, "a GGUF file whose model is not tied",
                      "GGUF has no switch for it: a file without output.weight is of a tied "
                      "model.")


@check("weights.load_checkpoint", points=1, public=True)
def what_does_not_fit(load_checkpoint, rng):
    """A file that does not fit its configuration, is cut off, or is not there, is refused."""
    settings = tiny(rng)
    state = random_state(rng, ModelConfig.from_hf(settings))
    deeper = settings | {"num_hidden_layers": settings["num_hidden_layers"] + 1}
    with folder_of(deeper, state) as folder:
        with expect_error(ModelError,
                          when="the configuration has one layer more than the file"):
            load_checkpoint(folder)
    with folder_of(settings, state) as folder:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-int(rng.integers(1, 99))])
        with expect_error(FormatError, when="the file is cut off"):
            load_checkpoint(folder)
    with folder_of(settings, state) as folder:
        (folder / "model.safetensors").unlink()
        with expect_error(NotAvailableError, when="there is no file of weights"):
            load_checkpoint(folder)


@check("weights.load_checkpoint", points=0.5, public=True)
def heads_that_contradict(load_checkpoint, rng):
    """A tied model whose file has a head: the same one is fine, another one is refused."""
    settings = tiny(rng, tied=True)
    state = random_state(rng, ModelConfig.from_hf(settings))
    embedding = state["model.embed_tokens.weight"]
    with folder_of(settings, state | {"lm_head.weight": embedding.copy()}) as folder:
        expect_loaded(load_checkpoint, folder, "a tied model with a copy of its head",
                      "`map_names` leaves such a head out: it is there twice, and right.")
    another = embedding + np.float32(1e-3)
    with folder_of(settings, state | {"lm_head.weight": another}) as folder:
        with expect_error(ModelError, when="a tied model has a head that is not its embedding",
                          hint="`require_same_head` is given: it compares the two, once the "
                               "weights are there."):
            load_checkpoint(folder)


@check("weights.load_checkpoint", points=0.5, public=True)
def other_models(load_checkpoint, rng):
    """Qwen2, Qwen3, names without a prefix, float16, and a model in two files."""
    for architecture in FAMILIES[1:]:
        settings = tiny(rng, architecture, tied=bool(rng.integers(2)))
        state = random_state(rng, ModelConfig.from_hf(settings))
        bare = {name.removeprefix("model."): array.astype(np.float16)
                for name, array in state.items()}
        with folder_of(settings, bare) as folder:
            expect_loaded(load_checkpoint, folder, f"a folder of {architecture}",
                          "`map_names` knows the names, `read_into` the dtypes.")
    one = {name: state[name] for name in list(state)[::2]}
    two = {name: array for name, array in state.items() if name not in one}
    with folder_of(settings, one) as folder:
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        safetensors.numpy.save_file(two, folder / "two.safetensors")
        index = {"weight_map": dict.fromkeys(one, "one.safetensors")
                               | dict.fromkeys(two, "two.safetensors")}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index), encoding="utf-8")
        expect_loaded(load_checkpoint, folder, "a model in two files",
                      "`open_checkpoint` opens all of them.")


@check("weights.load_checkpoint", points=1, public=False)
def watched(load_checkpoint, rng):
    """Whoever watches sees every tensor go by."""
    settings = tiny(rng)
    config = ModelConfig.from_hf(settings)
    with folder_of(settings, random_state(rng, config)) as folder:
        seen = []

        def progress(items):
            for item in items:
                seen.append(item)
                yield item
        load_checkpoint(folder, progress)
        expect_equal(len(seen), len(expected_shapes(config)),
                     of="the number of tensors that `progress` saw")


# --- chapter 4: the order of rows in GGUF's llama architecture

def in_file(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the file's order: a head's pair (i, i + d/2) becomes neighbours (2i, 2i + 1)."""
    size = len(weight) // heads
    order = [head * size + i + half for head in range(heads) for i in range(size // 2)
             for half in (0, size // 2)]
    return weight[order]


example_of_unpermute_rope = docstring_example("weights.unpermute_rope", points=1)


@check("weights.unpermute_rope", points=1, public=True)
def one_head_by_hand(unpermute_rope, rng):
    """One head of size 8: the rows of the file, 0 4 1 5 2 6 3 7, come back in their order."""
    weight = np.arange(8, dtype=np.float32)[:, None] + np.float32([0, 0.5, 0.25])
    expect_close(unpermute_rope(in_file(weight, 1), 1), weight, atol=0, rtol=0,
                 axes=["row", "column"],
                 of="the matrix of one head of size 8, each row led by its number,",
                 hint="Rows 0 and 1 of the file are a pair. Where do its two rows belong, when "
                      "halves are pairs?")


@st.composite
def rows_of_heads(draw) -> Call:
    """Rows of one head or several, of two rows or more."""
    heads, size = draw(st.sampled_from([2, 1, 3, 5])), draw(st.sampled_from([4, 2, 6, 128]))
    return Call((draw(numbers(heads * size, draw(st.sampled_from([3, 1, 2])))), heads))


@check("weights.unpermute_rope", points=1, public=True)
def any_heads(unpermute_rope, rng):
    """Heads of every number and size, large and tiny numbers, in any layout."""
    expect_agreement(unpermute_rope, unpermuted, rows_of_heads(), rng, rtol=0,
                     name="unpermute_rope",
                     hint="Which two rows of the file make the first pair of the second head?")


@check("weights.unpermute_rope", points=1, public=True)
def heads_of_rows(unpermute_rope, rng):
    """Several heads: each one's rows are sorted by themselves, columns stay,
    and the file's matrix is not touched."""
    for heads, size in ((3, 10), (2, 6)):
        weight = rng.standard_normal((heads * size, 7)).astype(np.float32)
        file = in_file(weight, heads)
        with expect_unchanged(file):
            got = unpermute_rope(file, heads)
        expect_close(got, weight, atol=0, rtol=0, axes=["row", "column"],
                     of=f"{heads} heads of size {size}",
                     hint="No row leaves its head. With a head of 4, permuting and undoing it "
                          "look alike; this one is larger.")


@check("weights.unpermute_rope", points=0.5, public=False)
def key_heads(unpermute_rope, rng):
    """Heads of every number and size, as many rows as columns among them."""
    for heads, size, columns in ((1, 2, 3), (5, 4, 20), (4, 14, 9), (7, 6, 1), (2, 64, 128)):
        weight = rng.standard_normal((heads * size, columns)).astype(np.float32)
        expect_close(unpermute_rope(in_file(weight, heads), heads), weight, atol=0, rtol=0)


@check("weights.unpermute_rope", points=0.5, public=False)
def same_scores(unpermute_rope, rng):
    """The law: scores with neighbours turned in the file's order are those
    with halves turned in this one."""
    heads, size, x = 3, 12, rng.standard_normal((2, 9))
    wide = rng.standard_normal((2, heads * size, 9)).astype(np.float32)     # for queries, keys
    angles = np.array([5.0, 2.0])[:, None] * 100.0 ** (-np.arange(size // 2) / (size // 2))
    scores = []
    for layout in ("neighbours", "halves"):
        turned = []
        for matrix, vector, angle in zip(wide, x, angles):
            rows = matrix if layout == "neighbours" else unpermute_rope(matrix, heads)
            one = (rows @ vector).reshape(heads, size)
            a, b = ((one[:, ::2], one[:, 1::2]) if layout == "neighbours"
                    else np.split(one, 2, axis=1))
            turned.append((a + 1j * b) * np.exp(1j * angle))
        scores.append((turned[0] * turned[1].conj()).real.sum(axis=1))
    expect_close(np.float32(scores[1]), np.float32(scores[0]), atol=1e-3)

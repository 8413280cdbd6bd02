"""Checks of the arithmetic of a model's cost, against figures of its publishers."""

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect, expect_equal, expect_error, expect_returned
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.calls import Call, calls
from autograder.generators.configurations import some, switches
from gearworks import accounting as reference
from gearworks.accounting import BLOCKS, SHAPES, ModelShape
from gearworks.errors import ModelError

# num_parameters() of these models in transformers; the engine's tests ask it again.
HF_PARAMETERS = {"SmolLM2-135M": 134_515_008, "Qwen2.5-0.5B": 494_032_768,
                 "Qwen3-0.6B": 596_049_920, "Llama-3.2-1B": 1_235_814_400,
                 "Llama-2-7B": 6_738_415_616, "Mistral-7B": 7_241_732_096,
                 "Qwen2.5-7B": 7_615_616_512, "Llama-3.1-8B": 8_030_261_248,
                 "Llama-2-13B": 13_015_864_320, "Llama-2-70B": 68_976_648_192}


def odd_shape(rng: np.random.Generator, **settings) -> ModelShape:
    """A shape of sizes that all differ, with H·d not D, and key/value heads that are shared."""
    kv_heads = int(rng.integers(2, 5))
    heads = kv_heads * int(rng.integers(2, 5))
    head_dim = 2 * int(rng.integers(3, 9))
    return ModelShape(**{"vocab_size": int(rng.integers(500, 900)),
                         "hidden_size": heads * head_dim + 2 * int(rng.integers(1, 9)),
                         "intermediate_size": int(rng.integers(300, 400)),
                         "num_hidden_layers": int(rng.integers(3, 7)),
                         "num_attention_heads": heads, "num_key_value_heads": kv_heads,
                         "head_dim": head_dim} | settings)


@st.composite
def shapes(draw, blocked: bool = False) -> ModelShape:
    """Shapes with every switch on and off; H·d is seldom D, and K seldom H.

    blocked: keys, values and tables fill whole blocks of 32, in any sum.
    """
    def size(*likely: int) -> int:
        return draw(st.sampled_from(likely))

    heads = size(2, 1, 3)
    return ModelShape(vocab_size=size(64, 320) if blocked else size(10, 7, 49152),
                      hidden_size=size(4, 5, 24, 576), intermediate_size=size(3, 6, 1536),
                      num_hidden_layers=size(1, 2, 3, 61), num_key_value_heads=heads,
                      num_attention_heads=heads * size(2, 1, 3),
                      head_dim=size(32, 128) if blocked else size(2, 6, 128),
                      **draw(switches("tie_word_embeddings", "qkv_bias", "o_bias", "mlp_bias",
                                      "qk_norm")))


DTYPE = st.sampled_from([*BLOCKS])
UNKNOWN = st.sampled_from(["float13", "Q4_0", "float", "", "q4"])
TOKENS = st.sampled_from([1, 0, 2, 31, 33, 1000])


def expect_count(parameter_count, shape: ModelShape, of: str, hint: str,
                 expected: int | None = None) -> None:
    expected = reference.parameter_count(shape) if expected is None else expected
    got = parameter_count(shape)
    if not isinstance(got, (int, float, np.integer)):
        expect_equal(got, expected, of=of, hint=hint)
    wrong = f"{abs(got - expected):,} too {'many' if got > expected else 'few'}"
    expect(got == expected, f"{of} to be {expected:,}",
           f"{got:,}, which is {wrong}; the shape is {sizes(shape)}", hint)


def blocked_shape(rng: np.random.Generator, **settings) -> ModelShape:
    """An odd shape whose keys, values and tables fill whole blocks of 32, in any sum."""
    return odd_shape(rng, head_dim=32, vocab_size=32 * int(rng.integers(15, 30)), **settings)


def told(step: dict) -> str:
    """The arguments of a call as they are written."""
    return ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!r}"
                     for name, value in step.items())


def sizes(shape: ModelShape) -> str:
    letters = {"V": shape.vocab_size, "D": shape.hidden_size, "F": shape.intermediate_size,
               "L": shape.num_hidden_layers, "H": shape.num_attention_heads,
               "K": shape.num_key_value_heads, "d": shape.head_dim}
    return ", ".join(f"{letter} {value}" for letter, value in letters.items())


example_of_parameter_count = docstring_example("accounting.parameter_count", points=1)


@check("accounting.parameter_count", points=3, public=True)
def plain_llama(parameter_count, rng):
    """Llama-2-7B: embedding, 32 layers, final norm, and a head of its own."""
    expect_count(parameter_count, SHAPES["Llama-2-7B"],
                 "the number of parameters of Llama-2-7B",
                 "Count the arrays that the docstring lists. How many norms does a model of 32 "
                 "layers have?", HF_PARAMETERS["Llama-2-7B"])


@check("accounting.parameter_count", points=3, public=True, always=(4,))
def grouped_heads(parameter_count, rng):
    """Fewer key/value heads, and heads whose sizes do not add up to the hidden size."""
    expect_count(parameter_count, odd_shape(rng), "the number of parameters",
                 "q and o have H·d rows or columns, k and v have K·d; none of these need be D.")


@check("accounting.parameter_count", points=2, public=True)
def tied_embeddings(parameter_count, rng):
    """SmolLM2's head is its embedding table: one array, counted once."""
    expect_count(parameter_count, SHAPES["SmolLM2-135M"],
                 "the number of parameters of SmolLM2-135M",
                 "Tied means that the output head is the very array that the embedding looks "
                 "up in.", HF_PARAMETERS["SmolLM2-135M"])


@check("accounting.parameter_count", points=2, public=True)
def qwen2_biases(parameter_count, rng):
    """Qwen2 adds a bias to q, k and v, and to nothing else."""
    for name in ("Qwen2.5-0.5B", "Qwen2.5-7B"):
        expect_count(parameter_count, SHAPES[name], f"the number of parameters of {name}",
                     "A bias has one number for each output of its projection; q has more "
                     "outputs than k.", HF_PARAMETERS[name])


@check("accounting.parameter_count", points=2, public=True)
def qwen3_norms(parameter_count, rng):
    """Qwen3 has a norm for queries and one for keys in each layer."""
    expect_count(parameter_count, SHAPES["Qwen3-0.6B"],
                 "the number of parameters of Qwen3-0.6B",
                 "Each of the two norms has one weight vector of size d, shared by all heads "
                 "of its layer.", HF_PARAMETERS["Qwen3-0.6B"])


@check("accounting.parameter_count", points=2, public=True)
def any_shape(parameter_count, rng):
    """Shapes of every kind, with every switch on and off."""
    expect_agreement(parameter_count, reference.parameter_count, calls(shapes()), rng,
                     hint="Which of its arrays is counted once too often, or not at all? Write "
                          "their shapes down, with these sizes.")


@check("accounting.parameter_count", points=1, public=False)
def any_switch(parameter_count, rng):
    """Every switch of a shape, one at a time, on odd sizes."""
    for switch in ("tie_word_embeddings", "qkv_bias", "o_bias", "mlp_bias", "qk_norm"):
        expect_count(parameter_count, odd_shape(rng, **{switch: True}),
                     f"the number of parameters with {switch}", "")


@check("accounting.parameter_count", points=2, public=False)
def published_models(parameter_count, rng):
    """The published models, from 0.5 to 70 billion parameters."""
    for name in ("Llama-3.2-1B", "Mistral-7B", "Llama-3.1-8B", "Llama-2-13B", "Llama-2-70B"):
        expect_count(parameter_count, SHAPES[name], f"the number of parameters of {name}", "",
                     HF_PARAMETERS[name])


example_of_stored_bytes_memory_bytes = docstring_example(
    "accounting.stored_bytes+memory_bytes", points=1)


@check("accounting.stored_bytes+memory_bytes", points=2, public=True)
def plain_types(stored_bytes, memory_bytes, rng):
    """Plain storage types: four, two and one byte a number."""
    count = int(rng.integers(1000, 9000))
    for dtype, size in {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}.items():
        expect_equal(stored_bytes(count, dtype), count * size,
                     of=f"the bytes of {count} numbers in {dtype}")


@check("accounting.stored_bytes+memory_bytes", points=3, public=True)
def whole_blocks(stored_bytes, memory_bytes, rng):
    """Quantized blocks bring their scales, and a block that is begun is stored whole."""
    blocks = int(rng.integers(10, 90))
    for dtype in ("q4_0", "q4_1", "q8_0", "int4"):
        numbers, size = BLOCKS[dtype]
        for extra, stored in ((0, blocks), (1, blocks + 1), (numbers - 1, blocks + 1)):
            expect_equal(stored_bytes(blocks * numbers + extra, dtype), stored * size,
                         of=f"the bytes of {blocks * numbers + extra} numbers in {dtype}, "
                            f"whose blocks hold {numbers} numbers in {size} bytes",
                         hint="How many blocks are that, with the last one whole?")


@check("accounting.stored_bytes+memory_bytes", points=1, public=True)
def unknown_type(stored_bytes, memory_bytes, rng):
    """A storage type that nobody knows is refused, not guessed."""
    with expect_error(ModelError, when="asked for the bytes of a number in 'float13'",
                      hint="The docstring names the error; `BLOCKS` knows the types."):
        stored_bytes(64, "float13")


@check("accounting.stored_bytes+memory_bytes", points=2, public=True)
def weights(stored_bytes, memory_bytes, rng):
    """All weights in one storage type: a 70B model in 16 bits, and in blocks of 4 bits."""
    for dtype in ("float16", "q4_0", "q4_1"):
        numbers, size = BLOCKS[dtype]
        expect_equal(memory_bytes(SHAPES["Llama-2-70B"], dtype)["weights"],
                     -(-HF_PARAMETERS["Llama-2-70B"] // numbers) * size,
                     of=f"the weights of Llama-2-70B in {dtype}")


@check("accounting.stored_bytes+memory_bytes", points=2, public=True)
def key_value_cache(stored_bytes, memory_bytes, rng):
    """The cache keeps keys and values of key/value heads: all, some, or one."""
    for kv_heads, kind in ((12, "multi-head"), (4, "grouped-query"), (1, "multi-query")):
        shape = odd_shape(rng, num_attention_heads=12, num_key_value_heads=kv_heads)
        count = int(rng.integers(10, 99))
        expect_equal(memory_bytes(shape, "float16", tokens=count)["kv_cache"],
                     reference.memory_bytes(shape, "float16", tokens=count)["kv_cache"],
                     of=f"the float16 cache of {count} tokens with {kind} attention "
                        f"({sizes(shape)})",
                     hint="Each layer keeps a key and a value, each of size d, for every head "
                          "that has keys.")


@check("accounting.stored_bytes+memory_bytes", points=2, public=True)
def any_count(stored_bytes, memory_bytes, rng):
    """Any count of numbers in any storage type, for weights and cache alike."""
    counts = st.sampled_from([0, 1, 2, 31, 32, 33, 64, 65, 1000, 10**12 + 1])
    expect_agreement(stored_bytes, reference.stored_bytes,
                     calls(counts, st.one_of(DTYPE, DTYPE, DTYPE, UNKNOWN)), rng,
                     hint="How many blocks does `BLOCKS` make of that?")
    dtypes = st.one_of(DTYPE, DTYPE, DTYPE, DTYPE, UNKNOWN)
    memory = st.builds(lambda shape, dtype, options: Call((shape, dtype), options), shapes(),
                       dtypes, some(tokens=TOKENS, cache_dtype=dtypes))
    expect_agreement(memory_bytes, reference.memory_bytes, memory, rng,
                     hint="Which numbers are stored in one run? Weights have one type, the "
                          "cache has another.")


@check("accounting.stored_bytes+memory_bytes", points=2, public=False)
def any_memory(stored_bytes, memory_bytes, rng):
    """Weights and cache in different types, on odd sizes."""
    for _ in range(6):
        shape = blocked_shape(rng, tie_word_embeddings=bool(rng.integers(2)),
                              qk_norm=bool(rng.integers(2)))
        dtype, cache_dtype = rng.choice(["float32", "float16", "q8_0", "q4_1"], 2,
                                        replace=False).tolist()
        count = int(rng.integers(0, 999))
        options = {"tokens": count, "cache_dtype": cache_dtype}
        expect_equal(memory_bytes(shape, dtype, **options),
                     reference.memory_bytes(shape, dtype, **options), of="the memory")
    expect_equal(stored_bytes(10**12 + 1, "float16"), 2 * 10**12 + 2,
                 of="the bytes of a trillion and one numbers")


example_of_forward_flops = docstring_example("accounting.forward_flops", points=1)


@check("accounting.forward_flops", points=3, public=True)
def one_token(forward_flops, rng):
    """One token and no past: two FLOPs for each weight of each matrix,
    the looked-up embedding excepted."""
    shape = odd_shape(rng)
    expect_equal(forward_flops(shape, 1), reference.forward_flops(shape, 1),
                 of=f"the FLOPs ({sizes(shape)})",
                 hint="A matrix of m × n weights costs one vector 2·m·n. The token also "
                      "attends to itself. Looking a row up multiplies nothing.")


@check("accounting.forward_flops", points=2, public=True)
def prompt(forward_flops, rng):
    """In a prompt, each token attends to those before it and to itself."""
    shape, length = odd_shape(rng), int(rng.integers(20, 60))
    expect_equal(forward_flops(shape, length), reference.forward_flops(shape, length),
                 of=f"the FLOPs of a prompt of {length} tokens ({sizes(shape)})",
                 hint="Count the (query, key) pairs in a triangle of 3 tokens by hand. Every "
                      "query head meets every pair, once for its score and once for its value.")


@check("accounting.forward_flops", points=2, public=True)
def with_a_past(forward_flops, rng):
    """With a cache, the matrices see the new tokens only,
    and each new token attends to the whole past."""
    shape, past, new = odd_shape(rng), int(rng.integers(200, 400)), int(rng.integers(2, 9))
    expect_equal(forward_flops(shape, new, past), reference.forward_flops(shape, new, past),
                 of=f"the FLOPs of {new} tokens after {past} ({sizes(shape)})",
                 hint="Past tokens cost attention, and no matrix product.")


@check("accounting.forward_flops", points=2, public=True)
def rows_of_logits(forward_flops, rng):
    """The head computes as many rows of logits as are wanted, not one for each token."""
    shape = odd_shape(rng)
    more = forward_flops(shape, 30, logit_rows=30) - forward_flops(shape, 30, logit_rows=1)
    expect_equal(more, 29 * 2 * shape.vocab_size * shape.hidden_size,
                 of=f"the FLOPs of 29 more rows of logits ({sizes(shape)})",
                 hint="A prompt needs logits after its last token only: logit_rows, which is 1 "
                      "unless more are wanted.")


@check("accounting.forward_flops", points=2, public=True)
def any_step_of_it(forward_flops, rng):
    """Passes of any length after any past, with logits for some, all or none of the rows."""
    passes = st.builds(
        lambda shape, new, past, rows: Call(
            (shape, new), {"past_tokens": past} | ({} if rows < 0 else {"logit_rows":
                                                                       min(rows, new)})),
        shapes(), st.sampled_from([1, 2, 3, 40]), st.sampled_from([0, 1, 5, 700]),
        st.sampled_from([-1, 0, 1, 2, 40]))
    expect_agreement(forward_flops, reference.forward_flops, passes, rng,
                     hint="Which product of this pass has another number of rows, of columns, "
                          "or of pairs?")


@check("accounting.forward_flops", points=1, public=False)
def chunks_add_up(forward_flops, rng):
    """A prompt cut into chunks costs what it costs whole."""
    shape, lengths = odd_shape(rng), rng.integers(1, 40, 4).tolist()
    pieces, past = [], 0
    for length in lengths:
        pieces.append(forward_flops(shape, length, past, logit_rows=0))
        past += length
    expect_equal(sum(pieces), reference.forward_flops(shape, past, logit_rows=0),
                 of="the sum over chunks")


@check("accounting.forward_flops", points=1, public=False)
def any_pass(forward_flops, rng):
    """Passes of many kinds over published models."""
    for name in ("SmolLM2-135M", "Qwen3-0.6B", "Llama-2-7B", "Llama-2-70B"):
        new, past = int(rng.integers(1, 600)), int(rng.integers(0, 70_000))
        expect_equal(forward_flops(SHAPES[name], new, past),
                     reference.forward_flops(SHAPES[name], new, past),
                     of=f"the FLOPs of a pass of {name}")


PAIR = "accounting.bytes_moved+roofline_tokens_per_second"


def expect_speed(got, expected: float, of: str, hint: str) -> None:
    wanted = f"{of} to be {expected:,.6g}"
    expect_returned(got, wanted)
    expect(isinstance(got, (int, float)) and abs(got - expected) <= 1e-9 * expected, wanted,
           f"{got:,.6g}" if isinstance(got, (int, float)) else repr(got)[:60], hint)


example_of_bytes_moved_roofline_tokens_per_second = docstring_example(PAIR, points=1)


@check(PAIR, points=2, public=True)
def weights_once(bytes_moved, roofline_tokens_per_second, rng):
    """A step reads the weights once, however many sequences share it."""
    shape = odd_shape(rng, tie_word_embeddings=True)
    batch = int(rng.integers(3, 9))
    expect_equal(bytes_moved(shape, "float16", batch=batch),
                 reference.bytes_moved(shape, "float16", batch=batch),
                 of=f"the bytes of a step of {batch} sequences ({sizes(shape)})",
                 hint="Each weight, bias and norm comes from memory once and meets all "
                      "sequences; the new keys and values are each sequence's own.")


@check(PAIR, points=2, public=True)
def cache_of_each(bytes_moved, roofline_tokens_per_second, rng):
    """Every sequence brings the keys and values of its own past,
    and writes those of its new tokens."""
    shape = blocked_shape(rng, tie_word_embeddings=True)
    step = {"batch": int(rng.integers(2, 5)), "new_tokens": int(rng.integers(2, 5)),
            "past_tokens": int(rng.integers(90, 400))}
    for cache_dtype in ("float16", "q8_0"):
        expect_equal(bytes_moved(shape, "float32", cache_dtype=cache_dtype, **step),
                     reference.bytes_moved(shape, "float32", cache_dtype=cache_dtype, **step),
                     of=f"the bytes of a step with {told(step)}, cache in {cache_dtype} "
                        f"({sizes(shape)})",
                     hint="Past and new tokens of all sequences together; the cache has a "
                          "storage type of its own.")


@check(PAIR, points=1, public=True)
def table_that_is_not_read(bytes_moved, roofline_tokens_per_second, rng):
    """A table that only the look-up uses stays in memory."""
    shape = odd_shape(rng)
    expect_equal(bytes_moved(shape, "float16"), reference.bytes_moved(shape, "float16"),
                 of=f"the bytes of one token of a model that is not tied ({sizes(shape)})",
                 hint="Not tied means two tables of V × D. Which of them does a step read "
                      "whole?")


@check(PAIR, points=2, public=True)
def slowed_by_memory(bytes_moved, roofline_tokens_per_second, rng):
    """One token at a time, SmolLM2 is limited by the memory's bandwidth."""
    step = {"bandwidth": 1e9 * int(rng.integers(10, 50)), "flops_per_second": 1e14,
            "past_tokens": int(rng.integers(100, 900))}
    shape = SHAPES["SmolLM2-135M"]
    expect_speed(roofline_tokens_per_second(shape, "float32", **step),
                 reference.roofline_tokens_per_second(shape, "float32", **step),
                 f"the tokens a second with {told(step)}",
                 "How long does it take to move the bytes of one step?")


@check(PAIR, points=2, public=True)
def slowed_by_arithmetic(bytes_moved, roofline_tokens_per_second, rng):
    """A long prompt, or a large batch, is limited by arithmetic, and all its tokens count."""
    shape = SHAPES["Qwen3-0.6B"]
    for step in ({"new_tokens": int(rng.integers(500, 900))},
                 {"batch": int(rng.integers(500, 900)), "past_tokens": 9}):
        step |= {"bandwidth": 1e12, "flops_per_second": 1e9 * int(rng.integers(100, 500))}
        expect_speed(roofline_tokens_per_second(shape, "float16", **step),
                     reference.roofline_tokens_per_second(shape, "float16", **step),
                     f"the tokens a second with {told(step)}",
                     "Two times matter, that of the bytes and that of the FLOPs, and they pass "
                     "side by side. The batch multiplies the FLOPs and the tokens.")


@check(PAIR, points=2, public=True)
def any_way(bytes_moved, roofline_tokens_per_second, rng):
    """Any step of any model in any storage types, on any machine."""
    step = some(batch=st.sampled_from([1, 2, 7, 300]), new_tokens=st.sampled_from([1, 2, 40]),
                past_tokens=st.sampled_from([0, 1, 90]), cache_dtype=DTYPE)
    expect_agreement(
        bytes_moved, reference.bytes_moved,
        st.builds(lambda shape, dtype, step: Call((shape, dtype), step), shapes(True), DTYPE,
                  step),
        rng, hint="What is read once, what by each sequence, and what is written?")
    machine = st.fixed_dictionaries({"bandwidth": st.sampled_from([1e9, 2.5e10, 1e13]),
                                     "flops_per_second": st.sampled_from([1e9, 2.5e11, 1e15])})
    expect_agreement(
        roofline_tokens_per_second, reference.roofline_tokens_per_second,
        st.builds(lambda shape, dtype, machine, step: Call((shape, dtype), machine | step),
                  shapes(True), DTYPE, machine, step),
        rng, rtol=1e-9,
        hint="Every argument says something of the step: does each reach the bytes and the "
             "FLOPs?")


@check(PAIR, points=1, public=False)
def any_step(bytes_moved, roofline_tokens_per_second, rng):
    """The bytes of steps of many kinds."""
    for _ in range(6):
        shape = blocked_shape(rng, tie_word_embeddings=bool(rng.integers(2)))
        dtype, cache_dtype = rng.choice(["float32", "float16", "q8_0", "q4_0"], 2).tolist()
        step = {"batch": int(rng.integers(1, 20)), "new_tokens": int(rng.integers(1, 20)),
                "past_tokens": int(rng.integers(0, 2000)), "cache_dtype": cache_dtype}
        expect_equal(bytes_moved(shape, dtype, **step),
                     reference.bytes_moved(shape, dtype, **step), of="the bytes")


@check(PAIR, points=1, public=False)
def any_machine(bytes_moved, roofline_tokens_per_second, rng):
    """The speed on machines of many kinds, on both sides of the ridge."""
    for exponent in (9, 11, 13, 15):
        step = {"bandwidth": float(rng.uniform(1, 9) * 1e11),
                "flops_per_second": float(rng.uniform(1, 9) * 10**exponent),
                "batch": int(rng.integers(2, 30)), "new_tokens": int(rng.integers(1, 9)),
                "past_tokens": 700}
        expect_speed(roofline_tokens_per_second(SHAPES["Llama-2-7B"], "q4_0", **step),
                     reference.roofline_tokens_per_second(SHAPES["Llama-2-7B"], "q4_0", **step),
                     "the tokens a second", "")

"""Checks of the bug museum: the repaired exhibits, and the learner's tests of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Raised, Seen, attempted, expect_agreement
from autograder.generators.arrays import Numbers, numbers
from autograder.generators.calls import Call, calls
from autograder.generators.files import ODD
from autograder.generators.texts import SIGNS, WHITE_SPACE, texts
from autograder.processes.limits import TimeLimit
from autograder.variants.mutation import load_mutant, mutants_of, reference_subjects
from gearworks.errors import ModelError
from gearworks.museum import conversation_ids as reference
from gearworks.museum import load_state as reference_load_state
from gearworks.museum import packed_matvec as reference_packed_matvec
from gearworks.museum import prefix_hit as reference_prefix_hit
from gearworks.museum import prompt_ids as reference_prompt_ids
from gearworks.museum import split_heads as reference_split_heads
from gearworks.museum import stream_pieces as reference_stream_pieces
from gearworks.museum import update_cache as reference_update_cache
from gearworks.museum import upstream_request as reference_upstream_request
from gearworks.museum import zero_points as reference_zero_points
from gearworks.tokenizer import Tokenizer, train_bpe
from gearworks.vocabularies.vocabulary import AddedToken

ALPHABET = "abcdefghijklmnopqrstuvwxyz .?"
_ACCEPTED = Path(__file__).parents[1] / "accept" / "museum"


def message(rng, length: int) -> str:
    """A random text, of no character that comes first in the alphabet only."""
    return "".join(ALPHABET[i] for i in rng.integers(0, len(ALPHABET), length))


example_of_conversation_ids = docstring_example("museum.conversation_ids", points=1)


@check("museum.conversation_ids", points=1, public=True)
def ids_of_their_own(conversation_ids, rng):
    """The conversation begins with BOS, special ids belong to no character,
    and nobody says EOS for the model."""
    text = "cab" + message(rng, 4)
    expect_equal(conversation_ids([], text, ALPHABET)["input_ids"],
                 reference([], text, ALPHABET)["input_ids"],
                 of=f"the ids of {text!r} in the alphabet {ALPHABET!r}",
                 hint="Which id does the first character of the alphabet have? What is the "
                      "last id of the list?")


@check("museum.conversation_ids", points=2, public=True)
def places(conversation_ids, rng):
    """Positions count on through the whole conversation."""
    past = reference([], message(rng, 5), ALPHABET)["input_ids"]
    text = message(rng, 4)
    expect_equal(conversation_ids(past, text, ALPHABET), reference(past, text, ALPHABET),
                 of=f"the answer to {text!r} after a conversation of {len(past)} ids",
                 hint="The model tells two words apart by what they are and by where they "
                      "stand.")


@check("museum.conversation_ids", points=1, public=True)
def reset(conversation_ids, rng):
    """The message /reset forgets everything."""
    past = reference([], message(rng, 5), ALPHABET)["input_ids"]
    expect_equal(conversation_ids(past, "/reset", ALPHABET), {"input_ids": [], "positions": []},
                 of="the answer to /reset", hint="Run this path once by hand.")


@check("museum.conversation_ids", points=1, public=True)
def unknown_text(conversation_ids, rng):
    """A character that the alphabet lacks is refused, not dropped."""
    text = message(rng, 3) + "é" + message(rng, 2)
    with expect_error(ModelError, when=f"the message is {text!r}",
                      hint="Without it, 3 × 4 and 3 4 are the same question."):
        conversation_ids([], text, ALPHABET)


CONVERSATIONS = calls(
    st.one_of(st.just([]),
              st.lists(st.sampled_from([3, 4, 5]), max_size=4).map(lambda ids: [1, *ids])),
    st.one_of(st.lists(st.sampled_from("abcé/"), max_size=4).map("".join),
              st.sampled_from(["/reset", " /reset", "/reset ", "reset", "", "aa", "A"])),
    st.sampled_from(["abc", "cba/", "é", "/rest", "ab"]))


@check("museum.conversation_ids", points=2.5, public=True)
def any_message(conversation_ids, rng):
    """Messages of every kind, at the beginning of a conversation and later, in any
    alphabet."""
    expect_agreement(conversation_ids, reference, CONVERSATIONS, rng, examples=120,
                     hint="Which ids does this alphabet have? Is the conversation at its "
                          "beginning, and what does the message ask for?")


@check("museum.conversation_ids", points=0.5, public=False)
def whole_conversations(conversation_ids, rng):
    """Conversations of several messages, with what belongs to the caller left as it is."""
    for _ in range(4):
        past: list[int] = []
        for _ in range(3):
            text = message(rng, int(rng.integers(0, 9)))
            with expect_unchanged(past):
                got = conversation_ids(past, text, ALPHABET)
            past = reference(past, text, ALPHABET)["input_ids"]
            expect_equal(got, {"input_ids": past, "positions": list(range(len(past)))},
                         of="the answer")


def damaged(mutant: str, name: str) -> Callable:
    """An exhibit as one of its mutants has it."""
    exercise = f"museum.{name}"
    found = next(each for each in mutants_of(exercise) if each.name == mutant)
    return load_mutant(exercise, found)[0]


def accepted(style: str, name: str) -> Callable:
    """An exhibit, repaired, as one of its accepted versions has it."""
    names: dict = {"__name__": style}
    path = _ACCEPTED / f"{name}__{style}.py"
    exec(compile(path.read_text(encoding="utf-8"), f"<accepted {path.stem}>", "exec"), names)
    return names[name]


def expect_right_code_passes(test: Callable, exhibit: str, styles: tuple[str, str]) -> None:
    for version, name in ((reference_subjects(f"museum.{exhibit}")[0], "the repaired function"),
                          (accepted(styles[0], exhibit), "the same function written otherwise"),
                          (accepted(styles[1], exhibit), "the same function in a third style")):
        try:
            test(version)
        except AssertionError as error:
            raise CheckFailure(f"the test to pass on right code: {name}", Raised(error).told(),
                               f"The docstring of `{exhibit}` says what is right; a test asks "
                               "for no more.") from error


def expect_caught(test: Callable, mutant: str, fault: str, exhibit: str) -> None:
    function = damaged(mutant, exhibit)
    try:
        test(function)
    except (KeyboardInterrupt, TimeLimit, NotImplementedError):
        raise
    except BaseException:                             # pytest's own failures are no `Exception`
        return
    expect(False, f"the test to fail on code in which {fault}", "that it passes",
           "Write down what the right answer is, for an input where the fault would show.")


def expect_finds(test: Callable, exhibit: str, styles: tuple[str, str],
                 faults: Mapping[str, str]) -> None:
    """Fail unless a test passes on right code in three styles, and fails on these mutants.

    faults: mutant -> what is wrong with it, in words.
    """
    expect_right_code_passes(test, exhibit, styles)
    for mutant, fault in faults.items():
        expect_caught(test, mutant, fault, exhibit)


TUTORIAL_STYLES = ("conversation_ids", ("find", "table"))


example_of_conversation_ids_test = docstring_example("museum.conversation_ids_test", points=1)


@check("museum.conversation_ids_test", points=1.5, public=True)
def finds_the_exhibit(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_finds(test, *TUTORIAL_STYLES,
                 {"tutorial-engine": "all five faults are as you found them"})


@check("museum.conversation_ids_test", points=2, public=True)
def finds_what_hides(test, rng):
    """It finds the faults that never show in a friendly conversation:
    the reset, and the dropped text."""
    expect_finds(test, *TUTORIAL_STYLES, {
        "reset-crashes": "/reset uses a name that is not defined",
        "unknown-text-dropped": "an unknown character vanishes"})


@check("museum.conversation_ids_test", points=1, public=True)
def finds_each_alone(test, rng):
    """It finds every one of the other faults when it is alone."""
    expect_finds(test, *TUTORIAL_STYLES, {
        "no-positions": "all positions are 0",
        "eos-after-the-prompt": "EOS follows the message",
        "ids-used-twice": "characters and special tokens share ids"})


@check("museum.conversation_ids_test", points=0.5, public=False)
def finds_other_engines(test, rng):
    """It fails on engines with other faults, too."""
    expect_finds(test, *TUTORIAL_STYLES, {
        "positions-start-again": "positions begin anew with every message",
        "bos-with-every-message": "BOS comes again with every message"})


# --- chapter 2: BOS twice

CHAT_TEMPLATE = ("{{ bos_token }}{% for m in messages %}"
                 "<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
                 "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def model_tokenizer(prefix: bool, suffix: bool = False) -> Tokenizer:
    """A tokenizer of bytes. prefix, suffix: whether it puts BOS and EOS around a text."""
    contents = ("<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>")
    added = tuple(AddedToken(content, 256 + number, special=True)
                  for number, content in enumerate(contents))
    return Tokenizer(replace(train_bpe([], 256), added_tokens=added, prefix=(256,) * prefix,
                             suffix=(257,) * suffix))


def conversation(rng) -> dict:
    return {"messages": [{"role": "system", "content": message(rng, 3)},
                         {"role": "user", "content": message(rng, 5)}]}


def expect_prompt(prompt_ids, request: dict, tokenizer: Tokenizer, of: str, hint: str,
                  template: str = CHAT_TEMPLATE) -> None:
    got = prompt_ids(request, template, "<bos>", tokenizer.encode)
    wanted = reference_prompt_ids(request, template, "<bos>", tokenizer.encode)
    expect(isinstance(got, list) and all(type(id) is int for id in got), "a list of ids",
           repr(got)[:60])
    expect_equal(tokenizer.decode(got), tokenizer.decode(wanted),
                 of=f"the text of {of}, special tokens shown", hint=hint)
    expect_equal(got, wanted, of=f"the ids of {of}", hint=hint)


example_of_prompt_ids = docstring_example("museum.prompt_ids", points=0.5)


@check("museum.prompt_ids", points=1, public=True)
def one_bos(prompt_ids, rng):
    """A conversation begins with one BOS, the template's own."""
    expect_prompt(prompt_ids, conversation(rng), model_tokenizer(prefix=True), "a conversation",
                  "Who writes BOS here: the template, the tokenizer, or both?")


@check("museum.prompt_ids", points=1, public=True)
def plain_text(prompt_ids, rng):
    """A text to continue still begins with BOS, if the model wants one,
    and a conversation has no second one."""
    # Both in one check: of a text the exhibit is right, and left as it was it earns nothing.
    expect_prompt(prompt_ids, conversation(rng), model_tokenizer(prefix=True), "a conversation",
                  "Who writes BOS here: the template, the tokenizer, or both?")
    request = {"prompt": message(rng, 6)}
    for prefix in (True, False):
        expect_prompt(prompt_ids, request, model_tokenizer(prefix),
                      "a text to continue, for a model that wants "
                      + ("BOS" if prefix else "no BOS"),
                      "No template writes anything here, so the tokenizer must.")


@st.composite
def prompts(draw) -> Call:
    """Conversations, and texts to continue, for a model that wants BOS, or EOS too, or none."""
    words = texts(["a", "Hi"], SIGNS, WHITE_SPACE, ["<bos>", "<eos>", "<|user|>"], most=3,
                  long=False)
    if draw(st.booleans()):
        request = {"prompt": draw(words)}
    else:
        roles = draw(st.sampled_from([["user"], ["system", "user"],
                                      ["user", "assistant", "user"]]))
        request = {"messages": [{"role": role, "content": draw(words)} for role in roles]}
    template = draw(st.sampled_from([CHAT_TEMPLATE,
                                     CHAT_TEMPLATE.removeprefix("{{ bos_token }}")]))
    return Call((request, template, draw(st.booleans()), draw(st.booleans())))


def prompt_of(prompt_ids, call: Call) -> Seen:
    (request, template, prefix, suffix), _ = call.made()
    encode = model_tokenizer(prefix, suffix).encode
    with expect_unchanged(request):
        ids = attempted(prompt_ids, args=(request, template, "<bos>", encode))
    return [("the ids (BOS is 256, EOS 257, a letter its byte's) of", ids)]


@check("museum.prompt_ids", points=1, public=True)
def any_prompt(prompt_ids, rng):
    """Conversations and texts of every kind, for models that want BOS, EOS, or neither."""
    expect_agreement(prompt_ids, reference_prompt_ids, prompts(), rng, run=prompt_of,
                     examples=30,
                     hint="In what is shown, the last two arguments say whether the tokenizer "
                          "adds BOS and EOS when it is asked to. Who asks, and when?")


@check("museum.prompt_ids", points=0.5, public=False)
def other_models(prompt_ids, rng):
    """Templates without BOS, tokenizers without BOS or with EOS behind the text."""
    for tokenizer in (model_tokenizer(False), model_tokenizer(True),
                      model_tokenizer(True, True)):
        for template in (CHAT_TEMPLATE, CHAT_TEMPLATE.removeprefix("{{ bos_token }}"),
                         "<bos>" + CHAT_TEMPLATE[15:]):
            expect_prompt(prompt_ids, conversation(rng), tokenizer, "a conversation", "",
                          template)
        expect_prompt(prompt_ids, {"prompt": message(rng, 5) + "<eos>"}, tokenizer, "a text",
                      "")


PROMPT_STYLES = ("prompt_ids", ("two_steps", "keyword"))


example_of_prompt_ids_test = docstring_example("museum.prompt_ids_test", points=1)


@check("museum.prompt_ids_test", points=1, public=True)
def finds_bos_twice(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_finds(test, *PROMPT_STYLES, {"double-bos": "a conversation begins with BOS twice"})


@check("museum.prompt_ids_test", points=1.5, public=True)
def finds_the_hasty_repair(test, rng):
    """It fails on the repair that takes BOS from texts too,
    and on an answer that is not opened."""
    expect_finds(test, *PROMPT_STYLES, {
        "never-bos": "a text to continue has lost its BOS",
        "no-generation-prompt": "the assistant's answer is not opened"})


@check("museum.prompt_ids_test", points=0.5, public=False)
def finds_other_repairs_of_bos(test, rng):
    """It fails on other repairs of conversations and of texts."""
    expect_finds(test, *PROMPT_STYLES, {
        "bos-taken-from-chats": "a conversation has lost its BOS, too",
        "texts-as-messages": "a text to continue becomes a conversation"})


# --- chapter 4: heads before tokens, and a token that does not see itself

def expect_split(split_heads, rng, tokens: int, H: int, K: int, d: int, hint: str = "") -> None:
    qkv = rng.standard_normal((tokens, (H + 2 * K) * d)).astype(np.float32)
    with expect_unchanged(qkv):
        got = split_heads(qkv, H, K)
    expect_returned(got, "three arrays, q, k and v")
    expect(isinstance(got, tuple | list) and len(got) == 3, "three arrays, q, k and v",
           repr(got)[:60])
    for name, mine, right in zip("qkv", got, reference_split_heads(qkv, H, K)):
        expect_close(mine, right,
                     of=f"{name} of {tokens} tokens with {H} query and {K} key/value heads of "
                        f"size {d}",
                     axes=["token", "head", "element"], atol=0, rtol=0, hint=hint)


example_of_split_heads = docstring_example("museum.split_heads", points=0.5)


@check("museum.split_heads", points=0.5, public=True)
def heads_of_several_tokens(split_heads, rng):
    """Each token keeps its own numbers, and each head has its own of them."""
    expect_split(split_heads, rng, int(rng.integers(3, 6)), 4, 4, 6,
                 "A row of the input is a token. Which numbers of the output come from row 0?")


@check("museum.split_heads", points=1, public=True)
def grouped_heads(split_heads, rng):
    """With fewer key/value heads than query heads, and for one token as for several."""
    for tokens in (1, 4):
        expect_split(split_heads, rng, tokens, 6, 2, 5,
                     "A token's row: its query heads, its key heads, its value heads.")


@st.composite
def fused(draw) -> Call:
    """What a fused projection gives: any number of tokens and of heads, of any size."""
    kv_heads = draw(st.sampled_from([2, 1, 3]))
    heads = kv_heads * draw(st.sampled_from([2, 1, 3]))
    width = (heads + 2 * kv_heads) * draw(st.sampled_from([2, 1, 3, 128]))
    return Call((draw(numbers(draw(st.sampled_from([2, 1, 3, 0])), width)), heads, kv_heads))


@check("museum.split_heads", points=0.5, public=True)
def any_heads(split_heads, rng):
    """Heads of every number and size, of several tokens, of one, and of none."""
    expect_agreement(split_heads, reference_split_heads, fused(), rng, rtol=0,
                     hint="Which numbers of this row belong to the first query head?")


@check("museum.split_heads", points=0.5, public=False)
def heads_of_every_kind(split_heads, rng):
    """Heads of every number and size, and no tokens at all."""
    for tokens, H, K, d in ((5, 7, 1, 4), (2, 3, 3, 2), (7, 9, 3, 8), (0, 4, 2, 6)):
        expect_split(split_heads, rng, tokens, H, K, d)


HEAD_STYLES = ("split_heads", ("numpy_split", "loop"))


example_of_split_heads_test = docstring_example("museum.split_heads_test", points=0.5)


@check("museum.split_heads_test", points=1, public=True)
def finds_mixed_tokens(test, rng):
    """The test passes on right code in three styles, and fails on the exhibit
    and where keys are not what they should be."""
    expect_finds(test, *HEAD_STYLES, {
        "heads-before-tokens": "heads are made out of the numbers of several tokens",
        "k-and-v-exchanged": "keys and values are exchanged",
        "queries-as-keys": "keys are cut from the front of the row"})


@check("museum.split_heads_test", points=0.25, public=True)
def finds_other_ways_to_deal(test, rng):
    """It fails on heads that are dealt out like cards or group by group,
    and on heads that are all the first."""
    expect_finds(test, *HEAD_STYLES, {
        "dealt-like-cards": "neighbouring numbers go to neighbouring heads",
        "group-by-group": "each group's queries stand beside its key and its value",
        "first-head-for-all": "every query head is the first"})


@check("museum.split_heads_test", points=0.25, public=False)
def finds_other_cuts(test, rng):
    """It fails where other numbers of a row are taken."""
    expect_finds(test, *HEAD_STYLES, {
        "queries-in-reverse": "the query heads come in reverse",
        "values-as-keys": "the values are given twice, and the keys never"})


def expect_cached(update_cache, rng, steps: tuple[int, ...], K: int, d: int, capacity: int,
                  hint: str = "") -> None:
    """Run several steps; after each, what is seen and what the memory holds must be right."""
    memory = [rng.standard_normal((K, capacity, d)).astype(np.float32) for _ in range(2)]
    right = [array.copy() for array in memory]
    length = 0
    for count in steps:
        k, v = (rng.standard_normal((count, K, d)).astype(np.float32) for _ in range(2))
        with expect_unchanged(k, v):
            got = update_cache(memory[0], memory[1], length, k, v)
        step = f"of a step with {count} new token{'s' * (count > 1)} after {length}"
        expect_returned(got, "two arrays, keys and values")
        expect(isinstance(got, tuple | list) and len(got) == 2, "two arrays, keys and values",
               repr(got)[:60])
        for array, new in zip(right, (k, v)):
            array[:, length:length + count] = new.transpose(1, 0, 2)
        length += count
        for name, mine, array in zip(("keys", "values"), got, right):
            expect_close(mine, array[:, :length], of=f"the {name} that the queries {step} see",
                         axes=["head", "token", "element"], atol=0, rtol=0, hint=hint)
        for name, mine, array in zip(("keys", "values"), memory, right):
            expect_close(mine, array, of=f"the memory of the {name} after the end {step}",
                         axes=["head", "place", "element"], atol=0, rtol=0,
                         hint="New tokens go behind the `length` that are there, and nothing "
                              "else of it is touched.")


example_of_update_cache = docstring_example("museum.update_cache", points=0.5)


@check("museum.update_cache", points=0.5, public=True)
def a_token_sees_itself(update_cache, rng):
    """After a prompt, one token at a time:
    each of them is seen, and so is everything before it."""
    expect_cached(update_cache, rng, (int(rng.integers(2, 5)), 1, 1), 2, 3, 8,
                  "How many keys must the first token after a prompt of 3 see?")


@check("museum.update_cache", points=1, public=True)
def prompts_in_parts(update_cache, rng):
    """A prompt that comes in two parts is seen whole by the second."""
    expect_cached(update_cache, rng, (3, 4), 3, 4, 9,
                  "The second part is no prompt of its own: what came before it counts.")


@st.composite
def cached_steps(draw) -> Call:
    """A memory that is empty, begun or nearly full, and a step that just fits or has room."""
    heads, size = draw(st.sampled_from([2, 1, 3])), draw(st.sampled_from([1, 2, 5]))
    length, count, room = (draw(st.sampled_from(likely))
                           for likely in ([0, 1, 3], [1, 2, 3], [0, 1, 2]))
    memory = [Numbers((heads, length + count + room, size), draw(st.integers(0, 99)))
              for _ in range(2)]
    k, v = (draw(numbers(count, heads, size, values=("plain", "ties"))) for _ in range(2))
    return Call((*memory, length, k, v))


@check("museum.update_cache", points=0.5, public=True)
def any_memory(update_cache, rng):
    """Memories that are empty, begun and nearly full, and steps of every size."""
    expect_agreement(update_cache, reference_update_cache, cached_steps(), rng, rtol=0,
                     hint="`length` tokens are there. Where do the new ones go, and how many "
                          "does their first one see?")


@check("museum.update_cache", points=0.5, public=False)
def caches_of_every_kind(update_cache, rng):
    """Caches of every shape, filled to the last place, with steps of every size."""
    expect_cached(update_cache, rng, (1, 1, 2, 5), 1, 2, 9)
    expect_cached(update_cache, rng, (4, 1, 3, 1), 5, 6, 12)


CACHE_STYLES = ("update_cache", ("concatenate", "loop"))


example_of_update_cache_test = docstring_example("museum.update_cache_test", points=0.5)


@check("museum.update_cache_test", points=0.75, public=True)
def finds_the_missing_token(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_finds(test, *CACHE_STYLES,
                 {"returned-before-the-update": "a token after the prompt does not see itself"})


@check("museum.update_cache_test", points=0.5, public=True)
def finds_what_is_not_stored(test, rng):
    """It fails on a step that sees the right tokens and stores them nowhere,
    on one that sees all the memory, and on one that takes one token."""
    expect_finds(test, *CACHE_STYLES, {
        "written-to-a-copy": "the new tokens are written to a copy of the memory",
        "whole-memory-returned": "places that hold no token are seen, too",
        "one-token-a-step": "of several new tokens the first alone is stored"})


@check("museum.update_cache_test", points=0.25, public=False)
def finds_other_places(test, rng):
    """It fails where keys or values are stored elsewhere, or not all of them are seen."""
    expect_finds(test, *CACHE_STYLES, {
        "written-at-the-start": "new tokens are stored over the first ones",
        "values-not-stored": "values are stored nowhere",
        "new-tokens-only": "the queries see the new tokens alone",
        "values-take-the-keys": "keys are stored as values"})


# --- chapter 3: every attention weight left random

WRAPPED = ("module", "_orig_mod")


def random_model(rng) -> dict:
    """Parameters as a model has them after its initialisation."""
    shapes = {"embed_tokens.weight": (5, 4)}
    for layer in range(int(rng.integers(1, 3))):
        shapes |= {f"layers.{layer}.attn.q_proj.weight": (4, 4),
                   f"layers.{layer}.attn.k_proj.weight": (2, 4),
                   f"layers.{layer}.submodule.norm": (4,)}
    return {name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()}


def saved_state(rng, parameters: dict, wrap: Callable[[str], str], without: str = "") -> dict:
    """What a training run saved of such a model: others, in another order, names wrapped."""
    names = [name for name in parameters if name != without]
    rng.shuffle(names)
    return {wrap(name): rng.standard_normal(parameters[name].shape).astype(np.float32)
            for name in names}


def attention_wrapped(name: str) -> str:
    return name.replace(".attn.", ".attn._orig_mod.")


def expect_loaded(load_state, parameters: dict, checkpoint: dict, wrap: Callable[[str], str],
                  hint: str) -> None:
    with expect_unchanged(parameters, checkpoint):
        got = load_state(parameters, checkpoint)
    expect(isinstance(got, dict), "a dict of arrays by name", f"a {type(got).__name__}")
    expect_equal(list(got), list(parameters), of="the names of what was loaded",
                 hint="The model's names, in the model's order.")
    for name in parameters:
        expect_close(got[name], checkpoint[wrap(name)], atol=0, rtol=0, hint=hint,
                     of=f"the parameter {name}, which the checkpoint calls {wrap(name)}")


def expect_misfit(load_state, parameters: dict, checkpoint: dict, name: str, when: str,
                  hint: str) -> None:
    with expect_error(ModelError, when=when, hint=hint):
        try:
            load_state(parameters, checkpoint)
        except ModelError as error:
            expect(name in str(error), f"the error to name {name} when {when}",
                   f"{str(error).splitlines()[0]!r}",
                   "Somebody has to find it among a thousand tensors.")
            raise


example_of_load_state = docstring_example("museum.load_state", points=0.5)


@check("museum.load_state", points=0.5, public=True)
def wrapped_anywhere(load_state, rng):
    """Parts that tools have put into a name are taken out, wherever they stand."""
    for wrap in (attention_wrapped, lambda name: "module." + attention_wrapped(name),
                 lambda name: "_orig_mod.module." + name):
        parameters = random_model(rng)
        expect_loaded(load_state, parameters, saved_state(rng, parameters, wrap), wrap,
                      "Is this number one that the model was initialised with? Look at the "
                      "name before it is compared.")


@check("museum.load_state", points=1, public=True)
def nothing_stays_random(load_state, rng):
    """A parameter that the checkpoint lacks is an error that names it."""
    parameters = random_model(rng)
    name = str(rng.choice(list(parameters)))
    for wrap in (str, lambda name: "module." + name):
        expect_misfit(load_state, parameters, saved_state(rng, parameters, wrap, without=name),
                      name, f"the checkpoint lacks {name}",
                      "What does this model compute with in its place?")


@check("museum.load_state", points=1, public=True)
def strangers_and_shapes(load_state, rng):
    """A tensor that the model does not have, or has in another shape,
    is an error that names it."""
    parameters = random_model(rng)
    state = saved_state(rng, parameters, attention_wrapped)
    expect_misfit(load_state, parameters,
                  state | {"layers.0.attn._orig_mod.rotary": np.ones(2, np.float32)},
                  "layers.0.attn.rotary",
                  "the checkpoint holds layers.0.attn.rotary and the model has none",
                  "A name that nobody asked for is often the name of what somebody misses.")
    for shape in ((4, 2), (8,), (2, 3)):
        turned = {"layers.0.attn._orig_mod.k_proj.weight": np.ones(shape, np.float32)}
        expect_misfit(load_state, parameters, state | turned, "layers.0.attn.k_proj.weight",
                      f"layers.0.attn.k_proj.weight is {shape} and not (2, 4)",
                      "Two arrays of equal size can be of different shapes.")


@st.composite
def states(draw) -> Call:
    """A model, and a checkpoint that fits, with wrapped names, or does not fit in one thing."""
    name = st.sampled_from(["embed", "layers.0.attn.q", "layers.0.submodule.norm",
                            "module_list.w", "a"])
    names = draw(st.lists(name, min_size=1, max_size=3, unique=True))
    shapes = {name: draw(st.sampled_from([(2,), (2, 3), (1,), ()])) for name in names}
    checkpoint = {}
    for name in draw(st.permutations(names)):
        parts = name.split(".")
        for wrapper in draw(st.lists(st.sampled_from(WRAPPED), max_size=3)):
            parts.insert(draw(st.integers(0, len(parts) - 1)), wrapper)
        checkpoint[".".join(parts)] = Numbers(shapes[name], draw(st.integers(1, 99)))
    first = [*checkpoint][0]
    match draw(st.sampled_from(["fits", "fits", "less", "more", "turned", "other"])):
        case "less":
            checkpoint.pop(first)
        case "more":
            checkpoint[draw(st.sampled_from(["module.stranger", "stranger"]))] = Numbers((2,))
        case "turned":
            checkpoint[first] = Numbers((3, 2), 1)
        case "other":
            checkpoint[f"{first}_"] = checkpoint.pop(first)
    return Call(({name: Numbers(shape, 100) for name, shape in shapes.items()}, checkpoint))


def state_of(load_state, call: Call) -> Seen:
    args, _ = call.made()
    got = attempted(load_state, args=args)
    order = [("the order of the names of", [*got])] if isinstance(got, dict) else []
    return [("", got), *order, ("the two arguments after", args)]


@check("museum.load_state", points=0.5, public=True)
def any_state(load_state, rng):
    """Checkpoints that fit, wrapped anywhere, and others that do not fit in one thing."""
    expect_agreement(load_state, reference_load_state, states(), rng, run=state_of, rtol=0,
                     examples=150,
                     hint="Take the wrappers out of every name, by hand. Which names are on "
                          "one side only, and are the shapes the same?")


@check("museum.load_state", points=0.5, public=False)
def any_wrapping(load_state, rng):
    """Names wrapped at random places, one of them lacking at last."""
    for _ in range(4):
        parameters = random_model(rng)
        wrapped = {}
        for name in parameters:
            parts = name.split(".")
            for _ in range(int(rng.integers(0, 4))):
                parts.insert(int(rng.integers(0, len(parts))), str(rng.choice(WRAPPED)))
            wrapped[name] = ".".join(parts)
        state = saved_state(rng, parameters, wrapped.__getitem__)
        expect_loaded(load_state, parameters, state, wrapped.__getitem__, "")
        gone = str(rng.choice(list(parameters)))
        state.pop(wrapped[gone])
        expect_misfit(load_state, parameters, state, gone, "a parameter is missing", "")


STATE_STYLES = ("load_state", ("loop", "sets"))


example_of_load_state_test = docstring_example("museum.load_state_test", points=1)


@check("museum.load_state_test", points=1, public=True)
def finds_random_weights(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_finds(test, *STATE_STYLES, {
        "prefix-not-stripped": "wrapped names are skipped, and their parameters stay random"})


@check("museum.load_state_test", points=1, public=True)
def finds_silence(test, rng):
    """It fails on code that strips names well, and is silent about what is missing,
    or about what is there besides."""
    expect_finds(test, *STATE_STYLES, {
        "missing-stays-random": "a parameter that the checkpoint lacks keeps its random "
                                "numbers",
        "strangers-pass": "tensors that the model does not have are ignored"})


@check("museum.load_state_test", points=0.75, public=True)
def finds_each_fault(test, rng):
    """It finds the other faults, each of them alone."""
    expect_finds(test, *STATE_STYLES, {
        "first-wrapper-only": "only the first part of a name is looked at",
        "shapes-not-compared": "an array of another shape is taken"})


@check("museum.load_state_test", points=0.25, public=False)
def finds_wrong_numbers(test, rng):
    """It fails where every name and shape is right, and the numbers are not."""
    expect_finds(test, *STATE_STYLES, {
        "compared-and-not-copied": "all is compared, and every parameter stays random"})


# --- chapter 5: a stop string that the reader has seen already

def expect_pieces(stream_pieces, pieces: list[str], stop: str, hint: str) -> None:
    with expect_unchanged(pieces):
        got = stream_pieces(pieces, stop)
    of = f"what is shown of {pieces}, with the stop string {stop!r},"
    expect_returned(got, f"one string for each piece of {pieces} and one for the end")
    expect(isinstance(got, list | tuple) and len(got) == len(pieces) + 1,
           f"{len(pieces) + 1} strings, one for each piece of {pieces} and one for the end",
           f"{got!r:.80}",
           "One string for each piece, empty or not, and one at the end.")
    expect_equal(got, reference_stream_pieces(pieces, stop), of=of, hint=hint)


example_of_stream_pieces = docstring_example("museum.stream_pieces", points=0.5)


@check("museum.stream_pieces", points=1, public=True)
def cut_anywhere(stream_pieces, rng):
    """Wherever the pieces end, nothing of the stop string is shown,
    and everything before it is."""
    text = message(rng, 3) + "END" + message(rng, 3)
    for first in range(3, 7):
        expect_pieces(stream_pieces, [text[:first], text[first:first + 1], text[first + 1:]],
                      "END",
                      "Put the pieces before and behind a border together. What had the reader "
                      "seen by then?")


@check("museum.stream_pieces", points=1, public=True)
def nothing_is_lost(stream_pieces, rng):
    """What only looked like the stop string is shown, at the end of the text, too."""
    word = message(rng, 3)
    for pieces in ([word + "E", "N" + word], [word, "E", "N"], ["EN" + word, "EEN", "EN"]):
        expect_pieces(stream_pieces, pieces, "END",
                      "The text is over, and no stop string has come of what waits. Whose is "
                      "it?")


@check("museum.stream_pieces", points=1, public=True)
def any_pieces(stream_pieces, rng):
    """Texts of few letters, in pieces of any size, and stop strings that repeat themselves."""
    letters = st.text("ab", max_size=4)
    expect_agreement(stream_pieces, reference_stream_pieces,
                     calls(st.lists(letters, max_size=5),
                           st.text("ab", min_size=1, max_size=4)),
                     rng, examples=200,
                     hint="How long is the longest end of the text so far that may still "
                          "become the stop string?")


@check("museum.stream_pieces", points=0.5, public=False)
def texts_in_any_pieces(stream_pieces, rng):
    """Random texts and stop strings of two letters, in random pieces."""
    def letters(count: int) -> str:
        return "".join("ab"[i] for i in rng.integers(0, 2, count))

    for number in range(40):
        stop = letters(int(rng.integers(1, 5))) if number else "ab"
        text, pieces = letters(14), [] if number else ["a", "b"]
        while text:
            size = int(rng.integers(0, 5))
            pieces.append(text[:size])
            text = text[size:]
        expect_pieces(stream_pieces, pieces, stop, "")


STREAM_STYLES = ("stream_pieces", ("whole_text", "letters"))


example_of_stream_pieces_test = docstring_example("museum.stream_pieces_test", points=1)


@check("museum.stream_pieces_test", points=1, public=True)
def finds_what_was_shown_too_early(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_finds(test, *STREAM_STYLES, {"shown-as-it-comes": "each piece is shown as it comes"})


@check("museum.stream_pieces_test", points=1, public=True)
def finds_the_lost_end(test, rng):
    """It fails on the usual repair, which holds back and never gives back."""
    expect_finds(test, *STREAM_STYLES, {
        "tail-lost": "what waits at the end of the text is lost"})


@check("museum.stream_pieces_test", points=0.75, public=True)
def finds_other_repairs(test, rng):
    """It fails on a reader who waits for everything, on a stop string that is shown,
    and on one that is overlooked."""
    expect_finds(test, *STREAM_STYLES, {
        "all-held-back": "nothing is shown before the end",
        "stop-shown": "the stop string is shown",
        "false-alarm-forgotten": "a false alarm hides the stop string behind it",
        "goes-on-after-the-stop": "what comes after the stop string is shown"})


@check("museum.stream_pieces_test", points=0.25, public=False)
def finds_other_waits(test, rng):
    """It fails on repairs that hold back too much or too little."""
    expect_finds(test, *STREAM_STYLES, {
        "shortest-end-held": "the shortest end that may become the stop string is held back",
        "always-as-long-as-the-stop": "as much as the stop string is long is always held back"})


# --- chapter 6: a prompt that the cache holds entirely

def expect_prefix_hit(prefix_hit, ids: list[int], cached: set, size: int,
                      hint: str = "") -> None:
    with expect_unchanged(ids, cached):
        got = prefix_hit(ids, cached, size)
    expect_equal(got, reference_prefix_hit(ids, cached, size),
                 of=f"the answer for a prompt of {len(ids)} tokens, {ids!r:.60}, with blocks "
                    f"of {size} and in the cache {sorted(cached)!r:.60},", hint=hint)


def distinct(rng, count: int) -> list[int]:
    return (10 + rng.permutation(max(count, 30))[:count]).tolist()


example_of_prefix_hit = docstring_example("museum.prefix_hit", points=0.5)


@check("museum.prefix_hit", points=0.5, public=True)
def something_to_compute(prefix_hit, rng):
    """A prompt that the cache holds to its last token leaves its last block to the model;
    no other prompt loses a block that it could use."""
    size = int(rng.integers(2, 5))
    ids = distinct(rng, 4 * size)
    cached = {tuple(ids[:end]) for end in (size, 2 * size, 3 * size)}
    for length in (3 * size, 2 * size, size, 1, 3 * size + 1, 4 * size, 2 * size + 1,
                   3 * size - 1):
        expect_prefix_hit(prefix_hit, ids[:length], cached, size,
                       "Logits come from a row that is computed. How many rows are there if "
                       "every block is found? A block is used whole or not at all.")
    expect_prefix_hit(prefix_hit, ids, cached - {tuple(ids[:size])}, size,
                   "What is the second block worth when the first is gone?")
    for prompt, others in ((ids[2 * size:], ids[2 * size:3 * size]), (ids[size:], ids[:size]),
                           (ids[:size] + ids[2 * size:], ids[2 * size:3 * size])):
        expect_prefix_hit(prefix_hit, prompt, {tuple(ids[:size]), tuple(ids[:2 * size]),
                                         tuple(others)}, size,
                       "The same tokens behind another text have other keys and values.")


@st.composite
def hits(draw) -> Call:
    """A prompt of few different ids, and a cache of texts like it, some of them given up."""
    size = draw(st.sampled_from([2, 1, 3]))
    texts = draw(st.lists(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=8), min_size=1,
                          max_size=3))
    ends = [tuple(text[:end]) for text in texts for end in range(size, len(text) + 1, size)]
    cached = draw(st.sets(st.sampled_from(ends), max_size=6)) if ends else set()
    cached |= set(ends[:draw(st.integers(0, 4))])
    return Call((draw(st.sampled_from(texts)), cached, size))


@check("museum.prefix_hit", points=0.5, public=True)
def any_prefix(prefix_hit, rng):
    """Prompts of every length, and caches that hold their beginnings, or parts of them."""
    expect_agreement(prefix_hit, reference_prefix_hit, hits(), rng, examples=200,
                     hint="Go block by block from the beginning. Where is the first that the "
                          "cache does not hold, and what is left for the model?")


@check("museum.prefix_hit", points=0.5, public=False)
def prompts_of_every_kind(prefix_hit, rng):
    """Texts that repeat themselves, blocks of one token, beginnings that were given up,
    and prompts that end where a block ends."""
    for _ in range(60):
        size = int(rng.integers(1, 4))
        texts = [rng.integers(0, 2, int(rng.integers(1, 12))).tolist() for _ in range(4)]
        cached = {tuple(text[:end]) for text in texts[1:]
                  for end in range(size, len(text) + 1, size) if rng.random() < 0.9}
        expect_prefix_hit(prefix_hit, texts[int(rng.integers(2))], cached, size)
    ids = distinct(rng, 6)
    expect_prefix_hit(prefix_hit, ids, {tuple(ids[:2]), tuple(ids[:4]), tuple(ids)}, 2)


PREFIX_STYLES = ("prefix_hit", ("from_the_end", "block_by_block"))


example_of_prefix_hit_test = docstring_example("museum.prefix_hit_test", points=0.5)


@check("museum.prefix_hit_test", points=0.75, public=True)
def finds_the_full_hit(test, rng):
    """The test passes on right code in three styles, and fails on the exhibit
    and on the hasty repairs."""
    expect_finds(test, *PREFIX_STYLES, {
        "full-hit-leaves-no-query": "a prompt that is cached entirely leaves nothing to do",
        "one-token-less": "the last token of a cached block is computed, and so the block is "
                          "written into"})


@check("museum.prefix_hit_test", points=0.5, public=True)
def finds_what_it_costs(test, rng):
    """It fails on repairs that give up more than they must,
    and on blocks that belong to other texts."""
    expect_finds(test, *PREFIX_STYLES, {
        "cache-thrown-away": "a prompt that is cached entirely is computed entirely",
        "last-block-never-used": "the last block is computed again though tokens follow it",
        "block-by-itself": "a block is used behind another text"})


@check("museum.prefix_hit_test", points=0.25, public=False)
def finds_other_miscounts(test, rng):
    """It fails on other blocks and other places."""
    expect_finds(test, *PREFIX_STYLES, {
        "first-block-only": "one block is used at most",
        "positions-start-again": "the rest of the prompt has positions from 0",
        "last-token-twice": "the last token is computed at another place, too"})


# --- chapter 6: a gateway that drops the tools

MODELS = {"small": "smollm2-135m", "large": "llama-70b"}


def expect_upstream(upstream_request, request: dict, hint: str = "") -> None:
    models = dict(MODELS)
    with expect_unchanged(request, models):
        got = upstream_request(request, models)
    right = reference_upstream_request(request, MODELS)
    expect_returned(got, "the request for the server, a dict")
    expect(isinstance(got, dict), "the request for the server, a dict", repr(got)[:60])
    for name in right:
        expect(name in got, f"{name!r} to be sent on", f"only {sorted(got)}", hint)
        expect_equal(got[name], right[name], of=f"{name!r} of the request that is sent on",
                     hint=hint)
        expect(json.dumps(got[name]) == json.dumps(right[name]),
               f"the keys inside of {name!r} in their order", "another order",
               "A chat template writes a schema as it comes.")
    strangers = [name for name in got if name not in right]
    expect(not strangers, "no other parameters than the client's, without null",
           f"{strangers[:1]}", hint)


def tool_request(rng) -> dict:
    """A request in the middle of a conversation with tools."""
    name, city = message(rng, 5), message(rng, 4)
    schema = {"type": "object", "required": ["city"], "additionalProperties": False,
              "properties": {"city": {"type": "string", "description": ""},
                             "unit": {"enum": ["C", "F", None], "default": None}}}
    call = {"id": f"call_{int(rng.integers(1000))}", "type": "function",
            "function": {"name": name, "arguments": f'{{"city":  "{city}", "unit": null}}'}}
    return {"model": "small",
            "messages": [{"role": "system", "content": [{"type": "text", "text": city}]},
                         {"role": "user", "content": city, "name": "ann"},
                         {"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": ""}],
            "tools": [{"type": "function", "function": {
                "name": name, "strict": True, "parameters": schema, "description": None}}],
            "tool_choice": {"type": "function", "function": {"name": name}},
            "parallel_tool_calls": False}


example_of_upstream_request = docstring_example("museum.upstream_request", points=0.5)


@check("museum.upstream_request", points=0.5, public=True)
def the_tools_go_on(upstream_request, rng):
    """Tools, calls and results go on as they came, zeros and false too;
    nulls and the gateway's own stay."""
    request = tool_request(rng)
    hint = "Compare the request that came in with the one that goes out, part by part."
    expect_upstream(upstream_request, request, hint)
    expect_upstream(upstream_request,
                    request | {"temperature": 0, "stream": False, "stop": None, "tools": [],
                               "tool_choice": "none", "gateway": {"team": 3},
                               "x_new": {"a": None}, "user": ""},
                    "Zero, false and an empty text are values; null is none. And what this "
                    "gateway has never heard of, the server may know.")
    with expect_error(ModelError, when="the model is 'medium', and there are small and large"):
        upstream_request(request | {"model": "medium"}, MODELS)


@st.composite
def chat_requests(draw) -> Call:
    """Requests with any parameters, known and unknown, of any value, nulls at every depth."""
    value = st.sampled_from([*ODD[:9], 0, [None, {}], {"a": None, "b": [0, None]}, "x"])
    names = ["temperature", "tools", "tool_choice", "stop", "gateway", "x_new", "stream"]
    request = {"model": draw(st.sampled_from(["small", "large", "small", "medium", None])),
               "messages": [{"role": "user", "content": draw(value), "name": draw(value)}]}
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        request[name] = draw(value)
    if draw(st.sampled_from([False] * 7 + [True])):
        request.pop("model")
    return Call((request, MODELS))


@check("museum.upstream_request", points=0.5, public=True)
def any_request(upstream_request, rng):
    """Parameters of every name and value, null, false and empty ones among them."""
    expect_agreement(upstream_request, reference_upstream_request, chat_requests(), rng,
                     examples=150,
                     hint="Three things change, and nothing else. Is this one of them?")


@check("museum.upstream_request", points=0.5, public=False)
def requests_of_every_kind(upstream_request, rng):
    """Random parameters with nulls at every depth, several calls in a message,
    and a request without tools."""
    request = tool_request(rng)
    call = request["messages"][2]["tool_calls"][0]
    more = {"messages": [*request["messages"][:2],
                         {"role": "assistant", "content": "", "refusal": None,
                          "tool_calls": [call, call | {"id": "second"}]},
                         *request["messages"][3:]], "model": "large"}
    expect_upstream(upstream_request, request | more)
    values = [0, 1, None, False, True, "", "x", [], [None], {}, {"a": None, "b": [0, None]}]
    for _ in range(20):
        extra = {name: values[int(rng.integers(len(values)))]
                 for name in ("temperature", "tools", "tool_choice", "stop", "n", "gateway",
                              "parallel_tool_calls", "response_format", message(rng, 4))}
        expect_upstream(upstream_request, {"model": "small", "messages": []} | extra)
    for missing in ({}, {"model": None}):
        with expect_error(ModelError, when="no model is named"):
            upstream_request({"messages": []} | missing, MODELS)


UPSTREAM_STYLES = ("upstream_request", ("copy_and_remove", "loop"))


example_of_upstream_request_test = docstring_example("museum.upstream_request_test", points=0.5)


@check("museum.upstream_request_test", points=0.75, public=True)
def finds_what_is_dropped(test, rng):
    """The test passes on right code in three styles, and fails on the exhibit
    and on each part of it alone."""
    expect_finds(test, *UPSTREAM_STYLES, {
        "drops-the-tools": "tools, calls and their results are dropped",
        "results-without-their-call": "messages lose all but their role and content",
        "list-of-known-names": "parameters that the gateway does not know are dropped"})


@check("museum.upstream_request_test", points=0.5, public=True)
def finds_what_is_changed(test, rng):
    """It fails on a gateway that tidies up: nulls inside of schemas, false, empty content."""
    expect_finds(test, *UPSTREAM_STYLES, {
        "nulls-at-every-depth": "nulls are removed from schemas and messages, too",
        "false-is-nothing": "parameters that are false or 0 are dropped",
        "empty-content": "a content of null becomes an empty text"})


@check("museum.upstream_request_test", points=0.25, public=False)
def finds_what_is_added(test, rng):
    """It fails on what is sent on and should not be, and on what the gateway decides."""
    expect_finds(test, *UPSTREAM_STYLES, {
        "gateways-own-sent-on": "what is the gateway's own is sent on",
        "nulls-sent-on": "parameters that are null are sent on",
        "tool-choice-auto": "the gateway chooses how tools are chosen"})


# --- chapter 7: nibbles in another order, and zero points off by one

def expect_matvec(packed_matvec, rng, out: int, groups: int, size: int, x: np.ndarray | None,
                  hint: str = "") -> None:
    """One product; x: by default random."""
    packed = rng.integers(0, 256, (out, groups * size // 2)).astype(np.uint8)
    scales = np.exp(rng.uniform(-2, 2, (out, groups))).astype(np.float32)
    zeros = rng.integers(0, 16, (out, groups)).astype(np.uint8)
    x = rng.standard_normal(groups * size).astype(np.float32) if x is None else x
    with expect_unchanged(packed, scales, zeros, x):
        got = packed_matvec(packed, scales, zeros, x)
    right = reference_packed_matvec(packed, scales, zeros, x)
    largest = 16 * float(scales.max()) * float(np.abs(x).sum())         # that a sum can become
    expect_close(got, right, atol=1e-6 * largest, axes=["row"],
                 of=f"the product of a ({out}, {groups * size}) matrix in groups of {size}",
                 hint=hint)


example_of_packed_matvec = docstring_example("museum.packed_matvec", points=0.25)


@check("museum.packed_matvec", points=0.25, public=True)
def every_column_in_its_place(packed_matvec, rng):
    """Each number of the vector meets the column that it belongs to,
    and each code its group's scale and zero point."""
    for column in rng.permutation(12):
        x = np.zeros(12, np.float32)
        x[column] = 1
        expect_matvec(packed_matvec, rng, 3, 3, 4, x,
                      f"All numbers of the vector but number {column} are zero. Which half of "
                      "which byte is its code? Do code and zero point fit into a byte, too, "
                      "when one is subtracted from the other?")
    expect_matvec(packed_matvec, rng, 5, 2, 8, None)


@st.composite
def packed(draw) -> Call:
    """A matrix in four bits, of few groups or many, and a vector of few numbers that are not
    zero."""
    out, groups, size = (draw(st.sampled_from(likely))
                         for likely in ([1, 2, 3], [1, 2, 3], [2, 4, 8]))
    code = st.sampled_from([0x52, 0x0F, 0xF0, 0x9A, 0xFF, 0x00])
    codes = [[draw(code) for _ in range(groups * size // 2)] for _ in range(out)]
    zeros = [[draw(st.sampled_from([2, 0, 8, 15])) for _ in range(groups)] for _ in range(out)]
    scales = draw(numbers(out, groups, values=("plain", "tiny", "large")))
    return Call((np.array(codes, np.uint8), scales, np.array(zeros, np.uint8),
                 draw(numbers(groups * size, values=("plain", "ties", "tiny", "large")))))


def largest_sum(call: Call) -> float:
    (_, scales, _, x), _ = call.made()
    return 16e-6 * float(np.abs(scales).max() * np.abs(x).sum()) + 1e-9


@check("museum.packed_matvec", points=0.25, public=True)
def any_matrix(packed_matvec, rng):
    """Matrices of one group and of several, with codes at both ends of their range."""
    expect_agreement(packed_matvec, reference_packed_matvec, packed(), rng, atol=largest_sum,
                     hint="Which code meets the first number of the vector, and which scale "
                          "and zero point are its own?")


@check("museum.packed_matvec", points=0.25, public=False)
def matrices_in_bytes(packed_matvec, rng):
    """One row, one group, groups of two, and many of each."""
    for out, groups, size in ((1, 1, 2), (7, 1, 16), (2, 9, 2), (16, 4, 32)):
        expect_matvec(packed_matvec, rng, out, groups, size, None)


MATVEC_STYLES = ("packed_matvec", ("loop", "two_products"))


example_of_packed_matvec_test = docstring_example("museum.packed_matvec_test", points=0.25)


@check("museum.packed_matvec_test", points=0.25, public=True)
def finds_swapped_nibbles(test, rng):
    """The test passes on right code in three styles, and fails on the exhibit
    and on other orders of the codes."""
    expect_finds(test, *MATVEC_STYLES, {
        "nibbles-swapped": "the two codes of every byte have changed places",
        "halves-not-neighbours": "the low bits are taken for the first half of a row"})


@check("museum.packed_matvec_test", points=0.25, public=True)
def finds_other_scales(test, rng):
    """It fails on codes with the scale of another group, and on zero points that are not
    subtracted as they should be."""
    expect_finds(test, *MATVEC_STYLES, {
        "dealt-scales": "scales are dealt out column by column",
        "around-eight": "every zero point is taken for 8",
        "wraps-below-zero": "code less zero point wraps around below 0",
        "scales-of-the-first-row": "every row takes the scales and zero points of the first"})


@check("museum.packed_matvec_test", points=0.25, public=False)
def finds_other_codes(test, rng):
    """It fails on other codes, and on zero points that are no codes."""
    expect_finds(test, *MATVEC_STYLES, {
        "high-bits-of-the-low": "the high bits are sixteen times too large",
        "low-bits-not-masked": "the whole byte is taken for its low bits",
        "zero-times-nothing": "the zero point is subtracted after the scale"})


def expect_zero_points(zero_points, qzeros: np.ndarray, version: int, hint: str = "") -> None:
    with expect_unchanged(qzeros):
        got = zero_points(qzeros, version)
    expect_equal(np.asarray(got), reference_zero_points(qzeros, version).tolist(), hint=hint,
                 of=f"the zero points in 0x{int(qzeros.flat[0]) & 0xFFFFFFFF:08X} and others, "
                    f"version {version},")


example_of_zero_points = docstring_example("museum.zero_points", points=0.25)


@check("museum.zero_points", points=0.25, public=True)
def both_versions(zero_points, rng):
    """Each version as it stores them, and all that four bits can say."""
    codes = np.array([rng.permutation(16) for _ in range(3)])
    words = (codes.reshape(3, 2, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32))
    qzeros = np.bitwise_or.reduce(words, axis=-1).view(np.int32)
    for version in (1, 2):
        expect_zero_points(zero_points, qzeros, version,
                           "What was done to the zero points when they were stored, and in "
                           "which version? Undo it, for each of the sixteen codes.")


@check("museum.zero_points", points=0.25, public=True)
def any_integers(zero_points, rng):
    """Integers of every pattern of bits, in both versions."""
    word = st.sampled_from([0x76543210, 0, -1, -2**31, 2**31 - 1, 0x0F0F0F0F, -0x01234568])
    qzeros = st.integers(1, 3).flatmap(
        lambda width: st.lists(st.lists(word, min_size=width, max_size=width), min_size=1,
                               max_size=2)).map(lambda rows: np.array(rows, np.int32))
    expect_agreement(zero_points, reference_zero_points, calls(qzeros, st.sampled_from([1, 2])),
                     rng, hint="Write the first integer in hexadecimal digits, the last one "
                               "first.")


@check("museum.zero_points", points=0.25, public=False)
def zero_points_of_every_kind(zero_points, rng):
    """Any integers, one of them or many, zeros and fifteens."""
    for shape in ((1, 1), (5, 3), (2, 16)):
        for version in (1, 2):
            bits = rng.integers(-2**31, 2**31, shape).astype(np.int32)
            bits.flat[0] = -1
            expect_zero_points(zero_points, bits, version)
            expect_zero_points(zero_points, np.zeros(shape, np.int32), version)


ZERO_STYLES = ("zero_points", ("loop", "bytes"))


example_of_zero_points_test = docstring_example("museum.zero_points_test", points=0.25)


@check("museum.zero_points_test", points=0.25, public=True)
def finds_off_by_one(test, rng):
    """The test passes on right code in three styles, and fails on the exhibit
    and on the hasty repair."""
    expect_finds(test, *ZERO_STYLES, {
        "off-by-one": "version 1 is read as if it were version 2",
        "always-one-more": "version 2 is read as if it were version 1"})


@check("museum.zero_points_test", points=0.25, public=True)
def finds_the_ends(test, rng):
    """It fails where a zero point leaves its four bits, where these have a sign,
    and where the eight are in another order."""
    expect_finds(test, *ZERO_STYLES, {
        "sixteen": "15 and one more is 16",
        "stops-at-fifteen": "15 and one more stays 15",
        "codes-with-a-sign": "zero points from 8 on are negative, and wrap around",
        "highest-first": "the first zero point is taken from the highest bits",
        "awq-order": "the eight are in AWQ's order"})


@check("museum.zero_points_test", points=0.25, public=False)
def finds_other_integers(test, rng):
    """It fails on other sums."""
    expect_finds(test, *ZERO_STYLES, {
        "one-less": "one is subtracted once more",
        "one-added-to-the-whole": "one is added to the integer that holds eight"})

"""Checks of the bug museum: the repaired exhibits, and the tests that the learner writes for them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autograder.checking import CheckFailure, check, expect, expect_equal, expect_error, expect_unchanged
from autograder.limits import TimeLimit
from autograder.mutation import reference_subjects
from gearworks.errors import ModelError
from gearworks.museum import conversation_ids as reference
from gearworks.museum import prompt_ids as reference_prompt_ids
from gearworks.tokenizer import Tokenizer, train_bpe
from gearworks.vocabulary import AddedToken

ALPHABET = "abcdefghijklmnopqrstuvwxyz .?"
_ACCEPTED = Path(__file__).parents[1] / "accept" / "museum"


def message(rng, length: int) -> str:
    """A random text, of no character that comes first in the alphabet only."""
    return "".join(ALPHABET[i] for i in rng.integers(0, len(ALPHABET), length))


@check("museum.conversation_ids", points=2, public=True)
def ids_of_their_own(conversation_ids, rng):
    """The conversation begins with BOS, special ids belong to no character, and nobody says EOS for the model."""
    text = "cab" + message(rng, 4)
    expect_equal(conversation_ids([], text, ALPHABET)["input_ids"], reference([], text, ALPHABET)["input_ids"],
                 of=f"the ids of {text!r} in the alphabet {ALPHABET!r}",
                 hint="Which id does the first character of the alphabet have? What is the last id of the list?")


@check("museum.conversation_ids", points=2, public=True)
def places(conversation_ids, rng):
    """Positions count on through the whole conversation."""
    past = reference([], message(rng, 5), ALPHABET)["input_ids"]
    text = message(rng, 4)
    expect_equal(conversation_ids(past, text, ALPHABET), reference(past, text, ALPHABET),
                 of=f"the answer to {text!r} after a conversation of {len(past)} ids",
                 hint="The model tells two words apart by what they are and by where they stand.")


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


@check("museum.conversation_ids", points=3, public=False)
def whole_conversations(conversation_ids, rng):
    """Conversations of several messages, with what belongs to the caller left as it is."""
    for _ in range(4):
        past: list[int] = []
        for _ in range(3):
            text = message(rng, int(rng.integers(0, 9)))
            with expect_unchanged(past):
                got = conversation_ids(past, text, ALPHABET)
            past = reference(past, text, ALPHABET)["input_ids"]
            expect_equal(got, {"input_ids": past, "positions": list(range(len(past)))}, of="the answer")


def damaged(mutant: str, name: str = "conversation_ids") -> Callable:
    """An exhibit as one of its mutants has it."""
    from autograder.mutation import mutated_source

    names: dict = {"__name__": "exhibit"}
    exec(compile(mutated_source("museum", mutant), f"<exhibit {mutant}>", "exec"), names)
    return names[name]


def accepted(style: str, name: str = "conversation_ids") -> Callable:
    """An exhibit, repaired, as one of its accepted versions has it."""
    names: dict = {"__name__": style}
    path = _ACCEPTED / f"{name}__{style}.py"
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), names)
    return names[name]


def expect_right_code_passes(test: Callable, exhibit: str = "conversation_ids",
                             styles: tuple = ("find", "table")) -> None:
    for version, name in ((reference_subjects(f"museum.{exhibit}")[0], "the repaired function"),
                          (accepted(styles[0], exhibit), "the same function written otherwise"),
                          (accepted(styles[1], exhibit), "the same function in a third style")):
        try:
            test(version)
        except AssertionError as error:
            raise CheckFailure(f"the test to pass on right code: {name}", f"AssertionError {error}".strip(),
                               f"The docstring of `{exhibit}` says what is right; a test asks for no more.") from error


def expect_caught(test: Callable, mutant: str, fault: str, exhibit: str = "conversation_ids") -> None:
    function = damaged(mutant, exhibit)
    try:
        test(function)
    except (KeyboardInterrupt, TimeLimit, NotImplementedError):
        raise
    except BaseException:                                   # pytest's own failures are no `Exception`
        return
    expect(False, f"the test to fail on code in which {fault}", "that it passes",
           "Write down what the right answer is, for a message where the fault would show.")


@check("museum.conversation_ids_test", points=2, public=True)
def finds_the_exhibit(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_right_code_passes(test)
    expect_caught(test, "tutorial-engine", "all five faults are as you found them")


@check("museum.conversation_ids_test", points=2, public=True)
def finds_what_hides(test, rng):
    """It finds the faults that never show in a friendly conversation: the reset, and the dropped text."""
    expect_right_code_passes(test)
    expect_caught(test, "reset-crashes", "/reset uses a name that is not defined")
    expect_caught(test, "unknown-text-dropped", "an unknown character vanishes")


@check("museum.conversation_ids_test", points=2, public=False)
def finds_each_alone(test, rng):
    """It finds every one of the other faults when it is alone."""
    expect_right_code_passes(test)
    for mutant, fault in (("no-positions", "all positions are 0"), ("eos-after-the-prompt", "EOS follows the message"),
                          ("ids-used-twice", "characters and special tokens share ids")):
        expect_caught(test, mutant, fault)


# --- chapter 2: BOS twice

CHAT_TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
                 "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def model_tokenizer(prefix: bool, suffix: bool = False) -> Tokenizer:
    """A tokenizer of bytes with BOS and EOS; prefix, suffix: whether it puts them around a text."""
    added = tuple(AddedToken(content, 256 + number, special=True)
                  for number, content in enumerate(("<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>")))
    return Tokenizer(replace(train_bpe([], 256), added_tokens=added, prefix=(256,) * prefix, suffix=(257,) * suffix))


def conversation(rng) -> dict:
    return {"messages": [{"role": "system", "content": message(rng, 3)}, {"role": "user", "content": message(rng, 5)}]}


def expect_prompt(prompt_ids, request: dict, tokenizer: Tokenizer, of: str, hint: str,
                  template: str = CHAT_TEMPLATE) -> None:
    got = prompt_ids(request, template, "<bos>", tokenizer.encode)
    wanted = reference_prompt_ids(request, template, "<bos>", tokenizer.encode)
    expect(isinstance(got, list) and all(type(id) is int for id in got), "a list of ids", repr(got)[:60])
    expect_equal(tokenizer.decode(got), tokenizer.decode(wanted), of=f"the text of {of}, special tokens shown",
                 hint=hint)
    expect_equal(got, wanted, of=f"the ids of {of}", hint=hint)


@check("museum.prompt_ids", points=2, public=True)
def one_bos(prompt_ids, rng):
    """A conversation begins with one BOS, the template's own."""
    expect_prompt(prompt_ids, conversation(rng), model_tokenizer(prefix=True), "a conversation",
                  "Who writes BOS here: the template, the tokenizer, or both?")


@check("museum.prompt_ids", points=1, public=True)
def plain_text(prompt_ids, rng):
    """A text to continue still begins with BOS, if the model wants one, and a conversation has no second one."""
    # Both in one check: of a text the exhibit is right, and left as it was it must earn nothing.
    expect_prompt(prompt_ids, conversation(rng), model_tokenizer(prefix=True), "a conversation",
                  "Who writes BOS here: the template, the tokenizer, or both?")
    request = {"prompt": message(rng, 6)}
    for prefix in (True, False):
        expect_prompt(prompt_ids, request, model_tokenizer(prefix), "a text to continue, for a model that wants "
                      + ("BOS" if prefix else "no BOS"), "No template writes anything here, so the tokenizer must.")


@check("museum.prompt_ids", points=1, public=False)
def other_models(prompt_ids, rng):
    """Templates without BOS, tokenizers without BOS or with EOS behind the text."""
    for tokenizer in (model_tokenizer(False), model_tokenizer(True), model_tokenizer(True, True)):
        for template in (CHAT_TEMPLATE, CHAT_TEMPLATE.removeprefix("{{ bos_token }}"), "<bos>" + CHAT_TEMPLATE[15:]):
            expect_prompt(prompt_ids, conversation(rng), tokenizer, "a conversation", "", template)
        expect_prompt(prompt_ids, {"prompt": message(rng, 5) + "<eos>"}, tokenizer, "a text", "")


PROMPT_STYLES = ("prompt_ids", ("two_steps", "keyword"))


@check("museum.prompt_ids_test", points=2, public=True)
def finds_bos_twice(test, rng):
    """The test passes on right code in three styles and fails on the exhibit."""
    expect_right_code_passes(test, *PROMPT_STYLES)
    expect_caught(test, "double-bos", "a conversation begins with BOS twice", "prompt_ids")


@check("museum.prompt_ids_test", points=2, public=False)
def finds_the_hasty_repair(test, rng):
    """It fails on the repair that takes BOS from texts too, and on an answer that is not opened."""
    expect_right_code_passes(test, *PROMPT_STYLES)
    expect_caught(test, "never-bos", "a text to continue has lost its BOS", "prompt_ids")
    expect_caught(test, "no-generation-prompt", "the assistant's answer is not opened", "prompt_ids")

"""Checks of stop strings and of generation, on models whose every word is known."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Raised, Seen, attempted, expect_agreement
from autograder.generators.calls import typed
from autograder.generators.configurations import some
from autograder.generators.texts import SIGNS, texts
from gearworks.config import ModelConfig
from gearworks.decoding import Context
from gearworks.decoding import StopMatcher as stop_matcher
from gearworks.decoding import generate as reference
from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams
from gearworks.tokenizer import Tokenizer, train_bpe
from gearworks.vocabularies.vocabulary import AddedToken

# --- StopMatcher

STOP = "decoding.StopMatcher"


def true_pieces(stops: Sequence[str],
                pieces: Sequence[str]) -> tuple[list[str], str, str | None]:
    """What is shown after each piece, what is held back at the end, and the stop string found.

    From the definition, on the whole text so far: a stop string is complete, or the longest end
    of the text that begins one is held back.
    """
    shown, out, text, found = 0, [], "", None
    for piece in pieces:
        if found is None:
            text += piece
            complete = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops
                        if stop in text]
            if complete:
                found = min(complete)[2]
                safe = min(complete)[0] - len(found)
            else:
                beginnings = [length for stop in stops for length in range(1, len(stop))
                              if text.endswith(stop[:length])]
                safe = len(text) - max(beginnings, default=0)
            out.append(text[shown:safe])
            shown = safe
        else:
            out.append("")
    return out, "" if found else text[shown:], found


def expect_shown(got, right: str, of: str, hint: str) -> None:
    """Fail unless a text is right. Short ones stand in the message: their ends count."""
    if isinstance(got, str) and len(got) + len(right) <= 80:
        expect(got == right, f"{of} to be {right!r}", repr(got), hint)
    expect_equal(got, right, of=of, hint=hint)


def expect_stream(StopMatcher, stops: Sequence[str], pieces: Sequence[str], hint: str) -> None:
    """Push the pieces: what each of them shows must be right, and the flush, and `found`."""
    shown, rest, found = true_pieces(stops, pieces)
    matcher = StopMatcher(list(stops))
    is_short = len(repr(pieces)) < 100
    for number, (piece, right) in enumerate(zip(pieces, shown)):
        got = matcher.push(piece)
        where = f"piece {number} of {list(pieces)}" if is_short else f"{piece!r:.60}"
        expect_shown(got, right,
                     f"what `push` shows of {where}, with the stop strings {list(stops)},",
                     hint)
    expect_equal(matcher.found, found,
                 of=f"`found` after {list(pieces)}" if is_short else "`found`",
                 hint="None as long as there is no stop string, else the one that ended the "
                      "text.")
    expect_shown(matcher.flush(), rest, "what `flush` gives at the end of the text",
                 "What was held back, and no stop string came of it.")


def cuts(text: str, rng: np.random.Generator, most: int = 4) -> list[str]:
    """A text in random pieces, empty ones among them."""
    pieces, start = [], 0
    while start < len(text):
        size = int(rng.integers(0, most + 1))
        pieces.append(text[start:start + size])
        start += size
    return pieces


example_of_stopmatcher = docstring_example(STOP, points=1)


@check(STOP, points=1, public=True)
def across_pieces(StopMatcher, rng):
    """A stop string is found wherever the pieces end, and nothing of it is shown."""
    text = "one END two"
    for first in range(1, len(text)):
        second = int(rng.integers(first, len(text)))
        expect_stream(StopMatcher, ["END"], [text[:first], text[first:second], text[second:]],
                      "What has arrived so far may end with the beginning of a stop string. "
                      "That much waits, and no more.")


@check(STOP, points=1, public=True)
def false_alarms(StopMatcher, rng):
    """What looked like a stop string and was none is shown as soon as that is clear;
    at the end, by `flush`."""
    for pieces in (["an E", "N", "gine"], ["the EN"], ["E", "E", "EN", "x"], list("ENENE"),
                   ["an N", "D", "ND"]):
        expect_stream(StopMatcher, ["END"], pieces,
                      "The held text and the new piece belong together.")
    matcher = StopMatcher(["END"])
    matcher.push("text EN")
    expect_equal((matcher.flush(), matcher.flush()), ("EN", ""),
                 of="what two calls of `flush` give after 'text EN'",
                 hint="The reader gets the last letters, once.")


@check(STOP, points=1, public=True)
def several(StopMatcher, rng):
    """Of several stop strings the one that is complete first ends the text;
    of two at once, the longer."""
    for stops, text in ((["world", "lo"], "hello world"), (["b", "abcd"], "xabcdx"),
                        (["c", "abc"], "xabcx"), (["\n\n", "\nUser:"], "hi\nUser: ho\n\n"),
                        (["END", "STOP"], "S END STOP")):
        for pieces in ([text], list(text), cuts(text, rng)):
            for order in (stops, stops[::-1]):
                expect_stream(StopMatcher, order, pieces,
                              "Where does each stop string end in the text? Their order in the "
                              "list says nothing.")


@check(STOP, points=1, public=True, always=(0,))
def like_its_own_beginning(StopMatcher, rng):
    """Stop strings that begin like themselves: aab in aaab, a blank line after a line."""
    for stop, text in (("aab", "xaaab"), ("abab", "abaabab"), ("\n\n", "a\nb\n\nc"),
                       ("aaa", "aabaaab")):
        for pieces in (list(text), [text[:-1], text[-1:]], cuts(text, rng, 2)):
            expect_stream(StopMatcher, [stop], pieces,
                          "After a false alarm, a part of what was held may begin the next "
                          "one. Which is the longest end that is a beginning?")


@check(STOP, points=1, public=True)
def the_end(StopMatcher, rng):
    """After a stop string nothing is shown; an empty one is refused;
    without any, everything is shown at once."""
    expect_stream(StopMatcher, ["END"], ["one END", " two", " END", "EN"],
                  "The text has ended.")
    expect_stream(StopMatcher, [], ["one", "", " END"], "There is nothing to wait for.")
    for stops in ([""], ["END", ""]):
        with expect_error(ModelError, when=f"the stop strings are {stops}",
                          hint="'' in text is true for every text."):
            StopMatcher(stops)


@check(STOP, points=1, public=True)
def one_piece(StopMatcher, rng):
    """A whole text at once, with a stop string at its beginning, in its middle,
    twice, and not at all."""
    word = "".join("xyz"[i] for i in rng.integers(0, 3, 5))
    for text in (f"END{word}", f"{word}END{word}END{word}", f"{word}EN", f"{word}END", word):
        expect_stream(StopMatcher, ["END"], [text],
                      "The first one counts. What comes before it is text.")


@dataclass(frozen=True)
class Stream:
    """Stop strings, and a text in pieces."""

    stops: list[str]
    pieces: list[str]

    def typed(self) -> str:
        return f"StopMatcher({self.stops}), pushed {self.pieces}, flushed"


STREAMS = st.builds(
    Stream, st.lists(st.one_of(st.text("ab", min_size=1, max_size=4),
                               st.sampled_from(["END", "b!", ".*", "a.", "Ab", "é", ""])),
                     max_size=3),
    st.lists(st.one_of(st.text("ab", max_size=3),
                       texts(["EN", "D", "END", "E"], ["a", "b!", "A"], SIGNS, most=2,
                             long=False)), max_size=5))


def shown_of(StopMatcher, stream: Stream) -> Seen:
    """What each piece shows, the stop string that is found by then, and what is left."""
    stops, seen = [*stream.stops], []
    with expect_unchanged(stops):
        matcher = StopMatcher(stops)
    for number, piece in enumerate(stream.pieces, start=1):
        seen.append((f"what piece {number} shows in", attempted(matcher.push, args=(piece,))))
        seen.append((f"`found` after piece {number} in", matcher.found))
    return [*seen, ("what `flush` gives in", matcher.flush())]


@check(STOP, points=2.5, public=True)
def any_pieces(StopMatcher, rng):
    """Texts of few letters, in any pieces, with stop strings that repeat themselves, overlap,
    or are made of signs."""
    expect_agreement(StopMatcher, stop_matcher, STREAMS, rng, run=shown_of, examples=250,
                     always=1,
                     hint="Write the text down as it is after this piece. Which is the longest "
                          "end of it that any stop string begins with?")


@check(STOP, points=0.5, public=False, always=(0,))
def any_text(StopMatcher, rng):
    """Random texts of few letters, random stop strings, random pieces."""
    for _ in range(60):
        alphabet = "ab" if rng.random() < 0.7 else "abc"

        def word(length: int) -> str:
            return "".join(alphabet[i] for i in rng.integers(0, len(alphabet), length))

        stops = [word(int(rng.integers(1, 6))) for _ in range(int(rng.integers(1, 4)))]
        text = word(18)
        expect_stream(StopMatcher, stops, cuts(text, rng), "")


@check(STOP, points=0.5, public=False)
def all_scripts(StopMatcher, rng):
    """Letters of every script, upper and lower case, stop strings longer than the text."""
    for stops, text in ((["停止", "。\n"], "推理引擎停下来。停止"),
                        (["👩‍👩‍👧"], "👩‍👩‍👦 👩‍👩‍👧 x"), (["é"], "e\u0301 é"),
                        (["End"], "END end End"), (["a long stop string"], "a long stop"),
                        ([".*", "[a]"], "a. [a] .*")):
        for pieces in ([text], list(text), cuts(text, rng)):
            expect_stream(StopMatcher, stops, pieces, "")


@check(STOP, points=0.5, public=False, always=(1, 0))
def long_texts(StopMatcher, rng):
    """Long pieces, with false alarms at their ends, and two matchers side by side."""
    pieces = [("word " * 400 + "EN")[int(rng.integers(3)):], "D" if rng.random() < 0.5 else "E",
              "x" * 500 + "ST", "OP" + "y" * 50]
    expect_stream(StopMatcher, ["END", "STOP"], pieces, "")
    matchers = [StopMatcher(["END"]), StopMatcher(["EN"])]
    expect_equal([matcher.push("xE") for matcher in matchers], ["x", "x"],
                 of="what two matchers show")
    expect_equal([matcher.push("Nd") for matcher in matchers], ["ENd", ""],
                 of="what two matchers show")
    expect_equal([matcher.found for matcher in matchers], [None, "EN"],
                 of="what two matchers have found")


# --- models without weights


class StoredText:
    """The cache of a model without weights: the tokens themselves."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} stored tokens to {length}")
        del self.tokens[length:]


class TextModel:
    """A model without weights: its logits depend on the whole text so far, and on nothing else.

    script: what it wants to say after `prompt`; it says anything where the text is another.
    favourites: tokens with the logits 9, 8, 7 and so on, whatever the text is. forwarded: the
    ids of each forward pass. logits_after(text) is the truth that checks compare with.
    """

    def __init__(self, seed: int, vocab_size: int, prompt: Sequence[int] = (),
                 script: Sequence[int] = (), context: int = 200, scale: float = 1.5,
                 favourites: Sequence[int] = ()):
        self.config = ModelConfig("LlamaForCausalLM", vocab_size=vocab_size, hidden_size=4,
                                  intermediate_size=4, num_hidden_layers=1,
                                  num_attention_heads=1, num_key_value_heads=1, head_dim=4,
                                  max_position_embeddings=context, rms_norm_eps=1e-5,
                                  rope_theta=1e4, tie_word_embeddings=True)
        self.seed, self.scale = seed, scale
        self.prompt, self.script, self.favourites = [*prompt], [*script], [*favourites]
        self.forwarded: list[list[int]] = []

    def new_cache(self, capacity: int) -> StoredText:
        return StoredText(capacity)

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, cache: StoredText,
                logits_at=slice(None)) -> np.ndarray:
        ids, start = np.asarray(input_ids).tolist(), len(cache.tokens)
        if len(self.forwarded) > 500:
            raise RuntimeError("the model was asked 500 times, and the text still has not "
                               "ended")
        if np.asarray(positions).tolist() != list(range(start, start + len(ids))):
            raise CheckFailure(f"the next positions in the cache, from {start} on",
                               f"{np.asarray(positions).tolist()[:8]}")
        if start + len(ids) > cache.capacity:
            raise ModelError("the cache is full",
                             f"{start} of {cache.capacity} places are taken, and {len(ids)} "
                             "more are needed", "reserve more, or ask for less")
        self.forwarded.append(ids)
        cache.tokens += ids
        rows = range(start, start + len(ids))
        wanted = (list(rows)[logits_at] if isinstance(logits_at, slice)
                  else [rows[row] for row in logits_at])
        return np.stack([self.logits_after(cache.tokens[:row + 1]) for row in wanted])

    def logits_after(self, text: Sequence[int]) -> np.ndarray:
        text = [int(id) for id in text]
        rng = np.random.default_rng([self.seed, len(text), *text])
        logits = rng.standard_normal(self.config.vocab_size) * self.scale
        logits[self.favourites] = 9 - np.arange(len(self.favourites))
        said = len(text) - len(self.prompt)
        if 0 <= said < len(self.script) and text == [*self.prompt, *self.script[:said]]:
            logits[self.script[said]] += 40
        return logits.astype(np.float32)


# --- generate

GENERATE = "decoding.generate"
EOS = 257


def byte_tokenizer(prefix: bool = False) -> Tokenizer:
    """A tokenizer of single bytes, a BOS that it may put in front, and three special tokens."""
    added = tuple(AddedToken(content, 256 + number, special=True)
                  for number, content in enumerate(("<bos>", "<eos>", "<eot>", "<tool>")))
    return Tokenizer(replace(train_bpe([], 256), added_tokens=added, prefix=(256,) * prefix))


def speaker(rng: np.random.Generator, tokenizer: Tokenizer, prompt: str, says: str,
            ends: Sequence[int] = (EOS,), context: int = 200) -> TextModel:
    """A model that says a text after a prompt, and then an EOS."""
    return TextModel(int(rng.integers(2**32)), 260,
                     tokenizer.encode(prompt, add_special_tokens=True),
                     [*tokenizer.encode(says, add_special_tokens=False), *ends], context)


def expect_generation(got, **fields) -> None:
    for name, (right, hint) in fields.items():
        expect_returned(got, "a Generation")
        expect(hasattr(got, name), "a Generation", f"a {type(got).__name__} without {name}")
        if isinstance(right, str):
            expect_shown(getattr(got, name), right, f"`{name}`", hint)
        else:
            expect_equal(getattr(got, name), right, of=f"`{name}`", hint=hint)


def letters(rng: np.random.Generator, length: int) -> str:
    return "".join("abcdefghijklmnop"[i] for i in rng.permutation(16)[:length])


example_of_generate = docstring_example(GENERATE, points=1)


@check(GENERATE, points=1, public=True)
def says_what_the_model_says(generate, rng):
    """Greedy, until the model says EOS: prompt, ids, text and reason;
    each token goes through the model once."""
    tokenizer, prompt, says = byte_tokenizer(), letters(rng, 4), letters(rng, 6)
    model = speaker(rng, tokenizer, prompt, says)
    got = generate(model, tokenizer, prompt, eos_ids={EOS}, max_tokens=20)
    expect_generation(got, prompt_ids=(tokenizer.encode(prompt), ""),
                      ids=(tokenizer.encode(says), "The EOS is not part of it."),
                      text=(says, ""), finish_reason=("stop", ""))
    passes = [tokenizer.encode(prompt), *([id] for id in tokenizer.encode(says))]
    expect_equal(model.forwarded, passes, of="what the model was given, pass by pass",
                 hint="The context holds what came before.")
    expect(min(got.prefill_seconds, got.decode_seconds) >= 0, "the seconds to be at least 0",
           f"{got.prefill_seconds} and {got.decode_seconds}",
           "`time.perf_counter()`: at the start, at the first logits, at the end.")


@check(GENERATE, points=1, public=True)
def every_end(generate, rng):
    """Any EOS id and any stop id ends the text; max_tokens holds exactly, zero included."""
    tokenizer, prompt, says = byte_tokenizer(), letters(rng, 3), letters(rng, 5)
    for end in (256, 257, 258, 259):
        model = speaker(rng, tokenizer, prompt, says, [end, 97, 257])
        eos_ids, stop_ids = {256, 257}, [259, 258]
        with expect_unchanged(eos_ids, stop_ids):
            got = generate(model, tokenizer, prompt, eos_ids=eos_ids, stop_ids=stop_ids,
                           max_tokens=20)
        hint = f"It ends with token {end}; eos_ids are 256 and 257, stop_ids 258 and 259."
        expect_generation(got, ids=(tokenizer.encode(says), hint), finish_reason=("stop", ""))
    for limit in (5, 2, 0):
        got = generate(speaker(rng, tokenizer, prompt, says), tokenizer, prompt, eos_ids={EOS},
                       max_tokens=limit)
        expect_generation(got, ids=(tokenizer.encode(says)[:limit], f"max_tokens is {limit}."),
                          text=(says[:limit], ""),
                          finish_reason=("length", f"max_tokens is {limit}, and no EOS had "
                                                   "come by then."))


@check(GENERATE, points=1, public=True)
def stop_strings(generate, rng):
    """A stop string over several tokens ends the text before its beginning,
    and no reader sees any of it."""
    tokenizer, prompt, before = byte_tokenizer(), letters(rng, 3), letters(rng, 4)
    model = speaker(rng, tokenizer, prompt, before + "EN ENDrest")
    shown: list[str] = []
    got = generate(model, tokenizer, prompt, eos_ids={EOS}, stop=["\n", "END"], max_tokens=30,
                   on_text=shown.append)
    expect_generation(
        got, text=(f"{before}EN ", "It ends where the stop string begins, and 'EN ' is none."),
        finish_reason=("stop", ""),
        ids=(tokenizer.encode(f"{before}EN END"),
             "The tokens of the stop string were generated; the ones after it were not."))
    expect_shown("".join(shown), got.text, "what `on_text` was given, joined,",
                 "A `TextStream` shows what it is given, up to a stop string.")


@check(GENERATE, points=1, public=True)
def whole_characters(generate, rng):
    """The pieces of a stream are whole characters, joined they are the text,
    and the end of the text is in them."""
    tokenizer, prompt = byte_tokenizer(), letters(rng, 3)
    for says, stop in (("aé 中🚀z", []), ("naïve EN", ["END"])):
        shown: list[str] = []
        got = generate(speaker(rng, tokenizer, prompt, says), tokenizer, prompt, eos_ids={EOS},
                       stop=stop, max_tokens=40, on_text=shown.append)
        expect_generation(
            got, text=(says, "What was held back belongs to the text when it has ended."))
        expect_shown("".join(shown), says, "what `on_text` was given, joined,",
                     "Is the end of the text shown, too?")
        expect(len(shown) > 2 and all(shown),
               "the text in pieces as it grows, none of them empty", f"{shown}",
               "A reader wants to see something before the end.")


@check(GENERATE, points=1, public=True)
def settings_count(generate, rng):
    """Seeds and penalties: the same seed gives the same text;
    the prompt counts for repetition, not for presence."""
    tokenizer, favourites = byte_tokenizer(), letters(rng, 6)
    for prompt, settings in (("xyz", {"temperature": 1.0, "seed": int(rng.integers(1000))}),
                             (favourites[:2] * 2, {"repetition_penalty": 2.0}),
                             (favourites[:2] * 2,
                              {"presence_penalty": 1.5, "frequency_penalty": 1.0})):
        liked = tokenizer.encode(favourites) if "temperature" not in settings else ()
        model = TextModel(int(rng.integers(2**32)), 260, scale=0.5, favourites=liked)
        right = reference(model, tokenizer, prompt, params=SamplingParams(**settings),
                          max_tokens=8)
        got = generate(model, tokenizer, prompt, params=SamplingParams(**settings),
                       max_tokens=8)
        hint = (f"With {settings}. One generator for the request, from params.seed; `choose` "
                "wants all ids so far, and apart from them the generated ones.")
        expect_generation(got, ids=(right.ids, hint))


@check(GENERATE, points=1, public=True)
def room(generate, rng):
    """The context is the last limit; a prompt without room, an empty one,
    and a negative limit are refused."""
    tokenizer, prompt = byte_tokenizer(), letters(rng, 6)
    for limit, right in ((9, 3), (7, 1)):
        got = generate(speaker(rng, tokenizer, prompt, letters(rng, 8), context=limit),
                       tokenizer, prompt, max_tokens=50)
        expect_equal((len(got.ids), got.finish_reason), (right, "length"),
                     hint="The last token need not go through the model.",
                     of="the number of tokens and the reason, with a prompt of 6 in a context "
                        f"of {limit},")
    model = speaker(rng, tokenizer, prompt, "abc", context=6)
    for text, options, when in (
            ("", {}, "the prompt is empty"), (prompt, {"max_tokens": -1}, "max_tokens is -1"),
            (prompt, {"max_tokens": 1},
             "a prompt of 6 tokens leaves no room in a context of 6")):
        with expect_error(ModelError, when=when,
                          hint="Before the model is asked for anything."):
            generate(model, tokenizer, text, **options)


@dataclass(frozen=True)
class Wish:
    """A request to a model that says anything, each token as likely as the seed wants it."""

    prompt: str
    options: dict[str, Any]
    prefix: bool
    seed: int

    def typed(self) -> str:
        told = "".join(f", {name}={typed(value)}" for name, value in self.options.items())
        return (f"generate(model, tokenizer, {self.prompt!r}{told})"
                + ", whose tokenizer wants BOS" * self.prefix)


@st.composite
def wishes(draw) -> Wish:
    """Prompts with special tokens in them, and settings of every kind."""
    prompt = draw(texts(["a", "Hi", ".", "’s"], ["<eot>", "<bos>", "<tool>"], most=3,
                        long=False))
    params = draw(some(temperature=st.sampled_from([1.0, 0.7]), seed=st.sampled_from([0, 1, 7]),
                       repetition_penalty=st.just(2.0), presence_penalty=st.just(1.5),
                       frequency_penalty=st.just(0.5), top_k=st.just(5), top_p=st.just(0.5)))
    options = draw(some(max_tokens=st.sampled_from([0, 1, 5, -1]),
                        eos_ids=st.sampled_from([[97, 101], [], [0, 257]]),
                        stop_ids=st.sampled_from([[98], [260]]),
                        stop=st.sampled_from([["a"], ["ab", "b"]]),
                        add_special_tokens=st.booleans()))
    options = {"max_tokens": 5} | options | {"params": SamplingParams(**{"seed": 0} | params)}
    return Wish(prompt or draw(st.sampled_from(["", "a"])), options, draw(st.booleans()),
                draw(st.integers(0, 99)))


def said_to(generate, wish: Wish) -> Seen:
    shown: list[str] = []
    model = TextModel(wish.seed, 260, scale=0.5, context=20, favourites=[97, 98, 99, 32, 258])
    tokenizer = byte_tokenizer(wish.prefix)
    options = {name: [*value] if isinstance(value, list) else value
               for name, value in wish.options.items()}
    with expect_unchanged(*(value for value in options.values() if isinstance(value, list))):
        got = attempted(generate, args=(model, tokenizer, wish.prompt),
                        kwargs={**options, "on_text": shown.append})
    if isinstance(got, Raised) or got is None:
        return [("", got)]
    return [("prompt_ids of", [*got.prompt_ids]), ("ids of", [*got.ids]), ("text of", got.text),
            ("finish_reason of", got.finish_reason),
            ("what `on_text` was given, joined, in", "".join(shown))]


@check(GENERATE, points=1.5, public=True)
def any_wish(generate, rng):
    """Prompts with special tokens in them, seeds and penalties, limits and ends of every
    kind."""
    expect_agreement(generate, reference, wishes(), rng, run=said_to, examples=150, always=6,
                     hint="Follow the text token by token: which ids does the prompt have, "
                          "whom does each setting reach, and what ends the text?")


class Alternating:
    """A grammar: letters and digits in turn."""

    def __init__(self):
        self.tokens: list[int] = []

    def allowed(self) -> np.ndarray:
        mask = np.zeros(260, bool)
        mask[48:58] = len(self.tokens) % 2 == 1
        mask[97:123] = len(self.tokens) % 2 == 0
        return mask

    def advance(self, token: int) -> None:
        self.tokens.append(int(token))


@check(GENERATE, points=0.5, public=True, always=(31,))
def grammars_and_logprobs(generate, rng):
    """A grammar is asked before each token and told of it;
    each token has a log-probability, the model's own."""
    tokenizer, prompt = byte_tokenizer(), letters(rng, 3)
    model, grammar = TextModel(int(rng.integers(2**32)), 260), Alternating()
    params = SamplingParams(temperature=0.8, seed=3, top_k=20)
    got = generate(model, tokenizer, prompt, params=params, max_tokens=6, grammar=grammar)
    right = reference(model, tokenizer, prompt, params=params, max_tokens=6,
                      grammar=Alternating())
    expect_generation(got, ids=(right.ids, "Before each token `grammar.allowed()` says which "
                                           "may come; `choose` takes them as `allowed`."))
    expect_equal(grammar.tokens, got.ids, of="the tokens that the grammar was told",
                 hint="After each token `grammar.advance(token)` tells which it was.")
    speaking = speaker(rng, tokenizer, prompt, letters(rng, 5))
    for model, top in ((model, 2), (speaking, 0), (speaking, 2), (speaking, None)):
        options = {"eos_ids": {EOS}, "top_logprobs": top, "max_tokens": 9,
                   "params": SamplingParams(presence_penalty=0.5, temperature=2.0, seed=1,
                                            top_k=5)}
        right = reference(model, tokenizer, prompt, **options)
        got = generate(model, tokenizer, prompt, **options)
        hint = (f"With top_logprobs={top}. `logprobs` wants the model's own logits; the token "
                "that ends a text is no part of it, and has none.")
        expect_equal(len(got.logprobs), 0 if top is None else len(got.ids), hint=hint,
                     of="the number of log-probabilities")
        for mine, true in zip(got.logprobs, right.logprobs):
            expect_equal(mine.id, true.id, of="the id of a log-probability", hint=hint)
            expect_close(np.float64(mine.logprob), np.float64(true.logprob), dtype=None,
                         of="a log-probability", hint=hint)
            expect_equal([id for id, _ in mine.top], [id for id, _ in true.top],
                         of="the alternatives", hint=hint)


@check(GENERATE, points=0.5, public=True)
def conversations(generate, rng):
    """With a context of earlier turns, only what is new goes through the model;
    the text is that of a cold start."""
    tokenizer, first = byte_tokenizer(), letters(rng, 6)
    model = TextModel(int(rng.integers(2**32)), 260, context=60)
    context = Context(model, 50)
    for prompt, known in ((first, 0), (first, 5), (first[:4] + "QR", 4),
                          (first[:4] + "QRST", 6)):
        model.forwarded.clear()
        got = generate(model, tokenizer, prompt, max_tokens=3, context=context,
                       params=SamplingParams(temperature=1.0, seed=5))
        expect_equal(model.forwarded[0], tokenizer.encode(prompt)[known:],
                     of=f"the first ids that the model was given, of a prompt of which {known} "
                        "tokens are as in the turn before it,",
                     hint="`context.rewind(ids)` goes back to where the new prompt is another "
                          "one, and says how many tokens are known; the others go through "
                          "`context.forward`.")
        right = reference(model, tokenizer, prompt, max_tokens=3,
                          params=SamplingParams(temperature=1.0, seed=5))
        expect_generation(got, ids=(right.ids, "A context changes what is computed, and not "
                                               "what comes out."),
                          cached_tokens=(known, "What `context.rewind` says."))
    begin = time.perf_counter()
    got = generate(model, tokenizer, first, max_tokens=3)
    took = time.perf_counter() - begin
    expect(0 < got.prefill_seconds and 0 <= got.decode_seconds
           and got.prefill_seconds + got.decode_seconds <= took,
           "`prefill_seconds`, to the first logits, to be above 0, `decode_seconds`, from "
           f"there on, not below, and both at most the {took:.2g} s of the whole call",
           f"{got.prefill_seconds:.3g} and {got.decode_seconds:.3g}",
           "Each is a difference of two readings of `time.perf_counter`.")
    got = generate(model, tokenizer, first, max_tokens=0)
    expect_generation(got, cached_tokens=(0, "Where nothing is computed, nothing was known."))
    got = generate(model, tokenizer, "x" * 48, max_tokens=30, context=context)
    expect_equal(len(got.ids), 2,
                 of="the number of tokens, in a context of 50 with a prompt of 48,",
                 hint="A context that is given has a limit of its own, `context.cache.capacity`"
                      ".")
    with expect_error(ModelError, when="a prompt of 50 tokens comes to a context of 50"):
        generate(model, tokenizer, "x" * 50, max_tokens=1, context=context)


@check(GENERATE, points=0.5, public=False, always=(3,))
def any_request(generate, rng):
    """Requests of many kinds, BOS and special tokens among them."""
    for _ in range(8):
        tokenizer = byte_tokenizer(prefix=bool(rng.integers(2)))
        model = TextModel(int(rng.integers(2**32)), 260, scale=0.5)
        params = SamplingParams(temperature=float(rng.choice([0, 0.7, 1.3])),
                                top_k=int(rng.choice([0, 30])), top_p=0.95,
                                seed=int(rng.integers(99)), frequency_penalty=0.3,
                                logit_bias={101: 3.0, 32: 4.0})
        options = {"params": params, "max_tokens": int(rng.integers(0, 25)),
                   "eos_ids": rng.integers(0, 260, 9).tolist(),
                   "stop_ids": frozenset(rng.integers(0, 260, 9).tolist()),
                   "stop": ["e ", "ee", "z"], "add_special_tokens": bool(rng.integers(2))}
        prompt, shown = letters(rng, int(rng.integers(1, 9))), []
        with expect_unchanged(options["eos_ids"], options["stop"]):
            got = generate(model, tokenizer, prompt, on_text=shown.append, **options)
        right = reference(model, tokenizer, prompt, **options)
        expect_generation(got, prompt_ids=(right.prompt_ids, ""), ids=(right.ids, ""),
                          text=(right.text, ""), finish_reason=(right.finish_reason, ""))
        expect_equal("".join(shown), right.text, of="what `on_text` was given")

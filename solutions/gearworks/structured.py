"""Structured output: which tokens may come next, so that the whole text has a given form.

An automaton follows the text, byte by byte, and knows which bytes can continue it. A token is
allowed when all of its bytes can. `llguidance` is the automaton, for regular expressions and
JSON schemas alike; the mask over the vocabulary and what the sampler does with it are ours
(`sampling.allow_only`).

Shapes: V vocabulary.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import llguidance
import numpy as np

from gearworks.errors import ModelError
from gearworks.tokenizer import Tokenizer


# What llguidance says of a schema that it does not take, and what that means for its author.
_COMPLAINTS = {
    r"Unimplemented keys: \[(.*)\]": (
        r"it uses \1, which is not supported",
        "say it in another way, or leave it out and check the answer afterwards"),
    r"oneOf constraints are not supported.*": (
        'more than one alternative of a "oneOf" could accept a value', 'use "anyOf"'),
    r"Unsatisfiable schema: (anyOf|oneOf) is empty": (
        'it has an empty "anyOf", "oneOf", "enum" or "type", so no value satisfies it',
        "list at least one alternative there"),
    r"Unsatisfiable schema: (.*)": (r"no value satisfies it: \1", "loosen the schema there"),
    r"Invalid type: (.*)": (
        r'"\1" is no type of JSON',
        "use string, number, integer, boolean, null, object or array"),
    r"Unknown format: (.*)": (
        r'the "format" \1 is not known here', 'use a "pattern", or leave the format out'),
    r"Pointer '(.*)' does not exist": (
        r'a "$ref" points to #\1, and there is nothing',
        'put what it should find there, for example under "$defs"'),
    r"Resource '(.*)' is not present.*": (
        r'a "$ref" points to \1, outside of this schema',
        'copy that schema into this one, under "$defs"'),
    r".*regex parse error: (.*?) \^+ error: (.*)": (
        r'a "pattern" in it, \1, cannot be used: \2',
        "write the pattern without look-around and back-references"),
    r".* hex escape .*": (
        "it holds half a surrogate pair, which is no character", "leave that out"),
    r"schema must be an object or boolean": (
        "a part of it is neither an object nor true or false",
        'write {"type": "string"} and the like there'),
    r"recursion limit exceeded.*": ("it is nested too deeply", "make it flatter"),
    r"(.*)": (
        r"\1", "compare it with the JSON Schema specification, or write it in a simpler way"),
}


def json_grammar(schema: Any) -> str:
    """The grammar, for `TokenGrammar`, of the JSON values that a JSON schema accepts.

    schema: an object, or true, which accepts every value. Raises ModelError for what is no
    schema, for one that no value satisfies, and for one that uses what is not supported.
    """
    if schema is False:
        raise ModelError(_BAD_SCHEMA, "false accepts no value", "use true to accept any")
    if schema is not True and not isinstance(schema, Mapping):
        kind = _JSON_NAMES.get(type(schema), type(schema).__name__)
        raise ModelError(_BAD_SCHEMA, f"a schema is an object, and this is {kind}",
                         'write {"type": "object"} and the like')
    try:
        text = json.dumps({} if schema is True else schema, allow_nan=False)
    except RecursionError:
        raise _bad_schema("recursion limit exceeded") from None
    except (TypeError, ValueError) as error:
        raise ModelError(_BAD_SCHEMA, f"it cannot be written as JSON: {error}",
                         "use strings, finite numbers, lists and objects") from None
    try:
        # The model decides how much white space there is: unbounded, a small one never stops
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_flexible": False})
    except ValueError as error:
        raise _bad_schema(str(error)) from None
    complaint = llguidance.LLMatcher.validate_grammar(grammar)
    if complaint:
        raise _bad_schema(complaint)
    return grammar


_BAD_SCHEMA = "cannot use this JSON schema"
_JSON_NAMES = {list: "a list", str: "a string", int: "a number", float: "a number",
               type(None): "null"}


def _bad_schema(complaint: str) -> ModelError:
    complaint = _in_short(complaint)
    for pattern, (why, hint) in _COMPLAINTS.items():
        if found := re.fullmatch(pattern, complaint):
            return ModelError(_BAD_SCHEMA, found.expand(why)[:300], hint)
    raise AssertionError("the last pattern matches everything")


def _in_short(complaint: str) -> str:
    """What llguidance says, on one line, and without its state, which it sometimes adds."""
    return " ".join(complaint.partition("<state>")[0].split())[:300]


class _Vocabulary:
    """A tokenizer as llguidance wants to see it: the bytes of every token."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]):
        known = tokenizer.vocabulary
        ids = known.ids
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(id) if id in ids else b""
                       for id in range(vocab_size)]
        self.special_token_ids = sorted({token.id for token in known.added_tokens
                                         if token.special} | set(eos_ids))
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        try:
            return self._tokenizer.encode_bytes(text)
        except ModelError:          # a byte without a token: the mask has nothing for it either
            return []


class GrammarVocabulary:
    """The vocabulary of a model, prepared once for any number of grammars."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]):
        """vocab_size: of the logits, V; eos_ids: allowed where a text may end.
        Raises ModelError when there are none, and for one that is no token."""
        if not eos_ids:
            raise ModelError("cannot follow a grammar",
                             "the model names no token that ends a text",
                             "add its eos_token_id to generation_config.json")
        if not 0 <= min(eos_ids) <= max(eos_ids) < vocab_size:
            raise ModelError("cannot follow a grammar",
                             f"{sorted(eos_ids)} should end a text, and ids go from 0 to "
                             f"{vocab_size - 1}",
                             "correct eos_token_id in the model's generation_config.json")
        self.vocab_size = vocab_size
        self.eos_ids = sorted(eos_ids)
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos_ids))
        self.tokens = llguidance.LLTokenizer(wrapped, n_vocab=vocab_size,
                                             eos_token=self.eos_ids)


class TokenGrammar:
    """Follows one text, and says which tokens may come next."""

    def __init__(self, vocabulary: GrammarVocabulary, grammar: str):
        """grammar: as llguidance writes it; `json_grammar` and `from_regex` make one.
        Raises ModelError for a wrong one, with what is wrong about it."""
        self._vocabulary = vocabulary
        self._matcher = llguidance.LLMatcher(vocabulary.tokens, grammar, log_level=0)
        if self._matcher.is_error():
            raise ModelError("cannot use this grammar", _in_short(self._matcher.get_error()),
                             "write it in a simpler way")

    @classmethod
    def from_regex(cls, vocabulary: GrammarVocabulary, pattern: str) -> "TokenGrammar":
        """The whole text matches a regular expression.

        pattern: of Rust's kind, without look-around and back-references.
        Raises ModelError for a pattern that is not one.
        """
        try:
            grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
            complaint = llguidance.LLMatcher.validate_grammar(grammar)
        except UnicodeEncodeError:
            complaint = "it holds half a surrogate pair, which is no character"
        if complaint:
            why = re.sub(r".*( error: |\(in regex\): )| 1 \| .*", "", _in_short(complaint))
            raise ModelError("cannot use this regular expression", why,
                             "write the pattern without look-around, back-references and word "
                             "borders")
        return cls(vocabulary, grammar)

    @classmethod
    def from_json_schema(cls, vocabulary: GrammarVocabulary, schema: Any) -> "TokenGrammar":
        """The whole text is a value that a JSON schema accepts; errors as `json_grammar`."""
        return cls(vocabulary, json_grammar(schema))

    def copy(self) -> "TokenGrammar":
        """Another one that stands where this one does, without compiling the grammar again."""
        other = TokenGrammar.__new__(TokenGrammar)
        other._vocabulary, other._matcher = self._vocabulary, self._matcher.deep_copy()
        return other

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, (V,) bool; where the text may end, its EOS ids too.

        Raises ModelError where the grammar, or the vocabulary, leaves none.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise ModelError("no token can continue this text",
                             "its form asks for what no text can be, or for a byte that this "
                             "model's vocabulary cannot write",
                             "loosen the schema or the pattern")
        return np.unpackbits(mask, count=self._vocabulary.vocab_size,
                             bitorder="little").astype(bool)

    def advance(self, token: int) -> None:
        """Take a token. Raises ModelError for one that is not allowed."""
        if token in self._vocabulary.eos_ids and self.may_end():
            return
        if not self._matcher.consume_token(token):
            raise ModelError("the text leaves its grammar",
                             f"token {token} is not allowed here",
                             "choose among the tokens of `allowed`")

    def may_end(self) -> bool:
        """Whether the text so far is complete."""
        return self._matcher.is_accepting()

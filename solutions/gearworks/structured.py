"""Structured output: which tokens may come next, so that the whole text has a given form.

An automaton follows the text, byte by byte, and knows which bytes can continue it. A token is allowed when all of its
bytes can. `llguidance` is the automaton, for regular expressions and JSON schemas alike; the mask over the vocabulary
and what the sampler does with it are ours (`sampling.allow_only`).

Shapes: V vocabulary.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import llguidance
import numpy as np

from gearworks.errors import ModelError
from gearworks.tokenizer import Tokenizer


class _Vocabulary:
    """A tokenizer as llguidance wants to see it: the bytes of every token."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]):
        known = tokenizer.vocabulary
        ids = {*known.tokens.values(), *(token.id for token in known.added_tokens)}
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(id) if id in ids else b"" for id in range(vocab_size)]
        self.special_token_ids = sorted({token.id for token in known.added_tokens if token.special} | set(eos_ids))
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        try:
            return self._tokenizer.encode_bytes(text)
        except ModelError:                                  # a byte without a token: the mask has nothing for it either
            return []


class GrammarVocabulary:
    """The vocabulary of a model, prepared once for any number of grammars."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]):
        """vocab_size: of the logits, V; eos_ids: allowed where a text may end. Raises ModelError when there are none,
        and for one that is no token."""
        if not eos_ids:
            raise ModelError("cannot follow a grammar", "the model has no id that ends a text", "name one in eos_ids")
        if not 0 <= min(eos_ids) <= max(eos_ids) < vocab_size:
            raise ModelError("cannot follow a grammar", f"{sorted(eos_ids)} should end a text, and ids go from 0 to "
                             f"{vocab_size - 1}", "name others in eos_ids")
        self.vocab_size = vocab_size
        self.eos_ids = sorted(eos_ids)
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos_ids))
        self.tokens = llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=self.eos_ids)


class TokenGrammar:
    """Follows one text, and says which tokens may come next."""

    def __init__(self, vocabulary: GrammarVocabulary, grammar: str):
        """grammar: as llguidance writes it; `from_regex` and `from_json_schema` make one. Raises ModelError for a wrong
        one, with what is wrong about it."""
        self._vocabulary = vocabulary
        self._matcher = llguidance.LLMatcher(vocabulary.tokens, grammar, log_level=0)
        self._require_sound("cannot use this grammar", "check it against what llguidance supports")

    @classmethod
    def from_regex(cls, vocabulary: GrammarVocabulary, pattern: str) -> "TokenGrammar":
        """The whole text matches a regular expression (of Rust's kind: no look-around, no back-references).

        Raises ModelError for a pattern that is not one.
        """
        try:
            return cls(vocabulary, llguidance.LLMatcher.grammar_from_regex(pattern))
        except UnicodeEncodeError as error:
            raise ModelError("cannot use this regular expression", str(error), "check the pattern") from None

    @classmethod
    def from_json_schema(cls, vocabulary: GrammarVocabulary, schema: Mapping[str, Any]) -> "TokenGrammar":
        """The whole text is a JSON value that a JSON schema accepts. Raises ModelError for a schema beyond its reach."""
        try:
            # The model decides where white space stands, and how much: without a bound a small one never stops
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"whitespace_flexible": False})
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelError("cannot use this JSON schema", str(error), "check the schema") from None
        return cls(vocabulary, grammar)

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, (V,) bool; where the text may end, its EOS ids too.

        Raises ModelError where the grammar, or the vocabulary, leaves none.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require_sound("no token can continue this text",
                            "does the grammar accept any text, and has the vocabulary a token for each of its bytes?")
        return np.unpackbits(mask, count=self._vocabulary.vocab_size, bitorder="little").astype(bool)

    def advance(self, token: int) -> None:
        """Take a token. Raises ModelError for one that is not allowed."""
        if token in self._vocabulary.eos_ids and self.may_end():
            return
        if not self._matcher.consume_token(token):
            raise ModelError("the text leaves its grammar", f"token {token} is not allowed here",
                             "choose among the tokens of `allowed`")

    def may_end(self) -> bool:
        """Whether the text so far is complete."""
        return self._matcher.is_accepting()

    def _require_sound(self, what: str, hint: str) -> None:
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("<state>")[0]         # there it begins to tell its whole state
            raise ModelError(what, " ".join(why.split())[:300], hint)

"""Every text that follows a grammar matches it, over the real vocabulary."""

import json
import re

import jsonschema
import numpy as np
import pytest

from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams
from gearworks.structured import GrammarVocabulary, TokenGrammar


@pytest.fixture(scope="module")
def vocabulary(smollm2):
    return GrammarVocabulary(smollm2.tokenizer, smollm2.model.config.vocab_size, smollm2.eos_ids)


def random_schema(rng, depth: int = 0) -> dict:
    """A schema of a few levels whose values are bounded, so that a text of random tokens comes to an end."""
    kinds = ["string", "integer", "boolean", "enum", "null", "number"] + ["object", "array", "anyOf"] * (depth < 2)
    kind = str(rng.choice(kinds))
    if kind == "string":
        return {"type": "string", "minLength": int(rng.integers(3)), "maxLength": int(rng.integers(3, 9))}
    if kind == "integer":
        low = int(rng.integers(-50, 50))
        return {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(1, 900))}
    if kind == "number":
        return {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}
    if kind == "enum":
        return {"enum": [f"wort {number}" for number in range(rng.integers(1, 4))] + [7, None]}
    if kind == "object":
        names = [f"key{number}" for number in range(rng.integers(1, 4))]
        return {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": names[:int(rng.integers(len(names) + 1))], "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": int(rng.integers(2)), "maxItems": 3}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1), random_schema(rng, depth + 1)]}
    return {"type": kind}


def random_text(grammar, tokenizer, eos_ids, rng, limit: int = 400) -> str:
    """Tokens drawn from all that are allowed, with a liking for the end: what a very bad model would say."""
    ids = []
    for _ in range(limit):
        allowed = np.flatnonzero(grammar.allowed())
        ends = [id for id in allowed if id in eos_ids]
        if ends and (len(allowed) == len(ends) or rng.random() < 0.5):
            return tokenizer.decode(ids)
        token = int(rng.choice(np.setdiff1d(allowed, ends)))
        grammar.advance(token)
        ids.append(token)
    raise AssertionError(f"no end after {limit} tokens: {tokenizer.decode(ids)!r}")


def test_texts_of_200_random_schemas_are_valid(smollm2, vocabulary, rng):
    for _ in range(200):
        schema = random_schema(rng)
        grammar = TokenGrammar.from_json_schema(vocabulary, schema)
        text = random_text(grammar, smollm2.tokenizer, smollm2.eos_ids, rng)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("pattern", [r"[0-9]{3}-[a-z]{2,5}", r"(ja|nein|vielleicht)", r"[一-龥]{4}", r"🦊+x", r"", r"a{7}b?"])
def test_texts_match_their_pattern(smollm2, vocabulary, rng, pattern):
    for _ in range(5):
        text = random_text(TokenGrammar.from_regex(vocabulary, pattern), smollm2.tokenizer, smollm2.eos_ids, rng)
        assert re.fullmatch(pattern, text)


def test_the_mask_is_exactly_what_can_continue(smollm2, vocabulary):
    """Against the definition: a token is allowed when the text with it is the beginning of some match."""
    grammar = TokenGrammar.from_regex(vocabulary, "(abc|abd){1,2}")
    grammar.advance(smollm2.tokenizer.encode("a")[0])
    beginnings = {text[:length] for text in ("abc", "abd", "abcabc", "abcabd", "abdabc", "abdabd") for length in range(7)}
    known = {*smollm2.tokenizer.vocabulary.tokens.values()}
    expected = {id for id in known if b"a" + smollm2.tokenizer.token_bytes(id) in {text.encode() for text in beginnings}
                and smollm2.tokenizer.token_bytes(id)}
    assert {*np.flatnonzero(grammar.allowed()).tolist()} == expected and not grammar.may_end()


def test_the_end_is_allowed_only_where_the_text_may_end(smollm2, vocabulary):
    grammar = TokenGrammar.from_regex(vocabulary, "ab?")
    eos = min(smollm2.eos_ids)
    assert not grammar.allowed()[eos]
    grammar.advance(smollm2.tokenizer.encode("a")[0])
    assert grammar.allowed()[eos] and grammar.may_end()


def test_the_model_answers_in_the_form(smollm2, vocabulary):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
              "required": ["city", "people"], "additionalProperties": False}
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=50, seed=3)):
        answer = smollm2.chat([{"role": "user", "content": "Name a city and how many people live there, as JSON."}],
                              grammar=TokenGrammar.from_json_schema(vocabulary, schema), max_tokens=60, params=params)
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.text), schema)


def test_a_token_outside_the_grammar_is_refused(smollm2, vocabulary):
    grammar = TokenGrammar.from_regex(vocabulary, "[0-9]+")
    with pytest.raises(ModelError, match="leaves its grammar"):
        grammar.advance(smollm2.tokenizer.encode("x")[0])


@pytest.mark.parametrize("make", [
    lambda v: TokenGrammar.from_regex(v, "(unclosed"),
    lambda v: TokenGrammar.from_json_schema(v, {"type": "mystery"}),
    lambda v: TokenGrammar.from_json_schema(v, {"type": {1, 2}}),
], ids=["regex", "type", "not-json"])
def test_wrong_grammars_are_refused(vocabulary, make):
    with pytest.raises(ModelError, match="cannot use this"):
        make(vocabulary)

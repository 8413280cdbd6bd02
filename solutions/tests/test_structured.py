"""Every text that follows a grammar matches it, over the real vocabulary."""

import json
import re

import jsonschema
import numpy as np
import pytest

from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams
from gearworks.structured import GrammarVocabulary, TokenGrammar, json_grammar


@pytest.fixture(scope="module")
def vocabulary(smollm2):
    return GrammarVocabulary(smollm2.tokenizer, smollm2.model.config.vocab_size,
                             smollm2.eos_ids)


def random_schema(rng, depth: int = 0) -> dict:
    """A schema of a few levels whose values are bounded,
    so that a text of random tokens comes to an end."""
    kinds = ["string", "pattern", "integer", "boolean", "enum", "const", "null", "number",
             "between", "nothing"]
    kinds += ["object", "array", "anyOf", "tuple"] * (depth < 2) + ["reference"] * (depth == 0)
    kind = str(rng.choice(kinds))
    if kind == "string":
        return {"type": "string", "minLength": int(rng.integers(3)),
                "maxLength": int(rng.integers(3, 9))}
    if kind == "pattern":
        patterns = ["^[a-zé]{1,4}-[0-9]{2}$", "^(ja|nein)$", "^[一-龥]{1,3}$", "^🦊{1,2}!$"]
        return {"type": "string", "pattern": str(rng.choice(patterns))}
    if kind == "const":
        values = [["ü", 'quote " and \\', {"tab\t": [None, 0.5]}], "深度\n学习", "🦊\u0000", -3,
                  {}]
        return {"const": values[rng.integers(5)]}
    if kind == "between":
        return {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2}
    if kind == "nothing":
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if kind == "tuple":
        items = [random_schema(rng, depth + 1) for _ in range(rng.integers(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if kind == "reference":
        part = {"$ref": "#/$defs/part"}                   # counted from the whole schema's root
        return {"$defs": {"part": random_schema(rng, 2)}, "type": "object",
                "required": ["über"], "properties": {"über": part, 'ot"her': part},
                "additionalProperties": False}
    if kind == "integer":
        low = int(rng.integers(-50, 50))
        return {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(1, 900))}
    if kind == "number":
        return {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}
    if kind == "enum":
        words = [f"wört {number}\n" for number in range(rng.integers(1, 4))]
        return {"enum": [*words, 7, None, [True], {"a": "b"}]}
    if kind == "object":
        names = [f"key{number}" for number in range(rng.integers(1, 4))]
        return {"type": "object",
                "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": names[:int(rng.integers(len(names) + 1))],
                "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1),
                "minItems": int(rng.integers(2)), "maxItems": 3}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1), random_schema(rng, depth + 1)]}
    return {"type": kind}


def random_text(grammar, tokenizer, eos_ids, rng, limit: int = 400) -> str:
    """Tokens drawn from all that are allowed, with a liking for the end:
    what a very bad model would say."""
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


def test_the_schemas_are_of_every_kind(rng):
    """What 200 of them hold, so that the test above says something."""
    text = json.dumps([random_schema(rng) for _ in range(200)])
    for word in ("pattern", "const", "enum", "anyOf", "prefixItems", "$ref", "multipleOf",
                 "exclusiveMinimum", "maxLength", "minItems", "required", '"properties": {}',
                 "minimum", "boolean", "null"):
        assert text.count(word) >= 5, word


@pytest.mark.parametrize("pattern",
                         [r"[0-9]{3}-[a-z]{2,5}", r"(ja|nein|vielleicht)", r"[一-龥]{4}",
                          r"🦊+x", r"", r"a{7}b?"])
def test_texts_match_their_pattern(smollm2, vocabulary, rng, pattern):
    for _ in range(5):
        text = random_text(TokenGrammar.from_regex(vocabulary, pattern), smollm2.tokenizer,
                           smollm2.eos_ids, rng)
        assert re.fullmatch(pattern, text)


def test_the_mask_is_exactly_what_can_continue(smollm2, vocabulary):
    """Against the definition: a token is allowed when the text with it begins some match."""
    grammar = TokenGrammar.from_regex(vocabulary, "(abc|abd){1,2}")
    grammar.advance(smollm2.tokenizer.encode("a")[0])
    beginnings = {text[:length]
                  for text in ("abc", "abd", "abcabc", "abcabd", "abdabc", "abdabd")
                  for length in range(7)}
    known = {*smollm2.tokenizer.vocabulary.tokens.values()}
    expected = {id for id in known
                if b"a" + smollm2.tokenizer.token_bytes(id)
                in {text.encode() for text in beginnings} and smollm2.tokenizer.token_bytes(id)}
    assert {*np.flatnonzero(grammar.allowed()).tolist()} == expected and not grammar.may_end()


def test_the_end_is_allowed_only_where_the_text_may_end(smollm2, vocabulary):
    grammar = TokenGrammar.from_regex(vocabulary, "ab?")
    eos = min(smollm2.eos_ids)
    assert not grammar.allowed()[eos]
    grammar.advance(smollm2.tokenizer.encode("a")[0])
    assert grammar.allowed()[eos] and grammar.may_end()


def test_the_model_answers_in_the_form(smollm2, vocabulary):
    schema = {"type": "object",
              "properties": {"city": {"type": "string", "maxLength": 20},
                             "people": {"type": "integer"}}, "required": ["city", "people"],
              "additionalProperties": False}
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=50, seed=3)):
        answer = smollm2.chat([{
            "role": "user", "content": "Name a city and how many people live there, as JSON."}],
                              grammar=TokenGrammar.from_json_schema(vocabulary, schema),
                              max_tokens=60, params=params)
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.text), schema)


def test_a_token_outside_the_grammar_is_refused(smollm2, vocabulary):
    grammar = TokenGrammar.from_regex(vocabulary, "[0-9]+")
    with pytest.raises(ModelError, match="leaves its grammar"):
        grammar.advance(smollm2.tokenizer.encode("x")[0])


def nested(depth):
    schema = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema, complaint",
    [({"type": "mystery"}, '"mystery" is no type'), ({"type": {1, 2}}, "not JSON serializable"),
     (3, "a number"), ([], "a list"), (None, "null"), ("x", "a string"),
     (False, "accepts no value"),
     ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "more than one alternative"),
     ({"oneOf": []}, "empty"), ({"type": []}, "empty"), ({"minLength": "x"}, "minLength"),
     ({"if": {}}, 'it uses "if", which is not supported'),
     ({"properties": {"a": 3}}, "neither an object nor true"),
     ({"type": "string", "format": "ssn"}, "not known here"),
     ({"$ref": "http://a.b/c"}, "outside of this schema"),
     ({"patternProperties": {"(": {}}}, "unclosed group"),
     ({"type": "string", "minLength": 5, "maxLength": 2}, "greater than maxLength"),
     ({"enum": []}, "empty"),
     ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
     ({"not": {"type": "null"}}, "not"), ({"$ref": "#/nowhere"}, "nowhere"),
     ({"type": "number", "minimum": float("nan")}, "written as JSON"),
     (nested(300), "nested too deeply"), (nested(3000), "nested too deeply"),
     ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
     ({"const": "\ud800"}, "surrogate")],
    ids=lambda value: value if isinstance(value, str) else "schema")
def test_schemas_that_are_wrong_or_cannot_be_met_are_refused(vocabulary, schema, complaint):
    with pytest.raises(ModelError, match="cannot use this JSON schema") as error:
        TokenGrammar.from_json_schema(vocabulary, schema)
    assert complaint in error.value.why and len(error.value.why) <= 300
    for word in ("llguidance", "coerce", "Unimplemented", "Unsatisfiable", "option"):
        assert word not in str(error.value)             # of use to the library's author only
    with pytest.raises(ModelError):                     # and all is found without a vocabulary
        json_grammar(schema)


def test_true_accepts_every_value(smollm2, vocabulary, rng):
    grammar = TokenGrammar.from_json_schema(vocabulary, True)
    json.loads(random_text(grammar, smollm2.tokenizer, smollm2.eos_ids, rng))


@pytest.mark.parametrize("pattern, complaint", [
    ("(unclosed", "unclosed"), ("(?=a)b", "look-around"), ("\ud800", "surrogate")],
    ids=["unclosed", "look-ahead", "surrogate"])
def test_wrong_patterns_are_refused(vocabulary, pattern, complaint):
    with pytest.raises(ModelError, match="cannot use this") as error:
        TokenGrammar.from_regex(vocabulary, pattern)
    assert complaint in error.value.why


@pytest.mark.parametrize("pattern, beginning",
                         [(r"[^\s\S]", ""), (r"\x04", ""), ("ab\U00040000", "ab")],
                         ids=["no-text-at-all", "no-token-for-a-byte", "no-token-later-on"])
def test_where_no_token_can_go_on_there_is_a_message(smollm2, vocabulary, pattern, beginning):
    """SmolLM2's vocabulary lacks some bytes, such as U+0004, and 0xF1,
    with which U+40000 begins."""
    grammar = TokenGrammar.from_regex(vocabulary, pattern)
    with pytest.raises(ModelError, match="no token can continue this text") as error:
        for token in smollm2.tokenizer.encode(beginning):
            grammar.advance(token)
        grammar.allowed()
    assert len(error.value.why) < 100 and "panic" not in error.value.why


@pytest.mark.parametrize("eos_ids, complaint", [
    ((), "no token that ends"), ({49152}, "49152"), ({-1, 2}, "-1")], ids=str)
def test_a_vocabulary_needs_an_end(smollm2, eos_ids, complaint):
    with pytest.raises(ModelError, match=complaint):
        GrammarVocabulary(smollm2.tokenizer, 49152, eos_ids)


def test_special_and_padding_ids_are_never_allowed_but_for_the_end(smollm2):
    """Not even where any text is; the text of a special token is written with other tokens."""
    padded = GrammarVocabulary(smollm2.tokenizer, 49_200, {0, 2})
    anything = TokenGrammar.from_regex(padded, r"(.|\n)*")
    special = {token.id for token in smollm2.tokenizer.vocabulary.added_tokens if token.special}
    allowed = {*np.flatnonzero(anything.allowed()).tolist()}
    assert (len(special) > 2 and allowed & special == {0, 2} and max(allowed) < 49_152
            and len(allowed) > 48_000)
    first = smollm2.tokenizer.token_to_id("<|im_start|>")
    assert not TokenGrammar.from_regex(padded, r"<\|im_start\|>").allowed()[first]


def test_a_form_that_the_limit_cuts_off_ends_by_length(smollm2, vocabulary):
    """And `logprobs` are the model's own, not those of the mask."""
    asked = {"prompt": "Numbers:", "top_logprobs": 2}
    cut = smollm2.generate(**asked, grammar=TokenGrammar.from_regex(vocabulary, "[0-9]{30}"),
                           max_tokens=5)
    assert cut.finish_reason == "length" and re.fullmatch("[0-9]{5}", cut.text)
    assert cut.logprobs[0].top == smollm2.generate(**asked, max_tokens=1).logprobs[0].top
    whole = smollm2.generate(**asked, grammar=TokenGrammar.from_regex(vocabulary, "[0-9]{3}"),
                             max_tokens=5)
    assert whole.finish_reason == "stop" and len(whole.ids) == len(whole.logprobs) == 3
    likely = SamplingParams(logit_bias={smollm2.tokenizer.encode("ab")[0]: 100.0})
    stopped = smollm2.generate(**asked,
                               grammar=TokenGrammar.from_regex(vocabulary, "a+b[0-9]{3}"),
                               max_tokens=9, stop=["b"], params=likely)
    assert stopped.finish_reason == "stop" and re.fullmatch("a+", stopped.text)

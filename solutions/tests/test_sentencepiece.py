"""SentencePiece vocabularies, trained here by the `tokenizers` library, against it.
About 40 s."""

import copy
import json
import random
import re
import unicodedata

import httpx
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import ADDED, ADDED_TEXTS, from_hf, random_texts
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM

from gearworks.errors import FormatError, ModelError
from gearworks.language_model import LanguageModel
from gearworks.sampling import SamplingParams
from gearworks.structured import GrammarVocabulary, TokenGrammar
from gearworks.sentencepiece import AnyTokenizer
from gearworks.tokenizer import IncrementalDetokenizer, Tokenizer
from gearworks.vocabularies.charsmap import CharsMap
from gearworks.vocabularies.vocabulary import (read_vocabulary, tokenizer_config_from_gguf,
                                               tokenizer_json_from_gguf)

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SIGNS = ("▁", "▁▁", " ▁ ", "▁a ", "<0x41>", "<0xe4>", "<unk>", "\ufb01", "\u2460 ", "``x''",
         "e\u0301", "\r\n", "Ⅷ", "ﷺ", "\u200b", "x  y   z", "<s>", "</s>")


def as_table(spelled: dict[str, str]) -> bytes:
    """SentencePiece's table of characters: a double array over UTF-8, then the texts."""
    texts, trie = b"", {}
    for key, value in spelled.items():
        node = trie
        for byte in key.encode("utf-8"):
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += value.encode("utf-8") + b"\0"
    units, taken = {}, {0}

    def lay(node: dict, place: int, label: int) -> None:
        base = next(base for base in range(1, 1 << 20)
                    if not taken & {base ^ byte for byte in node})
        taken.update(base ^ byte for byte in node)
        units[place] = (base ^ place) << 10 | label | (0 in node) << 8
        for byte, child in node.items():
            if byte:
                lay(child, base ^ byte, byte)
            else:
                units[base] = 1 << 31 | child

    lay(trie, 0, 0)
    array = [units.get(place, 0) for place in range((max(units) | 255) + 1)]
    return (len(array) * 4).to_bytes(4, "little") + b"".join(
        unit.to_bytes(4, "little") for unit in array) + texts


SPELLED = {"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u200b": "", "\ufeff": "",
           "e\u0301": "é", "\u0915\u093c": "\u0958", "``": '"', "\u1100\u1161": "\uac00"}
SPELLED |= {character: unicodedata.normalize("NFKC", character)
            for character in "ﬁﬂ①②⑩½¼Ⅷ²㊿ｱｶﾞＡＢｚ…™ﷺ"}
TABLE = as_table(SPELLED)

LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
GEMMA = normalizers.Replace(" ", "▁")
READ_BYTES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
READ_LLAMA = decoders.Sequence([*READ_BYTES, decoders.Strip(" ", 1, 0)])
READ_GEMMA = decoders.Sequence(READ_BYTES)
SQUEEZED = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")

# name -> model, normalizer, pre-tokenizer, decoder, whether all bytes are tokens
SET_UPS = {
    "llama": ("BPE", LLAMA, None, READ_LLAMA, True),
    "llama, some bytes": ("BPE", LLAMA, None, READ_LLAMA, False),
    "gemma": ("BPE", GEMMA, pre_tokenizers.Split(" ", "merged_with_previous"), READ_GEMMA,
              True),
    "first": ("BPE", None, pre_tokenizers.Metaspace("▁", "first", False), READ_LLAMA, True),
    "first, words": ("BPE", normalizers.NFC(), pre_tokenizers.Metaspace("▁", "first", True),
                     decoders.Metaspace("▁", "first"), True),
    "never": ("BPE", normalizers.NFKC(), pre_tokenizers.Metaspace("▁", "never", False),
              decoders.Metaspace("▁", "never"), True),
    "t5": ("Unigram", normalizers.Sequence([normalizers.Precompiled(TABLE), SQUEEZED]),
           pre_tokenizers.Metaspace("▁", "always", True), decoders.Metaspace("▁", "always"),
           False),
    "old t5": ("Unigram", normalizers.Precompiled(TABLE),
               pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                        pre_tokenizers.Metaspace("▁", "always", True)]),
               decoders.Metaspace("▁", "always"), False),
    "albert": ("Unigram", normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Strip(True, True), normalizers.NFKD(),
        normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), "")]),
        pre_tokenizers.Metaspace("▁", "always", False), decoders.Metaspace("▁", "always"),
        False),
    "unigram, bytes": ("Unigram", LLAMA, None, READ_LLAMA, True),
    "unigram, signs last": ("Unigram", normalizers.Sequence([
        normalizers.Replace(tokenizers.Regex(r"[\u00AD\u200B\u0301]"), ""),
        normalizers.Replace(tokenizers.Regex(r"\p{Zs}"), " "), normalizers.NFC()]),
        pre_tokenizers.Metaspace("▁", "always", True), decoders.Sequence([
            decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "),
            decoders.Strip(" ", 1, 0)]), True),
}
_trained: dict[str, tokenizers.Tokenizer] = {}


def train(name: str) -> tokenizers.Tokenizer:
    if name in _trained:
        return _trained[name]
    kind, normalizer, pre_tokenizer, decoder, all_bytes = SET_UPS[name]
    # Unigram wants every character of its texts as a piece
    corpus = random_texts(300 if kind == "BPE" else 40, 5)
    corpus += ["hello world, the  engine reads text. " * 3] * 40
    specials = ["<unk>", "<s>", "</s>", *(BYTES if all_bytes else BYTES[:0x80])]
    if kind == "BPE":
        hf = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=name != "first",
                                             byte_fallback=True))
        trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=specials,
                                      show_progress=False, limit_alphabet=300)
    else:
        hf = tokenizers.Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=1000, special_tokens=specials,
                                          unk_token="<unk>", show_progress=False)
    if normalizer is not None:
        hf.normalizer = normalizer
    if pre_tokenizer is not None:
        hf.pre_tokenizer = pre_tokenizer
    hf.decoder = decoder
    hf.train_from_iterator(corpus, trainer)
    # byte tokens are ordinary tokens, and not found in a text
    saved = json.loads(hf.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"]
                             if not token["content"].startswith("<0x")]
    if kind == "Unigram":
        saved["model"]["byte_fallback"] = all_bytes
    hf = tokenizers.Tokenizer.from_str(json.dumps(saved))
    # stripping leaves nothing of a token of white space, which the library then finds anywhere
    hf.add_tokens([token for token in ADDED if name != "albert" or token.content.strip()])
    hf.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    _trained[name] = hf
    return hf


def ids_of(hf: tokenizers.Tokenizer, text: str) -> list[int] | None:
    """None where the library stops the program: it counts bytes where it means characters."""
    try:
        return hf.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        if "char boundary" in str(error):
            return None
        raise


def assert_same_text(ours: Tokenizer, hf: tokenizers.Tokenizer, ids: list[int],
                     skip_special: bool) -> None:
    if skip_special:        # the library reads a special token that normalizing has changed
        ids = [id for id in ids if id != ours.token_to_id("Word")]
    assert ours.decode(ids, skip_special) == hf.decode(
        ids, skip_special_tokens=skip_special), ids


@pytest.mark.parametrize("name", SET_UPS)
def test_ids_and_texts_equal_hf(name):
    hf = train(name)
    ours = from_hf(hf)
    texts = random_texts(1500, 31, (*ADDED_TEXTS, *SIGNS)) + [*SIGNS, "", " ", "  ", "<s> a"]
    for parse_special in (True, False):
        hf.encode_special_tokens = not parse_special
        for text in texts:
            theirs = ids_of(hf, text)
            if theirs is None:
                continue
            assert ours.encode(text, parse_special=parse_special) == theirs, (
                parse_special, ascii(text[:200]))
            for skip_special in (False, True):
                assert_same_text(ours, hf, theirs, skip_special)
    hf.encode_special_tokens = False
    assert ours.encode("hello", add_special_tokens=True) == hf.encode("hello").ids


@pytest.mark.parametrize("name", SET_UPS)
def test_any_ids_read_as_hf_reads_them(name):
    hf = train(name)
    ours, rng = from_hf(hf), random.Random(32)
    for _ in range(2000):
        ids = rng.choices(range(rng.choice([259, ours.vocab_size, ours.vocab_size + 9])),
                          k=rng.randrange(12))
        for skip_special in (False, True):
            assert_same_text(ours, hf, ids, skip_special)


@pytest.mark.parametrize("name", ["llama", "gemma", "t5"])
@pytest.mark.parametrize("seed", range(2))
def test_other_merges_and_scores_equal_hf(name, seed):
    """Training lists parts before wholes, and spreads its scores; the rules need neither."""
    rng = random.Random(seed)
    saved = json.loads(train(name).to_str())
    if name == "t5":
        for piece in saved["model"]["vocab"][3:]:
            piece[1] = -float(rng.randrange(1, 5))
    else:
        merges = saved["model"]["merges"]
        saved["model"]["merges"] = rng.sample(merges, len(merges) * 2 // 3)
    hf = tokenizers.Tokenizer.from_str(json.dumps(saved))
    ours = AnyTokenizer.from_json(saved)
    for text in random_texts(500, seed, (*ADDED_TEXTS, *SIGNS)):
        assert ours.encode(text) == hf.encode(text, add_special_tokens=False).ids, ascii(text)


def test_merges_may_cross_spaces():
    """Words are cut apart only where no merge could join them."""
    saved = json.loads(train("llama").to_str())
    del saved["added_tokens"][3:]                   # the library would number them anew
    vocab = saved["model"]["vocab"]
    crossing = sorted({(left, right) for left in ("e", "d", "▁", "o") for right in ("▁", "▁t")
                       if {left, right} <= vocab.keys()})
    for left, right in crossing:
        vocab.setdefault(left + right, len(vocab))
    saved["model"]["merges"] = [*map(list, crossing), *saved["model"]["merges"]]
    hf = tokenizers.Tokenizer.from_str(json.dumps(saved))
    ours = AnyTokenizer.from_json(saved)
    assert len(crossing) > 5
    rng = random.Random(3)
    for _ in range(800):
        text = "".join(rng.choices(["the", " ", "  ", "e", "d t", "world ", "o", "▁"], k=12))
        assert ours.encode(text) == hf.encode(text, add_special_tokens=False).ids, text


# --- the table of characters


@settings(deadline=None)
@given(st.lists(st.sampled_from([*SPELLED, "a", "e", "\u0301", "\u0327", "क", "\r\n", "가",
                                 "🙂", "\u200d", "fi", " "])))
def test_texts_are_spelled_as_by_hf(parts):
    text = "".join(parts)
    assert CharsMap(TABLE)(text) == normalizers.Precompiled(TABLE).normalize_str(text)


def test_a_table_that_changes_ascii():
    table = as_table({"A": "a", "B": "", "ab": "x", "é": "e"})
    for text in ("ABBA cab é", "A", "BB", "zAz\r\nB"):
        assert CharsMap(table)(text) == normalizers.Precompiled(table).normalize_str(text)


def test_damaged_tables_are_refused():
    text = "a\tﬁ①e\u0301ｱ\u3000"
    rng = random.Random(4)
    for size in range(0, len(TABLE), 97):
        try:
            CharsMap(TABLE[:size])(text)
        except FormatError as error:
            assert "precompiled_charsmap" in error.why
    for _ in range(300):
        damaged = bytearray(TABLE)
        for _ in range(20):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            CharsMap(bytes(damaged))(text)
        except FormatError as error:
            assert "precompiled_charsmap" in error.why


# --- reading: by hand


SMALL = {
    "added_tokens": [{"id": 0, "content": "<unk>", "special": True},
                     {"id": 1, "content": "<s>", "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                  {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
              "vocab": {"<unk>": 0, "<s>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4, "a": 5, "b": 6,
                        "ab": 7, "▁ab": 8}, "merges": ["a b", "▁ ab"]}}
UNIGRAM = {
    "added_tokens": [], "normalizer": None, "post_processor": None,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "model": {"type": "Unigram", "unk_id": 0,
              "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["▁a", -2.5], ["b", -4.0]]}}


def test_small_vocabularies_by_hand():
    tokenizer = AnyTokenizer.from_json(SMALL)
    assert tokenizer.encode("ab é", add_special_tokens=True) == [1, 8, 4, 2, 3]
    assert tokenizer.encode("ab中中b") == [8, 0, 6], "two unknown ones are one"
    assert tokenizer.decode([1, 8, 4, 2, 3]) == "<s> ab é"
    assert tokenizer.decode([8, 4, 2, 3]) == "ab é", "the first space was not in the text"
    assert tokenizer.decode([2, 8, 2, 3, 3]) == "\ufffd ab\ufffd\ufffd\ufffd"
    assert tokenizer.token_bytes(8) == b" ab" and tokenizer.token_bytes(3) == b"\xa9"
    assert tokenizer.token_to_id("▁ab") == 8 and tokenizer.vocab_size == 9
    assert tokenizer.encode_bytes(b"ab \xc3") == [7, 4, 2]
    for data in (b"\xff", "▁".encode(), "中".encode()):
        with pytest.raises(ModelError, match="cannot encode"):
            tokenizer.encode_bytes(data)

    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [*map(detokenizer.push, [8, 2, 3, 8]), detokenizer.flush()] == [
        " ab", "", "é", " ab", ""]

    tokenizer = AnyTokenizer.from_json(UNIGRAM)
    assert tokenizer.encode("a b") == [3, 1, 4]
    assert tokenizer.encode("xya") == [1, 0, 2]
    assert tokenizer.decode([3, 1, 4]) == "a b"


def edited(document, *path, value):
    document = copy.deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize("document, reason", [
    (edited(SMALL, "model", "type", value="WordLevel"), "WordLevel"),
    (edited(SMALL, "model", "dropout", value=0.1), "dropout"),
    (edited(SMALL, "model", "merges", value=["a c"]), "'c'"),
    (edited(SMALL, "model", "unk_token", value="<none>"), "<none>"),
    (edited(SMALL, "normalizer", "normalizers", 0, value={"type": "Lowercase"}),
     "Lowercase"),
    (edited(SMALL, "normalizer", "normalizers", 1, "pattern", value={"Regex": "(a+)+b"}),
     r"\(a\+\)\+b"),
    (edited(SMALL, "normalizer", "normalizers", 1, "pattern", value={"String": ""}), "pattern"),
    (edited(SMALL, "normalizer", value={"type": "Precompiled", "precompiled_charsmap": "é"}),
     "base 64"),
    (edited(SMALL, "normalizer", value={"type": "Precompiled", "precompiled_charsmap": "AAA="}),
     "cut off"),
    (edited(SMALL, "pre_tokenizer", value={"type": "Punctuation"}), "Punctuation"),
    (edited(SMALL, "decoder", value=None), "its decoder is None"),
    (edited(SMALL, "decoder", "decoders", 3, "stop", value=2), "first spaces"),
    (edited(SMALL, "decoder", "decoders", 3, "start", value=-1), "-1"),
    (edited(SMALL, "decoder", "decoders", 2, value={"type": "WordPiece"}), "decoder"),
    (edited(UNIGRAM, "pre_tokenizer", "replacement", value="_"), "'_'"),
    (edited(UNIGRAM, "pre_tokenizer", "prepend_scheme", value="last"), "last"),
    (edited(UNIGRAM, "model", "unk_id", value=None), "unk_id"),
    (edited(UNIGRAM, "model", "unk_id", value=9), "unk_id is 9"),
    (edited(UNIGRAM, "model", "vocab", value=[]), "no pieces"),
    (edited(UNIGRAM, "model", "vocab", 1, value=["▁", float("nan")]), "a text and a score"),
    (edited(UNIGRAM, "model", "vocab", 1, value=["a", 0.0]), "twice"),
    (edited(UNIGRAM, "model", "vocab", 1, value="▁"), "a text and a score")])
def test_what_is_not_supported_is_named(document, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        read_vocabulary(document)
    assert caught.value.hint


def test_random_damage_is_read_or_refused():
    rng = random.Random(12)
    for _ in range(1500):
        swapped = copy.deepcopy(rng.choice([SMALL, UNIGRAM]))
        place, key = swapped, rng.choice([*swapped])
        while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
            place = place[key]
            key = rng.choice([*place] if isinstance(place, dict) else range(len(place)))
        place[key] = rng.choice([None, 0, -1, 2**70, 1.5, True, "", "a", "▁", [], {}, [[]],
                                 [{}], {"type": "NFC"}, "<s>", "AAAA"])
        try:
            tokenizer = AnyTokenizer.from_json(swapped)
            tokenizer.decode(tokenizer.encode("ab <s>a é", add_special_tokens=True))
        except FormatError:
            pass


# --- GGUF


def as_gguf(name: str) -> dict:
    """The metadata that llama.cpp's converter writes for such a vocabulary."""
    hf = train(name)
    saved = json.loads(hf.to_str())
    vocab = saved["model"]["vocab"]
    pieces = ([piece for piece, _ in vocab] if isinstance(vocab, list)
              else sorted(vocab, key=vocab.get))
    scores = ([score for _, score in vocab] if isinstance(vocab, list)
              else [0.0] * 259 + [-float(rank) for rank in range(len(pieces) - 259)])
    kinds = [2, 3, 3] + [6 if piece in BYTES else 1 for piece in pieces[3:]]
    return {"tokenizer.ggml.model": "t5" if isinstance(vocab, list) else "llama",
            "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}


@pytest.mark.parametrize("name, more", [
    ("llama", {}), ("gemma", {"add_space_prefix": False, "add_bos_token": False}),
    ("t5", {"precompiled_charsmap": [*TABLE], "remove_extra_whitespaces": True,
            "add_space_prefix": True}),
    ("t5", {"precompiled_charsmap": [*TABLE]}), ("albert", {"add_space_prefix": True}),
    ("unigram, bytes", {"add_space_prefix": True, "add_eos_token": False})])
def test_what_gguf_gives_loads_in_the_library(name, more):
    metadata = as_gguf(name) | {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    made = tokenizer_json_from_gguf(metadata)
    hf, ours = tokenizers.Tokenizer.from_str(json.dumps(made)), AnyTokenizer.from_gguf(metadata)
    for text in random_texts(700, 33, SIGNS):
        ids = hf.encode(text).ids
        assert ours.encode(text, add_special_tokens=True) == ids, ascii(text)
        assert ours.decode(ids, skip_special=True) == hf.decode(ids), ascii(text)
    config = tokenizer_config_from_gguf(metadata)
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == (
        "<s>", "</s>", "<unk>")
    assert config["add_bos_token"] == (name == "llama")


@pytest.mark.parametrize("key, value, reason", [
    ("scores", None, "scores"), ("scores", [0.0], "scores"), ("scores", ["x"], "scores"),
    ("scores", [float("nan")] * 5, "finite"), ("token_type", [1], "token types"),
    ("unknown_token_id", 77, "77"), ("add_space_prefix", 3, "add_space_prefix"),
    ("tokens", ["▁"] * 5, "two ids")])
def test_damaged_gguf_vocabularies_are_refused(key, value, reason):
    good = {"tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "▁", "a", "▁a"],
            "tokenizer.ggml.scores": [0.0, 0.0, -2.0, -3.0, -1.0],
            "tokenizer.ggml.token_type": [2, 3, 1, 1, 1], "tokenizer.ggml.bos_token_id": 1}
    assert AnyTokenizer.from_gguf(good).encode("a a", add_special_tokens=True) == [1, 4, 4]
    with pytest.raises(FormatError, match=reason):
        AnyTokenizer.from_gguf(good | {f"tokenizer.ggml.{key}": value})


# --- a model that speaks it


TEMPLATE = "{% for m in messages %}{{ bos_token }}[{{ m.role }}] {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tiny_llama):
    hf = train("llama")
    _, folder = tiny_llama(5, vocab_size=hf.get_vocab_size())
    hf.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return LanguageModel.load(folder, chat=True)


def test_text_is_generated_as_by_hf(model, folder):
    """A text that goes on from a prompt keeps its first space."""
    hf = train("llama")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt in ("hello world", "the 中🙂 engine", " x"):
        ids = hf.encode(prompt).ids[:-1]                # without the end
        made = theirs.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False,
                               eos_token_id=2, pad_token_id=0)[0].tolist()
        pieces: list[str] = []
        ours = model.generate(ids_as_prompt(model, ids, prompt), max_tokens=24,
                              add_special_tokens=False, on_text=pieces.append)
        assert ours.ids == [id for id in made[len(ids):] if id != 2]
        assert "".join(pieces) == ours.text
        data = model.tokenizer.decode_bytes(ours.ids, skip_special=True)
        assert ours.text == data.decode("utf-8", "replace")


def ids_as_prompt(model, ids, prompt):
    assert model.tokenizer.encode("<s>" + prompt) == ids
    return "<s>" + prompt


def test_a_grammar_sees_what_tokens_read(model):
    vocabulary = GrammarVocabulary(model.tokenizer, model.model.config.vocab_size,
                                   model.eos_ids)
    for pattern in (" ?[a-z]{2,5} [a-z]{2,4}( [0-9])?", "é{2}中", "[ab ]{8}"):
        made = model.generate("hello", max_tokens=40, params=SamplingParams(temperature=1.0),
                              grammar=TokenGrammar.from_regex(vocabulary, pattern))
        assert made.finish_reason == "stop" and re.fullmatch(pattern, made.text)


def test_it_is_served(model, served):
    body = {"messages": [{"role": "user", "content": "hello the  world"}], "max_tokens": 24,
            "temperature": 0, "logprobs": True}
    alone = model.chat(body["messages"], max_tokens=24)
    with served(model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        whole = client.post("/v1/chat/completions", json=body).json()["choices"][0]
        lines = client.post("/v1/chat/completions", json=body | {"stream": True}).text
        prompt = {"prompt": "hello the", "max_tokens": 6, "temperature": 0, "echo": True,
                  "logprobs": 0}
        completion = client.post("/v1/completions", json=prompt).json()["choices"][0]
    assert whole["message"]["content"] == alone.text
    data = b"".join(bytes(entry["bytes"]) for entry in whole["logprobs"]["content"])
    assert data.decode("utf-8", "replace") == alone.text
    chunks = [json.loads(line[6:]) for line in lines.splitlines()
              if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or ""
                   for chunk in chunks) == alone.text
    assert completion["text"].startswith("hello the")
    offsets = completion["logprobs"]["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0

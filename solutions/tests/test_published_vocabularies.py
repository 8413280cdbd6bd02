"""Vocabularies as they were published, SentencePiece's and byte-level ones, against the
`tokenizers` library. About two minutes, and 100 MB to fetch at first."""

import base64
import json
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from published import published
from test_tokenizer import random_texts
from tokenizers import decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import SpmConverter, bytes_to_unicode
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model

from gearworks.language_model import LanguageModel
from gearworks.layers import softmax
from gearworks.sentencepiece import AnyTokenizer
from gearworks.tokenizer import IncrementalDetokenizer, Tokenizer
from gearworks.vocabularies.vocabulary import tokenizer_json_from_gguf

SIGNS = ("▁", "▁▁", " ▁ ", "▁a ", "  ", "<0x41>", "<0xE4>", "<unk>", "[INST]", "</s>", "<s>")


class Both:
    """One vocabulary as our tokenizer and as the library's."""

    def __init__(self, ours: Tokenizer, theirs: tokenizers.Tokenizer):
        self.ours, self.theirs = ours, theirs
        added = [token.content for token in ours.vocabulary.added_tokens]
        self.added = tuple(random.Random(1).sample(added, min(20, len(added))))
        if (rules := ours.vocabulary.sentencepiece) is not None and rules.scores is not None:
            # of a language that random texts do not speak
            self.added += tuple(piece.replace("▁", " ") for piece in random.Random(2).sample(
                sorted(rules.scores), 300))

    def texts(self, count: int, seed: int) -> list[str]:
        return random_texts(count, seed, extra=(*SIGNS, *self.added))


def both_of_file(path: Path) -> Both:
    return Both(AnyTokenizer.from_file(path), tokenizers.Tokenizer.from_file(str(path)))


def sentencepiece_proto(name: str) -> sentencepiece_model.ModelProto:
    proto = sentencepiece_model.ModelProto()
    proto.ParseFromString((published("mistral") / name).read_bytes())
    return proto


def as_gguf(proto: sentencepiece_model.ModelProto) -> dict:
    """The metadata that llama.cpp's converter writes."""
    return {"tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [piece.piece for piece in proto.pieces],
            "tokenizer.ggml.scores": [piece.score for piece in proto.pieces],
            "tokenizer.ggml.token_type": [piece.type for piece in proto.pieces],
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_space_prefix": proto.normalizer_spec.add_dummy_prefix}


def mistral(name: str) -> Both:
    """Ours from a GGUF file's metadata, the library's as transformers makes it."""
    proto = sentencepiece_proto(name)
    vocab = {piece.piece: id for id, piece in enumerate(proto.pieces)}
    theirs = SpmConverter.build_tokenizer_from_spm_proto(proto, vocab, legacy=True)
    theirs.add_special_tokens([tokenizers.AddedToken(piece.piece, normalized=False)
                               for piece in proto.pieces if piece.type in (2, 3)])
    return Both(AnyTokenizer.from_gguf(as_gguf(proto)), theirs)


def mistral_nemo() -> Both:
    """A list of tokens in the order of their ranks: every way to make one is a merge."""
    data = json.loads((published("mistral") / "tekken_240718.json").read_text("utf-8"))
    config = data["config"]
    reserved = config["default_num_special_tokens"]
    tokens = [base64.b64decode(entry["token_bytes"])
              for entry in data["vocab"][:config["default_vocab_size"] - reserved]]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    ways = [(rank, ranks[token[:cut]], ranks[token[cut:]], token[:cut], token[cut:])
            for token, rank in ranks.items() for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks]
    characters = bytes_to_unicode()

    def written(token: bytes) -> str:
        return "".join(map(characters.get, token))

    hf = tokenizers.Tokenizer(models.BPE(
        vocab={f"<reserved {id}>": id for id in range(reserved)}
        | {written(token): reserved + rank for token, rank in ranks.items()},
        merges=[(written(left), written(right)) for *_, left, right in sorted(ways)],
        ignore_merges=True))
    hf.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(config["pattern"]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens(["<reserved 1>", "<reserved 2>"])
    return Both(AnyTokenizer.from_json(json.loads(hf.to_str())), hf)


VOCABULARIES = {
    "llama-2": lambda: both_of_file(published("llama-2") / "tokenizer.json"),
    "gemma-3": lambda: both_of_file(published("gemma-3") / "tokenizer.json"),
    "mon": lambda: both_of_file(published("mon") / "mon_tokenizer.json"),
    "mistral-v1": lambda: mistral("tokenizer.model.v1"),
    "deepseek-v3": lambda: both_of_file(published("deepseek-v3") / "tokenizer.json"),
    "gpt-oss": lambda: both_of_file(published("gpt-oss") / "tokenizer.json"),
    "mistral-nemo": mistral_nemo,
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def both(request) -> Both:
    """The same vocabulary twice."""
    return VOCABULARIES[request.param]()


def test_ids_and_texts_equal_hf(both):
    texts = both.texts(2400, seed=21)
    assert len({*texts}) > 2000
    for parse_special in (True, False):
        both.theirs.encode_special_tokens = not parse_special
        theirs = both.theirs.encode_batch(texts, add_special_tokens=False)
        for text, encoding in zip(texts, theirs, strict=True):
            ids = both.ours.encode(text, parse_special=parse_special)
            assert ids == encoding.ids, (parse_special, ascii(text[:200]))
            for skip_special in (False, True):
                assert both.ours.decode(ids, skip_special) == both.theirs.decode(
                    ids, skip_special_tokens=skip_special), ascii(text[:200])
    both.theirs.encode_special_tokens = False


def test_any_ids_read_as_hf_reads_them(both):
    rng = random.Random(22)
    rows = both.ours.vocab_size
    odd = [id for id in range(rows) if len(both.ours.decode_bytes([id])) < 2]
    for _ in range(3000):
        ids = rng.choices(rng.choice([range(rows), odd, range(rows + 50)]),
                          k=rng.randrange(20))
        for skip_special in (False, True):
            assert both.ours.decode(ids, skip_special) == both.theirs.decode(
                ids, skip_special_tokens=skip_special), ids


def test_what_goes_on_keeps_its_spaces(both):
    """Streamed text goes on from the prompt: together they read as the whole."""
    for text in both.texts(400, seed=23):
        ids = both.ours.encode(text, parse_special=False)
        for cut in {len(ids) // 2, 1} if len(ids) > 1 else ():
            detokenizer = IncrementalDetokenizer(both.ours)
            streamed = "".join(map(detokenizer.push, ids[cut:])) + detokenizer.flush()
            assert streamed == both.ours.decode_bytes(ids[cut:]).decode("utf-8", "replace")
            if "\ufffd" not in streamed + both.ours.decode(ids[:cut]):
                assert both.ours.decode(ids[:cut]) + streamed == both.ours.decode(ids)


def test_bytes_come_back(both):
    rng = random.Random(24)
    for data in [b"", bytes(range(256)), b" a", "▁ a▁".encode(), b"\xff\xfe\xe2\x96",
                 *(rng.randbytes(rng.randrange(40)) for _ in range(300)),
                 *(text.encode("utf-8") for text in both.texts(300, seed=25))]:
        assert both.ours.decode_bytes(both.ours.encode_bytes(data)) == data


@pytest.mark.parametrize("name", ["tokenizer.model.v1",
                                  "mistral_instruct_tokenizer_240216.model.v2",
                                  "mistral_instruct_tokenizer_240323.model.v3",
                                  "mistral_instruct_tokenizer_241114.model.v7"])
def test_what_gguf_gives_loads_in_the_library(name):
    metadata = as_gguf(sentencepiece_proto(name))
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json_from_gguf(metadata)))
    ours = AnyTokenizer.from_gguf(metadata)
    for text in random_texts(700, 26, extra=SIGNS):
        ids = theirs.encode(text).ids
        assert ours.encode(text, add_special_tokens=True) == ids, ascii(text)


def test_merges_of_scores_are_those_that_llama_2_was_published_with():
    """Its tokenizer.json has a list of merges, its GGUF files have scores alone."""
    data = json.loads((published("llama-2") / "tokenizer.json").read_text("utf-8"))["model"]
    pieces = sorted(data["vocab"], key=data["vocab"].get)
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259)
    # the order of ids is that of scores, but for runs of spaces, which come last
    scores = [-1e9 if piece.strip("▁") == "" else -float(rank)
              for rank, piece in enumerate(pieces)]
    made = tokenizer_json_from_gguf({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores})
    assert [" ".join(merge) for merge in made["model"]["merges"]] == data["merges"]


@pytest.mark.parametrize("unit", ["a", "ab", "word ", "中", " ", "\n ", "🙂", "▁", "\x00"])
def test_a_long_text_costs_no_more_than_it_is_long(unit):
    """Look-ups per character, of a text with and without words."""
    class Counted(dict):
        lookups = 0

        def get(self, *arguments):
            self.lookups += 1
            return super().get(*arguments)

    tokenizer = both_of_file(published("llama-2") / "tokenizer.json").ours
    costs = []
    for length in (4_000, 16_000):
        tokenizer.vocabulary.__dict__["merges"] = counted = Counted(tokenizer.vocabulary.merges)
        tokenizer.encode(unit * (length // len(unit)))
        costs.append(counted.lookups / length)
    assert costs[1] < 1.1 * costs[0] + 0.1 and costs[1] < 20


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> Path:
    """Gemma 3 270M, one GGUF file in four bits and more."""
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    with open(path, "wb") as file:
        for part in range(1, 5):
            chunk, = published(f"gemma-3-270m-part{part}").iterdir()
            file.write(chunk.read_bytes())
    return path


@pytest.mark.long
def test_a_real_model_talks(gemma):
    """Its ids are those of the published tokenizer.json."""
    model = LanguageModel.load(gemma)
    theirs = tokenizers.Tokenizer.from_file(str(published("gemma-3") / "tokenizer.json"))
    for text in random_texts(2400, 27):
        ids = theirs.encode(text).ids
        assert model.tokenizer.encode(text, add_special_tokens=True) == ids, ascii(text)
    pieces: list[str] = []
    made = model.generate("one, two, three, four, five,", max_tokens=6, on_text=pieces.append)
    assert made.text.startswith(" six, seven, eight") and "".join(pieces) == made.text


@pytest.mark.long
def test_a_real_model_runs_in_the_bits_of_its_file(gemma):
    """The compiled engine beside NumPy's: exact but for rounding, fast by its divergence."""
    pytest.importorskip("numba")
    from gearworks.kernels.cpu.model import CompiledModel
    plain = LanguageModel.load(gemma)
    ids = np.array(plain.tokenizer.encode(__doc__ + Path(__file__).read_text("utf-8"),
                                          add_special_tokens=True))[:300]

    def logits(model) -> np.ndarray:
        found = model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))
        return np.array(found, np.float64)
    expected = logits(plain.model)
    exact, fast = (logits(CompiledModel.load(gemma, mode)) for mode in ("exact", "fast"))
    np.testing.assert_allclose(exact, expected, rtol=0, atol=5e-4)
    p, q = softmax(exact), softmax(fast)
    assert (p * (np.log(p) - np.log(q))).sum(axis=-1).mean() < 0.01
    assert (exact.argmax(axis=-1) == fast.argmax(axis=-1)).mean() > 0.94

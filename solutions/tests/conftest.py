"""What the tests share: the real SmolLM2,
and tiny random models that Hugging Face makes on the spot.

`pytest solutions/tests --engine my_engine` runs them on an engine that `autograder assemble`
has made. Then they ask for what every right engine does. An engine's errors have words of their
own: what `pytest.raises` is to match is not looked at. A test of what the reference alone
promises is marked `reference`, with what that is, and is left out.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:                       # no engine is loaded before --engine has said which one
    from gearworks.language_model import LanguageModel
    from gearworks.tokenizer import Tokenizer


def pytest_addoption(parser):
    parser.addoption("--engine", type=Path, metavar="FOLDER",
                     help="test this engine instead of the reference")
    parser.addoption("--soak", type=int, default=1000, metavar="REQUESTS",
                     help="how many requests the server is soaked with")


def pytest_configure(config):
    config.addinivalue_line("markers", "reference(promise): what the reference alone promises, "
                            "such as the words of an error; left out with --engine")
    engine = config.getoption("--engine")
    if engine is None:
        return
    if not (engine / "gears.json").is_file():
        raise pytest.UsageError(f"there is no engine in {engine}: autograder assemble chapters "
                                f"--to {engine}")
    if "gearworks" in sys.modules:
        raise pytest.UsageError("--engine comes too late: gearworks is loaded already")
    path = str(engine.resolve())
    sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None,
                                                      [path, os.environ.get("PYTHONPATH")]))
    pytest.raises = raises_in_any_words


def raises_in_any_words(expected, *arguments, match=None, _raises=pytest.raises, **named):
    """`pytest.raises`, but for the words of the error."""
    return _raises(expected, *arguments, **named)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--engine") is None:
        return
    of_the_reference = [item for item in items if item.get_closest_marker("reference")]
    items[:] = [item for item in items if item not in of_the_reference]
    config.hook.pytest_deselected(items=of_the_reference)


def pytest_report_header(config):
    engine = config.getoption("--engine")
    return f"engine: {engine}" if engine is not None else None


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct.Q4_1.gguf."""
    from gearworks import hub
    return hub.smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The same model as a Hugging Face folder."""
    from gearworks import hub
    return hub.smollm2_folder()


@pytest.fixture(scope="session")
def smollm2(smollm2_folder) -> LanguageModel:
    """The same model in our engine."""
    from gearworks.language_model import LanguageModel
    return LanguageModel.load(smollm2_folder)


@pytest.fixture(scope="session")
def hf_smollm2(smollm2_folder):
    """The same model in Hugging Face's."""
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Callable:
    """A function that makes a random model of a family:
    tiny_model("Llama", seed, **config) -> (HF model, folder).

    The family is the beginning of the names of its classes in transformers. The weights are
    large and the norms are not ones, so that a wrong formula shows in the logits.
    """
    import torch
    import transformers

    sizes = {"vocab_size": 211, "hidden_size": 48, "intermediate_size": 80,
             "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
             "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
    own = {"Gemma2": {"head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 9,
                      "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
           "Gemma3": {"head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 9},
           "GPT2": {"vocab_size": 211, "n_embd": 48, "n_layer": 3, "n_head": 6,
                    "n_positions": 256},
           "Phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                        "partial_rotary_factor": 0.75}},
           "GptOss": {"head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2,
                      "sliding_window": 9, "rope_parameters": {
                          "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                          "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False,
                          "original_max_position_embeddings": 64}},
           "SmolLM3": {"no_rope_layer_interval": 2},
           "Mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
           "Qwen3Moe": {"head_dim": 10, "moe_intermediate_size": 22, "num_experts": 7,
                        "num_experts_per_tok": 3}}
    for version in ("DeepseekV2", "DeepseekV3"):
        own[version] = {"num_attention_heads": 6, "num_key_value_heads": 6,
                        "moe_intermediate_size": 22, "n_routed_experts": 12,
                        "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 4,
                        "topk_group": 2, "kv_lora_rank": 20, "q_lora_rank": 14,
                        "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8,
                        "first_k_dense_replace": 1}

    def make(family: str, seed: int, **settings):
        torch.manual_seed(seed)
        config_class = getattr(
            transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
        model_class = getattr(transformers,
                              "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
        config = config_class(**{"initializer_range": 0.15, "bos_token_id": 1,
                                 "eos_token_id": 2, "pad_token_id": None}
                              | ({} if family == "GPT2" else sizes) | own.get(family, {})
                              | settings)
        config._experts_implementation = "eager"  # the fast one takes sizes that 4 divides only
        model = model_class(config).eval()
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if family.startswith("Gemma") and "norm" in name:
                    tensor.uniform_(-0.5, 0.5)                      # counted from one
                elif "norm" in name or ".ln_" in name and name.endswith("weight"):
                    tensor.uniform_(0.5, 1.5)
                elif name.endswith((".bias", "correction_bias", "proj_bias")):
                    tensor.normal_(0, 0.3)
                elif name.endswith("sinks"):
                    tensor.normal_(0, 2)
                elif name.endswith("gate.weight"):
                    tensor.normal_(0, 0.5)          # a router of zeros would choose by its ties
        folder = tmp_path_factory.mktemp(f"tiny-{family.lower()}")
        model.save_pretrained(folder)
        return model, folder
    return make


@pytest.fixture(scope="session")
def tiny_llama(tiny_model) -> Callable:
    """A function that makes a random Llama:
    tiny_llama(seed, **config) -> (HF model, folder)."""
    return lambda seed, **settings: tiny_model("Llama", seed, **settings)


@pytest.fixture(scope="session")
def tiny_folder(tiny_llama, smollm2_folder) -> Path:
    """The folder of a random model with SmolLM2's tokenizer, which takes a moment a step."""
    _, folder = tiny_llama(3, vocab_size=49152, max_position_embeddings=2048)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (smollm2_folder / name).exists():
            shutil.copy(smollm2_folder / name, folder)
    return folder


@pytest.fixture(scope="session")
def tiny_chat(tiny_folder) -> LanguageModel:
    """That model in our engine."""
    from gearworks.language_model import LanguageModel
    return LanguageModel.load(tiny_folder)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Letters and digits, halves of characters, and words: 211 tokens, of which 2 is an end."""
    from gearworks.tokenizer import Tokenizer
    from gearworks.vocabularies.vocabulary import Vocabulary

    pieces = ["Ā", "ā", "Ă", *(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "Ã", "©", "ð",
              "Ł", "¦", "Ĭ"]
    pieces += [f"w{number}" for number in range(211 - len(pieces))]
    return Tokenizer(Vocabulary({piece: id for id, piece in enumerate(pieces)}, merges={}))


@pytest.fixture(scope="session")
def tiny(tiny_llama, tokenizer) -> LanguageModel:
    """A model of two layers with that tokenizer, and an end that comes now and then."""
    from gearworks.language_model import LanguageModel
    from gearworks.model import Model

    _, folder = tiny_llama(77, num_hidden_layers=2, hidden_size=36, intermediate_size=40)
    return LanguageModel(Model.load(folder), tokenizer, {}, frozenset([2]))


@pytest.fixture(scope="session")
def served() -> Callable:
    """A function that serves a model on a free port of this machine, in a thread:
    with served(language_model, engine={...}, patience=..., **options) as server.

    engine: keywords of LLMEngine; options: of the service. The server has its `url`, its
    `service`, the `engine`, and the `uvicorn` server.
    """
    from contextlib import contextmanager

    @contextmanager
    def serve(language_model, engine=None, patience=None, grace=5, **options):
        from gearworks.server.background import BackgroundServer
        from gearworks.serving.engine import LLMEngine

        server = BackgroundServer(LLMEngine(language_model, **engine or {}), grace=grace,
                                  patience=patience, **{"models": ("tiny",)} | options)
        with server:
            yield server
        assert not server.thread.is_alive()
    return serve


@pytest.fixture(scope="module")
def server(served, tiny_chat) -> Iterator[SimpleNamespace]:
    """A tiny model that chats, served."""
    with served(tiny_chat) as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> Iterator:
    """An HTTP client of it."""
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def smollm2_server(served, smollm2) -> Iterator[SimpleNamespace]:
    """The same model, served. requests: all that the engine was asked for, in their order."""
    with served(smollm2, models=("smollm2",)) as server:
        server.requests = []
        add_request = server.engine.add_request

        def recorded(request):
            server.requests.append(request)
            add_request(request)
        server.engine.add_request = recorded
        yield server


@pytest.fixture(scope="session")
def client_library() -> Callable:
    """A function that imports a library of the extras `clients` and `replicas`:
    client_library("openai").

    Without it the test is skipped, except where `CI` is set: there it fails.
    """
    def library(name: str):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up(f"no {error.name}: pip install -e .[clients] brings the clients of the "
                    "server's tests")
    return library


@pytest.fixture(scope="module")
def loopback_only() -> Iterator[None]:
    """What the module's tests start speaks with this machine only, without any proxy.

    An attempt to reach another one is refused, and fails the module's last test.
    """
    foreign: list[str] = []

    def watch(event: str, arguments: tuple) -> None:
        if not watching or event not in ("socket.connect", "socket.getaddrinfo"):
            return
        # an address is a pair and more, or a path of this machine
        place = arguments[1][:1] if event == "socket.connect" else arguments[:1]
        name = os.fsdecode(place[0] or "localhost") if isinstance(place, tuple) else "localhost"
        if name not in ("localhost", "::1") and not name.startswith("127."):
            foreign.append(name)
            raise ConnectionRefusedError(f"a test wants to reach {name}")

    watching = True
    sys.addaudithook(watch)                                 # it cannot be taken away again
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "*")
        yield
    watching = False
    assert not foreign


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers that differ from test to test and are the same in every run."""
    return np.random.default_rng(int.from_bytes(request.node.name.encode("utf-8"), "little"))


@pytest.fixture
def show(browser):
    """A function that opens a page with these figures;
    at the end, no page has said or fetched anything."""
    pages, said = [], []

    def open_page(*shown, host="<html lang='en'><body>", width=1280, **settings):
        page = browser.new_context(viewport={"width": width, "height": 700},
                                   **settings).new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(f"fetched {request.url}"))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.set_content(f"<!doctype html>{host}{''.join(figure.html for figure in shown)}")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert said == []


@pytest.fixture
def assert_readable() -> Callable:
    """A function that looks at a page: assert_readable(page, *about), where `about` says what
    it is. Texts have a contrast of 4.5 and 12 px, and nothing is wider than the window."""
    script = (Path(__file__).parent / "data" / "look.js").read_text(encoding="utf-8")

    def look_at(page, *about):
        texts, overflow = page.evaluate(script)
        contrast, _, text = min(texts)
        assert contrast >= 4.5, (*about, text)
        assert min(size for _, size, _ in texts) >= 12, about
        assert overflow <= 0, about
    return look_at

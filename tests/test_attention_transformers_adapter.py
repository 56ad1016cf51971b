"""What ``adapter`` assumes about the inside of transformers, a test for each assumption.

A docstring says what goes wrong in this package if the assumption no longer holds. Models here are subclasses that look
at what transformers does to them, and know nothing of this package.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from cases import run_programs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import initialization
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function
from transformers.utils import output_capturing

from rsoftmax._transformers import quiet
from rsoftmax.attention.transformers import adapter, register_attention

TEXT: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 20,
    "pad_token_id": 0,
}
IMAGE: dict[str, Any] = {**TEXT, "image_size": 32, "patch_size": 16}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 1, "head_dim": 4}
T5: dict[str, Any] = {"d_model": 8, "d_kv": 4, "num_layers": 1, "num_heads": 2, "d_ff": 8, "vocab_size": 20}
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
    "distilbert": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=20)
    ),
    "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20)),
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)),
}
WORDS = {"input_ids": torch.tensor([[3, 4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])}

every_text_model = pytest.mark.parametrize("name", [name for name in MODELS if name != "vit"])


def clip() -> Any:
    parts = {"text_config": {**TEXT, "bos_token_id": 1, "eos_token_id": 2}, "vision_config": IMAGE}
    return hf.CLIPModel(hf.CLIPConfig.from_dict(parts))


def calls_of(model: Any, name: str, *, masked: bool = True, **options: Any) -> list[dict[str, Any]]:
    """What an attention function, registered under this name, is called with by a model."""
    calls: list[dict[str, Any]] = []

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **rest: Any) -> Any:
        wanted = adapter.weights_wanted(rest)
        calls.append({"module": module, "query": query, "key": key, "mask": mask, "wanted": wanted, **rest})
        return torch.zeros_like(query).transpose(1, 2), None

    hf.AttentionInterface.register(name, attend)
    if masked:
        hf.AttentionMaskInterface.register(name, adapter.make_mask)
    model.set_attn_implementation(name)
    with torch.no_grad():
        model(**WORDS, **options)
    return calls


# ------------------------------------------------------------------------------------------- calls of attention


def test_a_function_that_is_registered_is_called_with_heads_before_words() -> None:
    """Otherwise no mapping runs, or rows of weights are taken along the wrong dimension."""
    (call,) = calls_of(MODELS["llama"](), "contract_call")
    assert call["query"].shape == (1, 2, 4, 4)
    assert call["key"].shape == (1, 1, 4, 4)  # one head of keys serves two of queries
    assert call["scaling"] == pytest.approx(0.5)
    assert call["dropout"] == 0


def test_the_mask_function_of_the_same_name_makes_the_mask() -> None:
    """Otherwise padding and the future get weight."""
    (call,) = calls_of(MODELS["llama"](), "contract_mask")
    assert call["mask"].tolist() == [[torch.ones(4, 4).tril().bool().logical_and(torch.arange(4) < 3).tolist()]]


def test_a_function_without_a_mask_function_is_called_without_a_mask() -> None:
    """Should this end, ``adapter.register`` need not register two functions."""
    (call,) = calls_of(MODELS["llama"](), "contract_no_mask", masked=False)
    assert call["mask"] is None


def test_none_as_a_mask_means_what_it_means_to_sdpa() -> None:
    """Otherwise a call without a mask sees too much or too little."""
    causal: dict[str, Any] = {"batch_size": 1, "q_length": 3, "kv_length": 3}
    padded = torch.tensor([[False, True, True]])
    assert sdpa_mask(**causal) is None
    assert adapter.make_mask(**causal) is None
    whole: Any = adapter.make_mask(**causal, allow_is_causal_skip=False)
    assert whole.tolist() == [[torch.ones(3, 3).tril().bool().tolist()]]
    windowed = {"mask_function": sliding_window_causal_mask_function(2), "local_size": 2}
    for options in ({"attention_mask": padded}, windowed):
        mask: Any = adapter.make_mask(**causal, **options)
        assert mask[0, 0, 2].tolist() == [False, True, True]


def test_a_model_without_sdpa_support_always_gets_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a module that does not say whether it is causal may see the future."""

    class Config(hf.LlamaConfig):
        pass

    class Model(hf.LlamaModel):
        _supports_sdpa = False

    kind: Any = Model
    monkeypatch.setattr(adapter, "NEEDS_MASK", set())
    adapter.note_mask_support(kind(Config(**GROUPED)))
    assert adapter.make_mask(batch_size=1, q_length=3, kv_length=3, config=Config()) is not None
    assert adapter.make_mask(batch_size=1, q_length=3, kv_length=3, config=hf.LlamaConfig()) is None


@every_text_model
def test_a_model_that_is_asked_for_attentions_says_so_in_the_call_or_in_the_collector(name: str) -> None:
    """Otherwise ``output_attentions=True`` gives None."""
    for asked in (False, True):
        (call,) = calls_of(MODELS[name](), "contract_wanted", output_attentions=asked)
        assert call["wanted"] == asked
    assert output_capturing._active_collector.get() is None


def test_a_module_says_whether_it_is_causal() -> None:
    """Otherwise a model that is called without a mask looks into the future."""
    for name, causal in {"bert": False, "gpt2": True, "llama": True, "vit": False}.items():
        for module in adapter.attention_modules(MODELS[name]()).values():
            assert adapter.is_causal(module, None, queries=3) is causal
            assert not adapter.is_causal(module, None, queries=1)


def test_what_a_model_asks_beyond_a_mapping_has_these_names() -> None:
    """Otherwise capped scores, sinks and position biases are ignored in silence."""
    gemma = hf.Gemma2Model(hf.Gemma2Config(**GROUPED))
    assert calls_of(gemma, "contract_capped")[0]["softcap"] is not None
    sinks = hf.GptOssModel(hf.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1))
    assert calls_of(sinks, "contract_sinks")[0]["s_aux"] is not None
    assert {"softcap", "s_aux"} <= set(adapter.UNSUPPORTED)


def test_t5_passes_its_position_bias_to_the_function() -> None:
    """Otherwise T5 forgets the order of its words."""
    (call,) = calls_of(hf.T5EncoderModel(hf.T5Config(**T5)), "contract_bias")
    assert call["position_bias"].shape[1:] == (2, 4, 4)


# ------------------------------------------------------------------------------------------- models as they are


@pytest.mark.parametrize("name", MODELS)
def test_attention_that_can_be_replaced_names_get_interface_in_its_code(name: str) -> None:
    """Otherwise every model is refused."""
    modules = [module for module in MODELS[name]().modules() if hasattr(module, "is_causal")]
    assert list(adapter.attention_modules(MODELS[name]()))
    assert all("get_interface" in inspect.unwrap(type(module).forward).__code__.co_names for module in modules)
    assert not adapter.dense_attention(MODELS[name]())


def test_attention_that_cannot_be_replaced_names_softmax_in_its_code() -> None:
    """Otherwise a model that would stay dense is accepted."""
    model = hf.DebertaV2Model(hf.DebertaV2Config(**TEXT))
    assert not adapter.attention_modules(model)
    assert adapter.dense_attention(model) == {"DisentangledSelfAttention"}


def test_the_output_of_the_base_model_is_all_that_the_logits_of_any_tokens_need() -> None:
    """With what a model does to its logits afterwards, such as scaling or capping them."""
    capped: dict[str, Any] = {**GROUPED, "final_logit_softcapping": 0.1, "sliding_window": 2}
    models: list[Any] = [
        hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
        hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=2)),
        hf.GraniteForCausalLM(hf.GraniteConfig(**TEXT, logits_scaling=7.0)),
        hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**capped)),
    ]
    for model in models:
        model.eval()
        runs: list[Any] = []
        model.get_input_embeddings().register_forward_hook(lambda *_, runs=runs: runs.append(1))
        output = adapter.run_base(model, WORDS)
        parts = [adapter.run_head(model, WORDS, output, tokens) for tokens in torch.arange(4).split(3)]
        assert len(runs) == 1
        assert output.get("past_key_values") is None
        torch.testing.assert_close(torch.cat(parts, 1), model(**WORDS).logits)  # where its base model runs as before
        assert len(runs) == 2


def test_only_a_decoder_that_keeps_some_logits_has_a_head() -> None:
    llama, bert = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)), hf.BertForMaskedLM(hf.BertConfig(**TEXT))
    t5 = hf.T5ForConditionalGeneration(hf.T5Config(**T5))
    assert [adapter.has_head(model) for model in (llama, llama.model, nn.Sequential(llama), bert, t5)] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_configuration_has_those_of_its_parts() -> None:
    """Otherwise the setting of a model stays in its parts when the whole gets another."""
    config = clip().config
    first, *parts = adapter.configurations(config)
    assert first is config
    assert sorted(part.model_type for part in parts) == ["clip_text_model", "clip_vision_model"]


@pytest.mark.parametrize("name", MODELS)
def test_an_attention_module_or_its_configuration_counts_the_heads(name: str) -> None:
    """Otherwise there is no saying how many values a layer's parameter needs."""
    assert [adapter.head_count(module) for module in adapter.attention_modules(MODELS[name]()).values()] == [2]


@pytest.mark.parametrize("name", MODELS)
def test_an_attention_module_has_the_configuration_that_decides_its_function(name: str) -> None:
    """Otherwise a module that does not follow ``set_attention`` stays dense unnoticed."""
    model = MODELS[name]()
    model.set_attn_implementation("eager")
    modules: list[Any] = list(adapter.attention_modules(model).values())
    assert [adapter.implementation(module.config) for module in modules] == ["eager"]


def test_the_parts_of_a_configuration_are_named_and_may_differ() -> None:
    """Otherwise a model of which a part is sparse is saved as wholly sparse, or wholly dense."""
    model = clip()
    assert adapter.implementations(model.config) == "sdpa"
    model.set_attn_implementation({"text_config": "eager"})
    assert adapter.implementation(model.config.text_config) == "eager"
    assert adapter.implementations(model.config) == {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}


def test_encoder_and_decoder_of_t5_have_copies_of_its_configuration() -> None:
    """Otherwise, before transformers 5.20, T5 changes its attention in part."""
    model = hf.T5Model(hf.T5Config(**T5))
    assert adapter.overlooked_parts(model) == [model.encoder, model.decoder]
    assert adapter.overlooked_parts(clip()) == []


# ------------------------------------------------------------------------------------------- models as they change


def test_the_implementation_is_not_saved_unless_to_dict_gives_it() -> None:
    """Should this end, ``saving.to_dict`` is not needed."""
    model = MODELS["bert"]()
    model.set_attn_implementation("eager")
    assert "attn_implementation" not in model.config.to_dict()


def test_what_to_dict_gives_is_saved_and_comes_back(tmp_path: Path) -> None:
    """Otherwise a saved model does not name its mapping, and comes back dense."""

    class Config(hf.BertConfig):
        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "attn_implementation": "eager", "own": {"r": [0.5]}}

    hf.BertModel(Config(**TEXT)).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["attn_implementation"], written["own"]) == ("eager", {"r": [0.5]})
    read: Any = hf.BertModel.from_pretrained(tmp_path)
    assert (read.config._attn_implementation, read.config.own) == ("eager", {"r": [0.5]})


def test_an_implementation_that_nobody_registered_is_an_error(tmp_path: Path) -> None:
    """Otherwise a program without this package reads a sparse model as a dense one."""
    hf.BertModel(hf.BertConfig(**TEXT)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "nobodys"}))
    with pytest.raises(ValueError, match='Specified `attn_implementation="nobodys"` is not supported'):
        hf.AutoModel.from_pretrained(tmp_path)


def test_a_model_asks_one_method_which_implementation_to_use() -> None:
    """Otherwise a configuration that lost ``attn_implementation`` gives a dense model."""
    asked: list[str | None] = []

    class Model(hf.BertModel):
        def _check_and_adjust_attn_implementation(self, attn_implementation: Any, *args: Any, **options: Any) -> str:
            asked.append(attn_implementation)
            return super()._check_and_adjust_attn_implementation("eager", *args, **options)

    kind: Any = Model
    model = kind(hf.BertConfig(**TEXT))
    assert adapter.implementation(model.config) == "eager"
    assert asked == [None]
    model.set_attn_implementation("sdpa")
    assert asked == [None, "sdpa"]


class Extended(hf.BertModel):
    """A model that gets a part at the end of its construction, which ``_initialize_weights`` fills with sevens."""

    def post_init(self) -> None:
        assert adapter.attention_modules(self)
        self.part = nn.Linear(2, 2)
        adapter.keep_in_float32(self, "part")
        super().post_init()  # type: ignore[no-untyped-call]

    def _initialize_weights(self, module: nn.Module, *args: Any, **options: Any) -> None:
        if module is self.part:
            for tensor in module.parameters():
                initialization.copy_(tensor, torch.full_like(tensor, 7.0))
        else:
            super()._initialize_weights(module, *args, **options)


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A folder with such a model, whose part's weights are ones."""
    kind: Any = Extended
    model = kind(hf.BertConfig(**TEXT))
    nn.init.ones_(model.part.weight)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_what_post_init_adds_is_saved_and_read(extended: Path) -> None:
    """Otherwise the parameters of heads are neither saved nor read."""
    assert "part.weight" in load_file(extended / "model.safetensors")
    assert (Extended.from_pretrained(extended).part.weight == 1).all()


def test_what_a_file_lacks_is_initialized_by_one_method_and_what_it_has_is_kept(extended: Path) -> None:
    """Otherwise parameters that were saved are overwritten, or those that were not are left random."""
    weights = load_file(extended / "model.safetensors")
    del weights["part.bias"]
    save_file(weights, extended / "model.safetensors", metadata={"format": "pt"})
    read = Extended.from_pretrained(extended)
    assert (read.part.weight == 1).all()
    assert (read.part.bias == 7).all()


def test_names_that_are_to_be_ignored_are_not_saved(tmp_path: Path) -> None:
    """Otherwise a model that is dense by choice is saved with the parameters of its heads."""
    model = MODELS["bert"]()
    model._keys_to_ignore_on_save = {"pooler.dense.bias"}
    model.save_pretrained(tmp_path)
    assert model.state_dict().keys() - load_file(tmp_path / "model.safetensors").keys() == {"pooler.dense.bias"}


def test_models_that_are_to_be_read_are_built_without_values(extended: Path) -> None:
    """Otherwise parameters that neither the configuration nor the weights have are noticed at the first call only."""
    found: list[bool] = []

    class Look(hf.BertModel):
        def post_init(self) -> None:
            found.append(adapter.is_loading())
            super().post_init()  # type: ignore[no-untyped-call]

    kind: Any = Look
    kind.from_pretrained(extended)
    kind(hf.BertConfig(**TEXT))
    assert found == [True, False]


def test_a_part_that_is_named_is_read_in_float32(extended: Path) -> None:
    """Otherwise half precision rounds the parameters of heads."""
    read: Any = Extended.from_pretrained(extended, dtype=torch.bfloat16)
    assert read.part.weight.dtype == torch.float32
    assert read.pooler.dense.weight.dtype == torch.bfloat16


def test_names_in_a_file_that_are_expected_are_not_reported(extended: Path) -> None:
    """Otherwise a sparse model that is read as a dense one on purpose is reported as damaged."""

    class Expecting(hf.BertModel):
        def post_init(self) -> None:
            adapter.ignore_in_checkpoint(self, r"^part\.")
            super().post_init()  # type: ignore[no-untyped-call]

    kinds: list[Any] = [hf.BertModel, Expecting]
    reports = [kind.from_pretrained(extended, output_loading_info=True)[1] for kind in kinds]
    assert [len(report["unexpected_keys"]) for report in reports] == [2, 0]


@pytest.mark.parametrize(
    ("kind", "method", "words"),
    [
        (hf.PreTrainedConfig, "to_dict", ["self"]),
        (hf.PreTrainedModel, "_check_and_adjust_attn_implementation", ["self", "attn_implementation"]),
        (hf.PreTrainedModel, "post_init", ["self"]),
        (hf.PreTrainedModel, "_initialize_weights", ["self", "module"]),
        (hf.PreTrainedModel, "set_attn_implementation", ["self", "attn_implementation"]),
        (hf.PreTrainedModel, "save_pretrained", ["self"]),
    ],
)
def test_each_extended_method_is_there_and_takes_what_ours_passes_on(kind: Any, method: str, words: list[str]) -> None:
    """Otherwise ``register_attention`` fails, or the addition gets another argument than it expects."""
    register_attention()
    original = inspect.unwrap(getattr(kind, method))
    assert list(inspect.signature(original).parameters)[: len(words)] == words
    assert method in vars(kind)[adapter.MARK]


WRAPPED_BY_ANOTHER_LIBRARY = """
    import functools, json, pathlib, safetensors.torch, sys, torch, transformers as hf

    order, style, folder = ORDER, STYLE, pathlib.Path(FOLDER)
    METHODS = {
        "to_dict": hf.PreTrainedConfig,
        "_check_and_adjust_attn_implementation": hf.PreTrainedModel,
        "post_init": hf.PreTrainedModel,
        "_initialize_weights": hf.PreTrainedModel,
        "set_attn_implementation": hf.PreTrainedModel,
        "save_pretrained": hf.PreTrainedModel,
    }
    called = set()

    def wrap(kind, name):
        original = getattr(kind, name)

        def others(*args, **options):
            called.add(name)
            return original(*args, **options)

        setattr(kind, name, functools.wraps(original)(others) if style == "functools" else others)

    def wrap_all():
        for name, kind in METHODS.items():
            wrap(kind, name)

    if order == "before":
        wrap_all()
    from rsoftmax.attention.transformers import head_parameters, register_attention, set_attention
    register_attention()
    if order == "after":
        wrap_all()
    methods = {name: getattr(kind, name) for name, kind in METHODS.items()}
    register_attention()
    assert methods == {name: getattr(kind, name) for name, kind in METHODS.items()}, "installed twice"

    sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    model = hf.BertModel(hf.BertConfig(**sizes)).eval()
    set_attention(model, "r_softmax", r=[0.25, 0.5])
    model.save_pretrained(folder)
    words = torch.tensor([[3, 4, 5, 6]])
    for lost in (False, True):  # as a program does that does not know this package
        if lost:
            config = json.loads((folder / "config.json").read_text())
            assert config.pop("attn_implementation") == "r_softmax", "to_dict"
            (folder / "config.json").write_text(json.dumps(config))
        read = hf.AutoModel.from_pretrained(folder)
        assert read.config._attn_implementation == "r_softmax", "_check_and_adjust_attn_implementation"
        assert head_parameters(read).values.tolist() == [[0.25, 0.25], [0.5, 0.5]], "post_init"
        assert torch.equal(read(words)[0], model(words)[0])
    hf.BertModel(hf.BertConfig(**sizes)).save_pretrained(folder / "dense")
    read = hf.BertModel.from_pretrained(folder / "dense", config=model.config)
    assert head_parameters(read).values.tolist() == [[0.25, 0.25], [0.5, 0.5]], "_initialize_weights"
    try:
        hf.DebertaV2Model(hf.DebertaV2Config(**sizes)).set_attn_implementation("sparsemax")
    except ValueError as error:
        assert "would stay dense" in str(error), error
    else:
        raise AssertionError("set_attn_implementation")
    model.set_attn_implementation("sdpa")
    model.save_pretrained(folder / "no longer sparse")
    names = safetensors.torch.load_file(folder / "no longer sparse" / "model.safetensors")
    assert not [name for name in names if "rsoftmax" in name], "save_pretrained"
    assert called == set(METHODS), called
"""


@pytest.mark.process
def test_wrappers_of_another_library_change_nothing(tmp_path: Path) -> None:
    program = textwrap.dedent(WRAPPED_BY_ANOTHER_LIBRARY)
    programs = {}
    for order, style in product(("before", "after"), ("functools", "plain")):
        given = f"ORDER, STYLE, FOLDER = {order!r}, {style!r}, {str(tmp_path / order / style)!r}\n"
        programs[f"{order}, {style}"] = given + program
    run_programs("import torch, transformers; transformers.BertModel", programs)


# ------------------------------------------------------------------------------------------- messages and training


def test_quiet_stops_bars_and_notes_and_gives_back_what_was() -> None:
    """Otherwise commands print transformers' notes, or silence them for the rest of the program."""
    logging: Any = hf.utils.logging

    def now() -> tuple[int, bool]:
        return logging.get_verbosity(), logging.is_progress_bar_enabled()

    before = now()
    try:
        for bars in (logging.enable_progress_bar, logging.disable_progress_bar):
            bars()
            logging.set_verbosity_info()
            outside = now()
            with quiet():
                assert now() == (logging.ERROR, False)
            assert now() == outside
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()


def test_the_trainer_counts_steps_and_logs_after_it_wrote_the_history(tmp_path: Path) -> None:
    """Otherwise a schedule is a step late, or writes its rate beside the loss of another step."""
    steps: list[int] = []
    rows: list[bool] = []

    class Look(hf.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert state.max_steps == 2
            steps.append(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rows.append(kwargs["logs"].items() <= state.log_history[-1].items())

    model = hf.BertForSequenceClassification(hf.BertConfig(**TEXT))
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    arguments = hf.TrainingArguments(str(tmp_path), max_steps=2, logging_steps=1, save_strategy="no", **quiet)
    data: Any = [{"input_ids": torch.tensor([3, 4]), "labels": 1}] * 4
    hf.Trainer(model, arguments, train_dataset=data, callbacks=[Look()]).train()
    assert steps == [0, 1]
    assert rows
    assert all(rows)


# ------------------------------------------------------------------------------------------- this package


def test_no_other_file_of_the_package_knows_the_inside_of_transformers() -> None:
    package = Path(adapter.__file__).parent
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "adapter.py" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers"):
                assert node.module == "transformers", f"{path.name}:{node.lineno} imports {node.module}"
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = ast.unparse(node.value)
                if node.attr in ("_asdict", "_replace", "_fields"):  # of a NamedTuple
                    continue
                assert owner in ("self", "cls", "super()"), f"{path.name}:{node.lineno} uses {owner}.{node.attr}"

# SPDX-License-Identifier: Apache-2.0
"""The models of the zoo, with random weights: current architectures from torchvision, timm and transformers, and a few
written here. Nothing is downloaded.

`MODELS[name](small)` returns a Model; `small` shrinks depth and width, and keeps every kind of operator.
"""

import dataclasses
from typing import Callable

import torch
from torch import nn


@dataclasses.dataclass
class Model:
    module: nn.Module
    inputs: dict          # example inputs by name, `batch` samples along axis 0
    outputs: tuple = ("logits",)
    rename: Callable = staticmethod(lambda name: name)


def _images(size, batch, channels=3):
    return torch.randn(batch, channels, size, size)


def _tokens(vocabulary, length, batch):
    return torch.randint(0, vocabulary, (batch, length))


class _Logits(nn.Module):
    """Calls a model of transformers with named inputs, and returns its logits, or another output."""

    def __init__(self, model, output="logits", **fixed):
        super().__init__()
        self.model, self.output, self.fixed = model, output, fixed

    def forward(self, **inputs):
        return self.model(**inputs, **self.fixed)[self.output]


def resnet50(small, batch):
    import torchvision
    if small:
        return Model(torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10),
                     {"image": _images(64, batch)})
    return Model(torchvision.models.resnet50(weights=None), {"image": _images(224, batch)})


class _Inception(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        out = self.model(image)
        return (out.logits, out.aux_logits) if self.training else out


def inception_v3(small, batch):
    import torchvision
    model = torchvision.models.inception_v3(weights=None, init_weights=False, num_classes=10 if small else 1000)
    return Model(_Inception(model), {"image": _images(299, batch)}, ("logits", "aux_logits"))


def vit_b16(small, batch):
    import timm
    if small:
        model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=10)
        return Model(model, {"image": _images(64, batch)})
    return Model(timm.create_model("vit_base_patch16_224"), {"image": _images(224, batch)})


def swin_t(small, batch):
    import timm
    if small:
        model = timm.create_model("swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2), num_heads=(2, 4),
                                  embed_dim=32, num_classes=10)
        return Model(model, {"image": _images(56, batch)})
    return Model(timm.create_model("swin_tiny_patch4_window7_224"), {"image": _images(224, batch)})


def convnext_t(small, batch):
    import timm
    if small:
        model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), num_classes=10)
        return Model(model, {"image": _images(64, batch)})
    return Model(timm.create_model("convnext_tiny"), {"image": _images(224, batch)})


def mobilenet_v3(small, batch):
    import torchvision
    if small:
        return Model(torchvision.models.mobilenet_v3_small(weights=None, num_classes=10), {"image": _images(64, batch)})
    return Model(torchvision.models.mobilenet_v3_large(weights=None), {"image": _images(224, batch)})


def efficientnet(small, batch):
    import timm
    if small:
        return Model(timm.create_model("efficientnet_lite0", num_classes=10), {"image": _images(64, batch)})
    import torchvision
    return Model(torchvision.models.efficientnet_b0(weights=None), {"image": _images(224, batch)})


class _UNet(nn.Module):
    """The network of Ronneberger et al. (2015) with batch norm and padded convolutions."""

    def __init__(self, widths, classes):
        super().__init__()

        def block(a, b):
            layers = []
            for i in range(2):
                layers += [nn.Conv2d(a if i == 0 else b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths))
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image):
        skips, x = [], image
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.up[i](torch.cat([skips[i], self.rise[i](x)], 1))
        return self.head(x)


def unet(small, batch):
    widths = (8, 16, 32) if small else (64, 128, 256, 512, 1024)
    return Model(_UNet(widths, 2), {"image": _images(32 if small else 256, batch)})


class _Segmenter(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        return self.model(image)["out"]


def deeplab(small, batch):
    import torchvision
    if small:
        model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None,
                                                                             num_classes=5)
        return Model(_Segmenter(model), {"image": _images(64, batch)})
    model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None)
    return Model(_Segmenter(model), {"image": _images(256, batch)})


def bert_base(small, batch):
    from transformers import BertConfig, BertForSequenceClassification
    sizes = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100,
                 max_position_embeddings=64) if small else {}
    config = BertConfig(**sizes)
    length = 16 if small else 128
    inputs = {"input_ids": _tokens(config.vocab_size, length, batch),
              "attention_mask": torch.ones(batch, length, dtype=torch.int64)}
    return Model(_Logits(BertForSequenceClassification(config)), inputs)


def gpt2_small(small, batch):
    from transformers import GPT2Config, GPT2LMHeadModel
    sizes = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=64) if small else {}
    config = GPT2Config(use_cache=False, **sizes)
    length = 16 if small else 256
    return Model(_Logits(GPT2LMHeadModel(config)), {"input_ids": _tokens(config.vocab_size, length, batch)})


def llama(small, batch):
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = (dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=100) if small else
             dict(num_hidden_layers=12, hidden_size=768, intermediate_size=2048, num_attention_heads=12,
                  num_key_value_heads=4, vocab_size=32000, tie_word_embeddings=True))
    config = LlamaConfig(use_cache=False, max_position_embeddings=512, **sizes)
    length = 16 if small else 256
    return Model(_Logits(LlamaForCausalLM(config)), {"input_ids": _tokens(config.vocab_size, length, batch)})


def llama3_8b(small, batch):
    from transformers import LlamaConfig, LlamaForCausalLM
    if small:
        return llama(small, batch)
    config = LlamaConfig(use_cache=False, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
                         rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    torch.set_default_dtype(torch.float16)  # FakeTensorMode cannot make a module of floats one of halves
    try:
        module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return Model(_Logits(module), {"input_ids": _tokens(config.vocab_size, 2048, batch)})


def mixtral(small, batch):
    from transformers import MixtralConfig, MixtralForCausalLM
    sizes = (dict(num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=100, num_local_experts=4) if small else
             dict(num_hidden_layers=8, hidden_size=512, intermediate_size=1024, num_attention_heads=8,
                  num_key_value_heads=2, vocab_size=32000, num_local_experts=8))
    # PyTorch's exporters take neither "grouped_mm", which is the default, nor "eager", whose work depends on data.
    config = MixtralConfig(use_cache=False, max_position_embeddings=512, sliding_window=None,
                           experts_implementation="batched_mm", **sizes)
    length = 16 if small else 128
    return Model(_Logits(MixtralForCausalLM(config)), {"input_ids": _tokens(config.vocab_size, length, batch)})


def t5_small(small, batch):
    from transformers import T5Config, T5ForConditionalGeneration
    sizes = dict(num_layers=2, d_model=64, d_ff=128, d_kv=16, num_heads=4, vocab_size=100) if small else {}
    config = T5Config(use_cache=False, decoder_start_token_id=0, **sizes)
    length = 16 if small else 128
    inputs = {"input_ids": _tokens(config.vocab_size, length, batch),
              "decoder_input_ids": _tokens(config.vocab_size, length, batch)}
    return Model(_Logits(T5ForConditionalGeneration(config)), inputs)


def whisper_tiny_encoder(small, batch):
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    sizes = dict(encoder_layers=2, d_model=64, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=8,
                 max_source_positions=32) if small else {}
    config = WhisperConfig(**sizes)
    return Model(_Logits(WhisperEncoder(config), "last_hidden_state"),
                 {"input_features": torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)})


class _LstmLanguageModel(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm(small, batch):
    vocabulary, width, length = (100, 32, 12) if small else (10000, 650, 35)
    return Model(_LstmLanguageModel(vocabulary, width, 2), {"tokens": _tokens(vocabulary, length, batch)})


class _Dlrm(nn.Module):
    """DLRM of Naumov et al. (2019): embeddings and a perceptron, interactions of all pairs, a perceptron."""

    def __init__(self, tables, rows, width, dense):
        super().__init__()

        def perceptron(sizes, last):
            layers = []
            for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
                layers.append(nn.Linear(a, b))
                if last or i + 2 < len(sizes):
                    layers.append(nn.ReLU())
            return nn.Sequential(*layers)

        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = perceptron((dense, 4 * width, width), True)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1], persistent=False)
        self.top = perceptron((width + self.pairs.numel(), 8 * width, 2), False)

    def forward(self, dense, categories):
        x = self.bottom(dense)
        vectors = [x] + [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.pairs)], 1))


def dlrm(small, batch):
    tables, rows, width = (4, 50, 8) if small else (26, 10000, 64)
    return Model(_Dlrm(tables, rows, width, 13),
                 {"dense": torch.randn(batch, 13), "categories": _tokens(rows, tables, batch)})


MODELS = {make.__name__: make for make in
          (resnet50, inception_v3, vit_b16, swin_t, convnext_t, mobilenet_v3, efficientnet, unet, deeplab, bert_base,
           gpt2_small, llama, llama3_8b, mixtral, t5_small, whisper_tiny_encoder, lstm, dlrm)}

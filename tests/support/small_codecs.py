"""Small decoders from transformers with random weights: (module, example, time axis)."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_GAN = {
    "upsample_initial_channel": 8, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
}  # fmt: skip


def hifigan():
    config = transformers.SpeechT5HifiGanConfig(model_in_dim=6, **_GAN)
    model = transformers.SpeechT5HifiGan(config)
    torch.nn.init.normal_(model.mean)
    return model, torch.randn(1, 11, 6), 1


def vits():
    config = transformers.VitsConfig(flow_size=6, **_GAN)
    module = transformers.models.vits.modeling_vits.VitsHifiGan(config)
    return module, torch.randn(2, 6, 11), 2


def dac():
    config = transformers.DacConfig(
        encoder_hidden_size=4, downsampling_ratios=[2, 4], decoder_hidden_size=16,
        n_codebooks=2, codebook_size=16, codebook_dim=4,
    )  # fmt: skip
    return transformers.DacModel(config).decoder, torch.randn(1, config.hidden_size, 11), 2


def encodec():
    config = transformers.EncodecConfig(
        num_filters=4, hidden_size=16, upsampling_ratios=[4, 2], codebook_dim=16, codebook_size=16
    )
    return transformers.EncodecModel(config).decoder.eval(), torch.randn(1, 16, 23), 2


DECODERS = {"hifigan": hifigan, "vits": vits, "dac": dac, "encodec": encodec}

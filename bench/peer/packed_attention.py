"""Causal attention over sequences that lie one behind the other, for Hugging Face models: attn_implementation "packed"."""
import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

try:  # PyTorch's own variable-length flash attention, CUDA only
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None

NAME = "packed"


def by_sequence(query, key, value, offsets, scale):
    """One call of scaled_dot_product_attention per sequence. query [1, heads, T, D]."""
    grouped = query.shape[1] != key.shape[1]
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scale, enable_gqa=grouped
        )
        for a, b in zip(offsets, offsets[1:])
    ]
    return torch.cat(parts, 2).transpose(1, 2)


def by_kernel(query, key, value, cu_seqlens, longest, scale):
    groups = query.shape[1] // key.shape[1]
    rows = [t[0].transpose(0, 1) for t in (query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))]
    return varlen_attn(*[t.contiguous() for t in rows], cu_seqlens, cu_seqlens, longest, longest, is_causal=True, scale=scale)[None]


def attention(module, query, key, value, attention_mask, scaling=None, packing=None, **_):
    """packing: (cu_seqlens int32 on the device, the same as a list, longest length)."""
    cu_seqlens, offsets, longest = packing
    if query.is_cuda and varlen_attn is not None and query.dtype != torch.float32:
        return by_kernel(query, key, value, cu_seqlens, longest, scaling), None
    return by_sequence(query, key, value, offsets, scaling), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)

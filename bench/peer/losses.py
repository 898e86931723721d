"""Per-token outputs of the heads and the losses of one mini-batch, as formulas on plain tensors."""
import torch


def log_prob_rows(hidden, head, labels, entropy):
    """log pi(label) and, if wanted, the entropy of pi = softmax(logits)."""
    logits = head(hidden).float()
    normaliser = logits.logsumexp(-1)
    log_probs = logits.gather(-1, labels[:, None]).squeeze(-1) - normaliser
    if not entropy:
        return (log_probs,)
    return log_probs, normaliser - (logits.softmax(-1) * logits).sum(-1)


def value_rows(hidden, head, labels, entropy):
    return (head(hidden).squeeze(-1),)


def policy_loss(log_probs, old, clip=0.2, dual_clip=3.0):
    """PPO's clipped surrogate (Schulman et al. 2017) with dual clip (Ye et al. 2020)."""
    ratio = (log_probs - old["old_log_probs"]).clamp(-20, 20).exp()
    advantages = old["advantages"]
    clipped = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))
    return torch.where(advantages < 0, torch.minimum(clipped, -advantages * dual_clip), clipped)


def value_loss(values, old, clip=0.5):
    """Half the squared error, clipped around the old values."""
    near = torch.clamp(values, old["values"] - clip, old["values"] + clip)
    return 0.5 * torch.maximum((values - old["returns"]) ** 2, (near - old["returns"]) ** 2)

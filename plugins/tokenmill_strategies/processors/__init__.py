"""The built-in links of the chain from logits to a choice, in the order in which they apply."""

from __future__ import annotations

from tokenmill.contracts.descriptors import LogitProcessorDescriptor

#: Module and factory, and a line of summary. Tokens are ruled in and out first, then the distribution is shaped; each
#: truncation sees what the one before has left.
_CHAIN = {
    "logit_bias": "adds a bias to chosen tokens",
    "repetition_penalty": "makes tokens of prompt and output less likely",
    "occurrence_penalty": "subtracts for tokens that occur in the output, once and per occurrence",
    "min_new_tokens": "forbids stop tokens before a minimum of new ones",
    "temperature": "divides logits",
    "top_k": "keeps the k highest logits",
    "top_p": "keeps the smallest set that holds a probability",
    "min_p": "keeps tokens with a share of the highest probability",
}


def descriptors() -> list[LogitProcessorDescriptor]:
    """Priorities leave room between the links, and below: a processor of priority 0 comes after all of them."""
    package = "tokenmill_strategies.processors"
    return [
        LogitProcessorDescriptor(
            name=name, summary=summary, factory=f"{package}.{name}:{name}", priority=10 * (len(_CHAIN) - index)
        )
        for index, (name, summary) in enumerate(_CHAIN.items())
    ]

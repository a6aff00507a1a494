"""``LLM``: a model in a program, without a server.

    LLM("smollm2-135m").generate(["Once upon a time"], SamplingParams(max_tokens=20))

Not here: downloading; a model that was not pulled raises an error naming the command.

Always true: answers come in the order of the prompts, each the same as if it had been alone.
"""

from __future__ import annotations

import itertools
import queue
import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from insitu.engine.plan import Wanted
from insitu.llm.arguments import ChatWords, chat_words, messages_of, params_of_each, prompts_of
from insitu.llm.best_of import likeliest
from insitu.llm.build import build
from insitu.types import (
    Delta,
    Embedding,
    FinishReason,
    ReasoningFinish,
    Request,
    ToolCall,
    joined_calls,
)
from insitu.weights.catalogue import SHIPPED
from insitu.weights.locate import default_models_dir, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from insitu.engine.sequence import Output
    from insitu.sampling_params import SamplingParams
    from insitu.types import Guide, Message, ModelCard, Prepared, TokenLogprob, Usage

_SETTINGS = frozenset(field.name for field in fields(Wanted))
# A program that asks for many answers at once waits for them: nobody else is in its queue.
_MAX_NUM_WAITING = 2**31


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer, whole."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    usage: Usage
    seed: int
    prompt_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    index: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # from the second token on
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_finish: ReasoningFinish | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedPrompt:
    """A prompt's vector, of length 1."""

    vector: tuple[float, ...]
    usage: Usage
    prompt_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()


class LLM:
    """A model by its file or catalogue name, and the engine's settings as keywords."""

    def __init__(
        self,
        model: str | Path,
        *,
        models_dir: str | Path | None = None,
        catalog: str | Path | None = None,
        **settings: Any,
    ) -> None:
        unknown = sorted(set(settings) - _SETTINGS)
        if unknown:
            known = ", ".join(sorted(_SETTINGS | {"models_dir", "catalog"}))
            raise TypeError(f"LLM has no setting {unknown[0]!r} (known: {known})")
        catalogs = [SHIPPED] + ([Path(catalog)] if catalog is not None else [])
        folder = default_models_dir() if models_dir is None else Path(models_dir)
        located = resolve(str(model), folder, catalogs)
        self._generator = build(
            located.path, name=located.name, max_num_waiting=_MAX_NUM_WAITING, **settings
        )
        self._ids = itertools.count()

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_special_tokens: bool = True,
        parse_special: bool = False,
        guide: Guide | None = None,
    ) -> list[Completion]:
        """Continue prompts (texts, or token ids), with one set of params for all or one each.

        What is made matches ``guide``, unless ``max_tokens`` cuts it.
        In the order of the prompts, and for each in the order of its ``n`` choices.
        """
        texts = prompts_of(prompts)
        each = params_of_each(params, len(texts))
        requests = [
            Request(
                request_id=self._next_id(),
                model="default",
                prompt=text,
                add_special_tokens=add_special_tokens,
                parse_special=parse_special,
                sampling=one,
                guide=guide,
            )
            for text, one in zip(texts, each, strict=True)
        ]
        return _completions(*self._run(requests))

    def chat(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **words: Unpack[ChatWords],
    ) -> Completion:
        """Answer a chat, once; messages are ``Message`` or mappings with role and content."""
        (sampling,) = params_of_each(params, 1)
        if sampling.n != 1:
            raise ValueError("chat answers once: use generate for n above 1")
        request = Request(
            request_id=self._next_id(),
            model="default",
            messages=messages_of(messages),
            template_kwargs=template_kwargs or {},
            sampling=sampling,
            **chat_words(words),
        )
        return _completions(*self._run([request]))[0]

    def embed(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        truncate: bool = False,
        add_special_tokens: bool = True,
    ) -> list[EmbeddedPrompt]:
        """Vectors of prompts (texts, or token ids), in their order: what the model's head would
        read after the last token.

        Of each vector the first ``dimensions`` numbers. What is longer than the context is refused,
        or cut to its first tokens with ``truncate`` (``warnings`` says so).
        """
        requests = [
            Request(
                request_id=self._next_id(),
                model="default",
                prompt=one,
                add_special_tokens=add_special_tokens,
                embedding=Embedding(dimensions, is_cut=truncate),
            )
            for one in prompts_of(prompts)
        ]
        prepared, deltas = self._run(requests)
        return [_embedded(one, deltas[one.request.request_id]) for one in prepared]

    def describe(self) -> ModelCard:
        """The model's digest, limits, numeric settings and sampling defaults."""
        return self._generator.describe()

    def close(self) -> None:
        """Give memory and threads back; the end of the program, or of the last use, does it too."""
        self._generator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _run(self, requests: Sequence[Request]) -> tuple[list[Prepared], dict[str, list[Delta]]]:
        """The requests as they ran, and the deltas of each by its id."""
        generator = self._generator
        prepared = [generator.preparer.prepare(request) for request in requests]
        answers = {one.request.request_id: generator.answers(one) for one in prepared}
        deltas: dict[str, list[Delta]] = {request_id: [] for request_id in answers}
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        left = set(answers)
        try:
            for one in prepared:
                generator.submit(one, outputs.put)
            while left:
                output = outputs.get()
                request_id = output.request_id
                delta = answers[request_id].take(output)
                if delta is not None:
                    deltas[request_id].append(delta)
                    if delta.finish_reason is not None and not output.is_last:
                        generator.abort(request_id, output.choice)  # a stop string
                if answers[request_id].is_finished:
                    left.discard(request_id)
        finally:
            for request_id in left:
                generator.abort(request_id)
        for one in prepared:
            if one.request.sampling.drops_choices:
                made = deltas[one.request.request_id]
                deltas[one.request.request_id] = likeliest(made, one.request.sampling)
        return prepared, deltas


def _completions(prepared: list[Prepared], deltas: dict[str, list[Delta]]) -> list[Completion]:
    return [
        _completion(one, index, deltas[one.request.request_id])
        for one in prepared
        for index in range(one.request.sampling.n)
    ]


def _embedded(prepared: Prepared, deltas: list[Delta]) -> EmbeddedPrompt:
    (delta,) = deltas
    assert delta.vector is not None
    assert delta.usage is not None
    vector = struct.unpack(f"<{len(delta.vector) // 4}f", delta.vector)
    return EmbeddedPrompt(vector, delta.usage, prepared.prompt_ids, prepared.warnings)


def _completion(prepared: Prepared, index: int, of_all: list[Delta]) -> Completion:
    deltas = [delta for delta in of_all if delta.index == index]
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    return Completion(
        text="".join(delta.content for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        finish_reason=last.finish_reason,
        usage=last.usage,
        seed=prepared.seed,
        prompt_ids=prepared.prompt_ids,
        warnings=prepared.warnings,
        index=index,
        prompt_logprobs=tuple(one for delta in of_all for one in delta.prompt_logprobs),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=joined_calls(deltas),
        reasoning_finish=last.reasoning_finish,
    )

"""From a model and its plan to a running engine.

Not here: opening files or text. Always true: what is allocated is what the plan counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.engine.block_pool import BlockPool
from insitu.engine.engine import Engine
from insitu.engine.loop import STEP_TIMEOUT_S, EngineLoop
from insitu.engine.runner import BatchRunner
from insitu.engine.scheduler import StepBudget
from insitu.engine.stats import Stats
from insitu.kernels.native import Native
from insitu.kernels.passes import lower
from insitu.models.kv_cache import kv_layout

if TYPE_CHECKING:
    from insitu.engine.plan import Plan
    from insitu.models.load import LoadedModel


def start_engine(
    model: LoadedModel,
    plan: Plan,
    *,
    max_num_waiting: int = 256,
    step_timeout_s: float = STEP_TIMEOUT_S,
) -> EngineLoop:
    """Pack the weights, reserve the KV pool, start the thread."""
    engine = make_engine(model, plan)
    try:
        return EngineLoop(engine, max_num_waiting=max_num_waiting, step_timeout_s=step_timeout_s)
    except RuntimeError as error:  # how Python says that there is no room for a thread
        engine.runner.close()
        raise MemoryError("the engine's threads could not be started") from error


def make_native(model: LoadedModel, plan: Plan) -> Native:
    """The model's weights packed and its KV pool reserved, for whoever steps it."""
    kv = kv_layout(model.spec, block_size=plan.block_size, dtype=plan.kv_cache_dtype)
    program = lower(model.program)
    return Native(
        program,
        kv=kv,
        limits=plan.limits,
        num_threads=plan.threads,
        spin=plan.spin,
        pin=plan.pin,
    )


def make_engine(model: LoadedModel, plan: Plan) -> Engine:
    """An engine that its caller steps."""
    budget = StepBudget(
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_num_batched_tokens_alone=plan.max_num_batched_tokens_alone,
        max_num_logit_rows=plan.max_num_logit_rows,
    )
    runner = BatchRunner(make_native(model, plan), plan.block_size)
    return Engine(runner, BlockPool(plan.num_blocks, plan.block_size), budget, Stats())

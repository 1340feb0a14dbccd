"""One decoder's running state: tokens go in, logits come out, and the cache remembers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenmill.contracts.backend import Executable
from tokenmill.contracts.cache import CacheGroup, CacheMark, CacheStrategy, LentPort
from tokenmill.contracts.routing import StepRouter
from tokenmill.contracts.step import Step, StepKind, Want
from tokenmill.errors import CapacityError, RewindError, SessionClosedError, StepError
from tokenmill.model.decoder import Decoder
from tokenmill.session.cache import open_cache
from tokenmill.session.hidden import HiddenRows
from tokenmill.session.history import History
from tokenmill.session.inputs import claim_inputs
from tokenmill.session.routed import RoutedPairs
from tokenmill.session.rows import Rows
from tokenmill.session.stats import SessionStats
from tokenmill.session.stepping import StepRunner
from tokenmill.session.tokens import token_ids, vocabulary
from tokenmill.trace import NO_TRACE, Tracer


@frozen(eq=False)
class _Checkpoint:
    """Where the session stands once the running call is taken back, or a rewind carried through.

    :param cache: None is an empty cache. No group copies anything for a mark.
    :param history: to replace the present one; None cuts that to `length`.
    """

    length: int
    hidden: HiddenRows | None
    cache: tuple[CacheMark, ...] | None
    history: History | None = None


@frozen(eq=False)
class SessionMark:
    """A point of one session to come back to with `Session.restore`."""

    owner: Session
    history: History
    hidden: HiddenRows | None
    cache: tuple[CacheMark, ...]

    @property
    def length(self) -> int:
        return len(self.history)


class Session:
    """A decoder with a cache of its own; weights are shared with every session of the executable.

    A call that raises leaves the session as it was before the call; Ctrl-C does, too, unless it comes when all is done
    but the return. Calls from several threads run one after the other; sessions of one executable run side by side.

    :param groups: each group of the cache with the strategy that keeps it.
    :param routers: asked in this order for every input that is no past.
    :param capacity: bound on tokens, for strategies that reserve.
    """

    def __init__(
        self,
        decoder: Decoder,
        executable: Executable,
        groups: Sequence[tuple[CacheGroup, CacheStrategy]],
        routers: Sequence[StepRouter],
        *,
        capacity: int,
        tracer: Tracer = NO_TRACE,
    ) -> None:
        self._inputs = claim_inputs(decoder, routers)
        self._chunk = max(1, executable.preferred_rows)
        self._vocabulary = vocabulary(decoder)
        self._checks_ids = decoder.io.token_input is not None
        self._tracer = tracer
        self._context = executable.open(tracer)
        try:
            self._cache = open_cache(groups, executable, self._context, capacity)
        except BaseException:
            self._context.close()
            raise
        self._runner = StepRunner(decoder.io, self._inputs, self._cache, self._context, tracer)
        self._history = History()
        self._hidden: HiddenRows | None = None
        self._steps = 0
        self._checkpoint: _Checkpoint | None = None
        self._turn = threading.Lock()
        self._closed = False

    # --- what it holds -----------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self._history)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids in the cache."""
        return tuple(self._history.tokens)

    @property
    def max_context(self) -> int | None:
        """Tokens that fit; None when every growing group grows freely."""
        return self._cache.capacity

    @property
    def vocab_size(self) -> int | None:
        """Width of the logits; None while neither graph nor metadata nor a first step has told it."""
        return self._vocabulary

    @property
    def last_hidden(self) -> npt.NDArray[np.float32] | None:
        """The declared hidden output's row of the last token, `[width] float32`; None when there is none to show."""
        return None if self._hidden is None else self._hidden.row(self.length)

    def stats(self) -> SessionStats:
        return SessionStats(
            length=self.length,
            max_context=self.max_context,
            steps=self._steps,
            cache_bytes=self._cache.nbytes,
            strategies=dict(self._cache.strategies),
            inputs=dict(self._inputs.sources),
            context=self._context.stats(),
        )

    def lend(self, ports: Sequence[str]) -> tuple[LentPort, ...]:
        """Views of past ports without a copy, valid until the next step or rewind. :raises PortError: no such past."""
        with self._turn:
            self._ready()
            return self._cache.lend(ports)

    def read_past(self, port: str) -> npt.NDArray[Any]:
        """A copy of what a past port holds. :raises PortError: no such past."""
        with self._turn:
            self._ready()
            return self._cache.read(port)

    # --- steps -------------------------------------------------------------------------------------------------------

    def decode(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        past_len: int,
        *,
        want: Want = "rows",
        routed: RoutedPairs = (),
    ) -> Any:
        """Feed tokens behind the first `past_len` ones.

        :param want: `rows`: `[tokens, vocab] float32`; `last`: `[vocab] float32`; `token`: the last row's highest id.
        :param routed: values of the inputs that nothing generates, as pairs of port name and array.
        :raises StepError: no tokens, an id out of the vocabulary, a `past_len` that is not what the session holds, no
            room (CapacityError), routed values that do not fit (RoutedInputError). Nothing has run.
        :raises ExecutionError: the step failed, or gave what cannot be used. Nothing has changed, it may be retried.
        """
        if want not in get_args(Want):
            raise StepError(f"want is {want!r}", why=f"it is one of {', '.join(get_args(Want))}")
        with self._turn:
            ids = self._checked(tokens, past_len)
            values = self._inputs.routed(routed)
            with self._tracer.span("step", rows=len(ids), past=past_len):
                chunk = self._chunk if self._inputs.splits(values) else len(ids)
                return self._advance(ids, want, values, _kind(ids), chunk)

    def verify(
        self,
        draft: Sequence[int] | npt.NDArray[np.integer[Any]],
        past_len: int,
        *,
        routed: RoutedPairs = (),
    ) -> Rows:
        """Run draft tokens in one forward pass; `rewind` then gives up those that are not accepted.

        :returns: `[tokens, vocab] float32`.
        :raises StepError: see `decode`.
        :raises ExecutionError: see `decode`.
        """
        with self._turn:
            ids = self._checked(draft, past_len)
            values = self._inputs.routed(routed)
            with self._tracer.span("verify", rows=len(ids), past=past_len):
                rows: Rows = self._advance(ids, "rows", values, "verify", len(ids))
                return rows

    def _checked(self, tokens: Any, past_len: int) -> npt.NDArray[np.int64]:
        self._ready()
        ids = token_ids(tokens, self._vocabulary if self._checks_ids else None)
        if past_len != self.length:
            raise StepError(
                f"past_len is {past_len}, the session holds {self.length} tokens",
                remedy="pass session.length, or rewind to past_len before",
            )
        capacity = self.max_context
        if capacity is not None and past_len + len(ids) > capacity:
            raise CapacityError(
                f"{len(ids)} tokens behind {past_len} make {past_len + len(ids)}, the cache holds {capacity}",
                remedy="raise cache.max_len, shorten the text, or rewind",
            )
        return ids

    def _advance(
        self, ids: npt.NDArray[np.int64], want: Want, values: dict[str, Any], kind: StepKind, chunk: int
    ) -> Any:
        """Run checked tokens in chunks, all or none."""
        self._checkpoint = self._here()
        try:
            if len(ids) <= chunk:
                result = self._run(ids, want, values, kind)
            else:
                result = self._run_chunks(ids, want, values, chunk)
            self._checkpoint = None
        except BaseException:
            self._settle()
            raise
        return result

    def _run_chunks(self, ids: npt.NDArray[np.int64], want: Want, values: dict[str, Any], chunk: int) -> Any:
        if values:
            self._inputs.prepare(self._step(ids, want, values, "prefill"))
        embeddings = {name: np.reshape(value, (1, len(ids), -1)) for name, value in values.items()}
        results = []
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            final = part.stop >= len(ids)
            given = {name: value[:, part] for name, value in embeddings.items()}
            results.append(self._run(ids[part], want if final or want == "rows" else "last", given, _kind(ids[part])))
        return np.concatenate(results) if want == "rows" else results[-1]

    def _run(self, ids: npt.NDArray[np.int64], want: Want, values: dict[str, Any], kind: StepKind) -> Any:
        outcome = self._runner.run(self._step(ids, want, values, kind))
        self._history.extend(ids.tolist(), bool(values))
        self._hidden = outcome.hidden
        self._vocabulary = self._vocabulary or outcome.vocabulary
        self._steps += 1
        return outcome.logits

    def _step(self, ids: npt.NDArray[np.int64], want: Want, values: dict[str, Any], kind: StepKind) -> Step:
        return Step(ids[None], np.array([self.length], np.int32), kind, want, values)

    def _here(self) -> _Checkpoint:
        return _Checkpoint(self.length, self._hidden, self._cache.mark())

    def _settle(self) -> None:
        """Go to the checkpoint. If this is interrupted, the next call does it again before anything else."""
        point = self._checkpoint
        if point is None:
            return
        if point.cache is None:
            self._cache.reset()
        else:
            self._cache.restore(point.cache)
        self._inputs.rewind(point.length)
        if point.history is None:
            self._history.cut(point.length)
        else:
            self._history = point.history
        self._hidden = point.hidden
        self._checkpoint = None

    # --- going back --------------------------------------------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """Forget every token from `length` on. The same length does nothing at all, 0 forgets everything.

        A recurrent state that cannot be cut is taken back to an earlier point, and the tokens from there are fed again.
        If that is interrupted, the session stands at that earlier point.

        :raises RewindError: forward, or to where no group can come: its tokens were fed with routed values.
        """
        with self._turn:
            self._ready()
            if not 0 <= length <= self.length:
                raise RewindError(
                    f"cannot rewind from {self.length} tokens to {length}",
                    why="only tokens that the session holds can be kept",
                    remedy=f"pass a length from 0 to {self.length}",
                )
            if length != self.length:
                self._rewind(length)

    def _rewind(self, length: int) -> None:
        self._checkpoint = self._here()
        try:
            reached = self._cache.rewind(length)
            routed = self._history.first_routed(reached, length)
            if routed is not None:
                raise RewindError(
                    f"cannot rewind from {self.length} tokens to {length}",
                    why=f"the recurrent state goes back to {reached}, and token {routed} was fed with routed values, "
                    "which the session does not keep",
                    remedy=f"rewind to {reached}, and feed the rest again with its values",
                )
            missing = np.array(self._history.tokens[reached:length], np.int64)
            self._checkpoint = _Checkpoint(reached, self._hidden, self._cache.mark())
        finally:
            self._settle()
        if len(missing):
            self._advance(missing, "last", {}, _kind(missing), self._chunk)

    def reset(self) -> None:
        """Forget everything."""
        with self._turn:
            self._ready()
            self._checkpoint = _Checkpoint(0, None, None)
            self._settle()

    def mark(self) -> SessionMark:
        """A point to come back to, without a copy of the cache."""
        with self._turn:
            self._ready()
            return SessionMark(self, self._history.copy(), self._hidden, self._cache.mark())

    def restore(self, mark: SessionMark) -> None:
        """Go to a marked point, also forward to one that was rewound from.

        :raises RewindError: another session's mark, or one whose entries were overwritten meanwhile; nothing has changed.
        """
        with self._turn:
            self._ready()
            if mark.owner is not self:
                raise RewindError("this mark is another session's", remedy="restore a session from its own marks")
            self._checkpoint = self._here()
            try:
                self._cache.restore(mark.cache)
                self._checkpoint = _Checkpoint(mark.length, mark.hidden, mark.cache, mark.history.copy())
            finally:
                self._settle()

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release cache and context. Closing twice is harmless."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._cache.close()
                self._context.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> None:
        if self._closed:
            raise SessionClosedError("this session was closed", remedy="open another one")
        self._settle()


def _kind(ids: npt.NDArray[np.int64]) -> StepKind:
    return "prefill" if len(ids) > 1 else "decode"

"""A generation as pieces, and all of them as one value."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing

from tokenmill.generation.choosing import Choice
from tokenmill.generation.piece import FinishReason, Generation, Piece
from tokenmill.generation.text_stream import TextStream
from tokenmill.generation.token_loop import Meter, Run, choose_tokens
from tokenmill.session import Session

#: Closing it ends the generation.
Pieces = Generator[Piece, None, None]


def stream_pieces(session: Session, run: Run, meter: Meter, text: TextStream) -> Pieces:
    """Run a generation piece by piece. Closing the iterator early leaves the session usable.

    :raises ExecutionError: a step failed; the session is as it was before it.
    """
    with closing(choose_tokens(session, run, meter)) as choices:
        for choice, ended in choices:
            yield (piece := _piece(choice, ended, meter, text))
            if piece.finish_reason:
                return


def _piece(choice: Choice | None, ended: FinishReason | None, meter: Meter, text: TextStream) -> Piece:
    """A token's piece. One that ends the generation by itself is not part of the text."""
    added, stopped = "", False
    if choice is not None and ended not in ("eos", "stop"):
        added, stopped = text.add(choice.token, meter.new_tokens)
    if ended and not stopped:
        rest, stopped = text.flush()
        added += rest
    reason: FinishReason | None = "stop" if stopped else ended
    return Piece(
        text=added,
        token=None if choice is None else choice.token,
        logprob=None if choice is None else choice.logprob,
        alternatives=() if choice is None else choice.alternatives,
        finish_reason=reason,
        statistics=meter.statistics() if reason else None,
    )


def collect(pieces: Iterable[Piece]) -> Generation:
    """All pieces of a generation as one value."""
    seen = list(pieces)
    last = seen[-1]
    assert last.finish_reason is not None and last.statistics is not None
    chosen = [piece for piece in seen if piece.token is not None]
    return Generation(
        text="".join(piece.text for piece in seen),
        tokens=tuple(piece.token for piece in chosen if piece.token is not None),
        finish_reason=last.finish_reason,
        statistics=last.statistics,
        logprobs=tuple(piece.logprob for piece in chosen if piece.logprob is not None),
        alternatives=tuple(piece.alternatives for piece in chosen) if chosen and chosen[0].logprob is not None else (),
    )

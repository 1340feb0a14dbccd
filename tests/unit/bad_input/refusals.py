"""What every refusal has to be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tokenmill.errors import TokenmillError


@contextmanager
def refused(error: type[TokenmillError], text: str) -> Iterator[None]:
    """An error of exactly this class, that says what was refused, why or what to do about it, and this text.

    :param text: a regular expression.
    """
    with pytest.raises(TokenmillError) as caught:
        yield
    found = caught.value
    assert type(found) is error, repr(found)
    assert re.search(text, str(found), re.DOTALL), str(found)
    assert found.what and (found.why or found.remedy)
    assert "Traceback" not in str(found) and len(str(found)) < 2000

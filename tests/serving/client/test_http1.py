"""The response parser: any split of the input, every framing, malformed input."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.client.http1 import MAX_HEAD, MalformedError, Response, ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 7\r\n\r\n[1,2,3]"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 503 Not Now\r\nTransfer-Encoding: chunked\r\nRetry-After: 2\r\n\r\n"
    b"3;note=x\r\n[1,\r\nA\r\n2,3,4,5,6,\r\n2\r\n7]\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSED = OK + b"\r\n[1,2,3]"


def parse(data: bytes, *cuts: int) -> Response | None:
    """Feed `data` in pieces, then close the connection."""
    parser = ResponseParser(1000)
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        if (response := parser.feed(data[start:end])) is not None:
            return response
    return parser.end()


@given(st.sampled_from([PLAIN, CHUNKED, UNTIL_CLOSED]), st.lists(st.integers(0, 250), max_size=12))
def test_any_split_gives_the_same_response(data: bytes, cuts: list[int]) -> None:
    assert parse(data, *(min(cut, len(data)) for cut in cuts)) == parse(data)


@pytest.mark.parametrize(
    ("data", "status", "body", "keep"),
    [
        (PLAIN, 200, b"[1,2,3]", True),
        (CHUNKED, 503, b"[1,2,3,4,5,6,7]", True),
        (UNTIL_CLOSED, 200, b"[1,2,3]", False),
        (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", 200, b"", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", False),
        (PLAIN + OK, 200, b"[1,2,3]", False),  # surplus bytes
        (b"HTTP/1.1 204 Nothing\r\nContent-Length: 5\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Nothing\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    ],
)
def test_every_framing_is_parsed(data: bytes, status: int, body: bytes, keep: bool) -> None:
    response = parse(data)
    assert response is not None
    assert (response.status, response.body, response.keep) == (status, body, keep)
    assert ("retry-after" in response.headers) == (data is CHUNKED)


@pytest.mark.parametrize("data", [PLAIN, CHUNKED])
def test_truncated_response_is_none(data: bytes) -> None:
    for length in range(len(data)):
        assert parse(data[:length]) is None


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"220 mail.example.org ESMTP\r\n\r\n", "status line"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line"),
        (b"HTTP/2 200\r\n\r\n", "status line"),
        (OK + b"nonsense\r\n\r\n", "header"),
        (OK + b"Content-Length: -1\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: 5, 6\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: 1001\r\n\r\n", "1000 bytes"),
        (OK + b"\r\n" + b"x" * 1001, "1000 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "chunk"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\n", "chunk"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "chunk"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n", "1000 bytes"),
        (OK + b"X: " + b"x" * (MAX_HEAD + 1), "headers"),
    ],
)
def test_malformed_response_is_refused(data: bytes, part: str) -> None:
    with pytest.raises(MalformedError, match=part):
        parse(data)


@given(st.binary(max_size=300), st.sampled_from([b"", PLAIN[:40], CHUNKED[:90], CHUNKED[:110]]))
def test_random_bytes_are_parsed_or_refused(noise: bytes, start: bytes) -> None:
    try:
        response = parse(start + noise)
    except MalformedError:
        return
    assert response is None or len(response.body) <= 1000

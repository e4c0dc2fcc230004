"""The response parser: any split of the input, every framing, malformed input."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.client.http1 import MAX_HEAD, MalformedError, Response, ResponseParser

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n[1,2,3]"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 503 Not Now\r\nTransfer-Encoding: chunked\r\nRetry-After: 2\r\n\r\n"
    b"3;note=x\r\n[1,\r\nA\r\n2,3,4,5,6,\r\n2\r\n7]\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n[1,2,3]"


def parse(data: bytes, *cuts: int) -> Response | None:
    """Feed `data` in pieces, then close the connection."""
    parser = ResponseParser(1000)
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        if (response := parser.feed(data[start:end])) is not None:
            return response
    return parser.end()


def parse_whole(data: bytes) -> Response:
    response = parse(data)
    assert response is not None
    return response


@given(
    st.sampled_from([PLAIN, CHUNKED, UNTIL_CLOSED]),
    st.lists(st.integers(0, len(CHUNKED)), max_size=12),
)
def test_any_split_gives_the_same_response(data: bytes, cuts: list[int]) -> None:
    assert parse(data, *(min(cut, len(data)) for cut in cuts)) == parse(data)


def test_every_framing_is_parse() -> None:
    plain, chunked, rest = map(parse_whole, (PLAIN, CHUNKED, UNTIL_CLOSED))
    assert (plain.status, plain.body, plain.keep) == (200, b"[1,2,3]", True)
    assert plain.headers["content-type"] == "application/json"
    assert (chunked.status, chunked.headers["retry-after"], chunked.keep) == (503, "2", True)
    assert json.loads(chunked.body) == [1, 2, 3, 4, 5, 6, 7]
    assert (rest.body, rest.keep) == (b"[1,2,3]", False)


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (PLAIN + b"HTTP/1.1 200 OK\r\n", b"[1,2,3]"),  # surplus bytes
    ],
)
def test_connection_is_not_kept(data: bytes, body: bytes) -> None:
    response = parse_whole(data)
    assert (response.body, response.keep) == (body, False)


@pytest.mark.parametrize("status", [204, 304])
def test_status_without_a_body(status: int) -> None:
    assert parse_whole(b"HTTP/1.1 %d Nothing\r\nContent-Length: 5\r\n\r\n" % status).body == b""


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
        (b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, "1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", "1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD + 1), "headers"),
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

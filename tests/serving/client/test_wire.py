"""Reading HTTP: however it is cut, and whatever comes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.client.http1 import MAX_HEAD, Answer, MalformedError, ResponseParser

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n[1,2,3]"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 503 Not Now\r\nTransfer-Encoding: chunked\r\nRetry-After: 2\r\n\r\n"
    b"3;note=x\r\n[1,\r\nA\r\n2,3,4,5,6,\r\n2\r\n7]\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\n[1,2,3]"


def parsed(data: bytes, *cuts: int) -> Answer | None:
    """The answer in `data`, fed in pieces; the connection ends after it."""
    parser = ResponseParser(1000)
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        if (answer := parser.feed(data[start:end])) is not None:
            return answer
    return parser.end()


@given(
    st.sampled_from([PLAIN, CHUNKED, UNTIL_THE_END]),
    st.lists(st.integers(0, len(CHUNKED)), max_size=12),
)
def test_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    assert parsed(data, *(min(cut, len(data)) for cut in cuts)) == parsed(data)


def test_what_is_read() -> None:
    plain, chunked, rest = parsed(PLAIN), parsed(CHUNKED), parsed(UNTIL_THE_END)
    assert plain is not None
    assert chunked is not None
    assert rest is not None
    assert (plain.status, plain.body, plain.keep) == (200, b"[1,2,3]", True)
    assert plain.headers["content-type"] == "application/json"
    assert (chunked.status, chunked.headers["retry-after"], chunked.keep) == (503, "2", True)
    assert json.loads(chunked.body) == [1, 2, 3, 4, 5, 6, 7]
    assert (rest.body, rest.keep) == (b"[1,2,3]", False)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"],
)
def test_connections_that_end(head: bytes) -> None:
    answer = parsed(head + b"Content-Length: 0\r\n\r\n")
    assert answer is not None
    assert not answer.keep


def test_surplus_bytes_spoil_the_connection_not_the_answer() -> None:
    answer = parsed(PLAIN + b"HTTP/1.1 200 OK\r\n")
    assert answer is not None
    assert answer.body == b"[1,2,3]"
    assert not answer.keep


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int) -> None:
    answer = parsed(b"HTTP/1.1 %d Nothing\r\nContent-Length: 5\r\n\r\n" % status)
    assert answer is not None
    assert answer.body == b""


@pytest.mark.parametrize("data", [PLAIN, CHUNKED])
def test_an_answer_cut_short_is_none(data: bytes) -> None:
    for length in range(len(data)):
        assert parsed(data[:length]) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"220 mail.example.org ESMTP\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "no HTTP"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD + 1), "headers"),
    ],
)
def test_what_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(MalformedError, match=said):
        parsed(data)


@given(st.binary(max_size=300), st.sampled_from([b"", PLAIN[:40], CHUNKED[:90], CHUNKED[:110]]))
def test_no_bytes_break_the_parser(noise: bytes, start: bytes) -> None:
    try:
        answer = parsed(start + noise)
    except MalformedError:
        return
    assert answer is None or len(answer.body) <= 1000

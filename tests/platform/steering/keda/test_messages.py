"""Messages of KEDA's external scaler, compared with those of the protobuf library."""

import random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from loadmaster.platform.steering.keda.messages import (
    MessageError,
    MetricsRequest,
    ScaledObjectRef,
    is_active_response,
    metric_spec_response,
    metrics_response,
    parse_metrics_request,
    parse_scaled_object,
)

PACKAGE = "externalscaler"
FIELDS = {  # of KEDA's externalscaler.proto: name, number, type
    "IsActiveResponse": [("result", 1, "BOOL", "")],
    "MetricSpec": [
        ("metricName", 1, "STRING", ""), ("targetSize", 2, "INT64", ""),
        ("targetSizeFloat", 3, "DOUBLE", ""),
    ],
    "GetMetricSpecResponse": [("metricSpecs", 1, "MESSAGE", "repeated MetricSpec")],
    "MetricValue": [
        ("metricName", 1, "STRING", ""), ("metricValue", 2, "INT64", ""),
        ("metricValueFloat", 3, "DOUBLE", ""),
    ],
    "GetMetricsResponse": [("metricValues", 1, "MESSAGE", "repeated MetricValue")],
    "GetMetricsRequest": [
        ("scaledObjectRef", 1, "MESSAGE", "ScaledObjectRef"), ("metricName", 2, "STRING", ""),
    ],
}  # fmt: skip


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="externalscaler.proto", package=PACKAGE, syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    reference = file.message_type.add(name="ScaledObjectRef")
    for number, name in enumerate(("name", "namespace"), start=1):
        reference.field.add(
            name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
        )
    entry = reference.nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(
            name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
        )
    reference.field.add(
        name="scalerMetadata", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
        type_name=f".{PACKAGE}.ScaledObjectRef.ScalerMetadataEntry",
    )  # fmt: skip
    for message, fields in FIELDS.items():
        added = file.message_type.add(name=message)
        for name, number, kind, inner in fields:
            label, _, type_name = inner.rpartition(" ")
            added.field.add(
                name=name, number=number, type=getattr(field, f"TYPE_{kind}"),
                label=field.LABEL_REPEATED if label else field.LABEL_OPTIONAL,
                type_name=f".{PACKAGE}.{type_name}" if type_name else None,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ["ScaledObjectRef", *FIELDS]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in names
    }


MESSAGES = _messages()


@pytest.mark.parametrize("metadata", [{}, {"application": "shop/cart", "scalerAddress": "é:1"}])
def test_requests_are_read_as_the_library_writes_them(metadata: dict[str, str]) -> None:
    reference = MESSAGES["ScaledObjectRef"](
        name="cart", namespace="shop", scalerMetadata={**metadata, "long": "x" * 300}
    )
    expected = ScaledObjectRef("cart", "shop", {**metadata, "long": "x" * 300})
    assert parse_scaled_object(reference.SerializeToString()) == expected
    request = MESSAGES["GetMetricsRequest"](scaledObjectRef=reference, metricName="s0-x")
    assert parse_metrics_request(request.SerializeToString()) == MetricsRequest(expected, "s0-x")
    assert parse_metrics_request(b"") == MetricsRequest()


@pytest.mark.parametrize("value", [0, 1, 127, 128, 100_000])
def test_answers_are_read_by_the_library(value: int) -> None:
    found = MESSAGES["GetMetricsResponse"].FromString(metrics_response("replicas", value))
    (one,) = found.metricValues
    assert (one.metricName, one.metricValue, one.metricValueFloat) == ("replicas", value, value)
    found = MESSAGES["GetMetricSpecResponse"].FromString(metric_spec_response("replicas", value))
    (one,) = found.metricSpecs
    assert (one.metricName, one.targetSize, one.targetSizeFloat) == ("replicas", value, value)
    for active in (False, True):
        parsed = MESSAGES["IsActiveResponse"].FromString(is_active_response(active))
        assert parsed.result is active


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x20\x05" + b"\x2a\x02hi" + b"\x31" + bytes(8) + b"\x3d" + bytes(4)
    assert parse_scaled_object(b"\x0a\x04cart" + unknown) == ScaledObjectRef("cart")


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\x08\x01", b"\xff" * 11, b"\x0a\x01\xff"]
)
def test_damaged_bytes_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        parse_scaled_object(data)


def test_any_bytes_are_a_message_or_that_error() -> None:
    draw, damaged = random.Random(1), 0
    for _ in range(2000):
        data = draw.randbytes(draw.randrange(30))
        try:
            parse_metrics_request(data)
        except MessageError:
            damaged += 1
    assert 0 < damaged < 2000  # both kinds were drawn

"""gRPC's keys of the configuration, its methods, and its metadata: what can be judged without a socket."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.grpc_keys import grpc_target
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.rpc import metadata
from tailrace.gateway.rpc.methods import METHODS, SERVICE, Shape, method_of
from tailrace.measure.ledger import RequestLedger
from tailrace.model.errors import ConfigError
from tests.children import child_env

BACKEND = {"url": "http://127.0.0.1:8000"}
WITH_GRPC = {"grpc_listen": "127.0.0.1:8081", "backends": [{**BACKEND, "grpc_url": "10.0.0.5:8001"}]}


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("10.0.0.5:8001", ("10.0.0.5:8001", False)),
        ("grpc://triton.internal:8001", ("triton.internal:8001", False)),
        ("grpcs://triton.example:443", ("triton.example:443", True)),
        ("[::1]:8001", ("[::1]:8001", False)),
    ],
)
def test_addresses(url, target):
    assert grpc_target(url) == target


@pytest.mark.parametrize(
    "url", ["", "host", "host:", "host:x", "host:70000", "http://host:8001", "host:1/path", "u@host:1", "hö:1", ":8001"]
)
def test_what_is_no_address_is_said_to_be_none(url):
    with pytest.raises(ConfigError, match="no gRPC address") as caught:
        grpc_target(url, place="backends[0].grpc_url")
    assert caught.value.place == "backends[0].grpc_url"


@pytest.mark.parametrize(
    ("raw", "place", "remedy"),
    [
        ({"grpc_listen": "0.0.0.0:8081", "backends": [BACKEND]}, "backends[0].grpc_url", "Set both"),
        ({"backends": WITH_GRPC["backends"]}, "grpc_listen", "Set both"),
        ({**WITH_GRPC, "limits": {"grpc_message_bytes": 1 << 31}}, "limits.grpc_message_bytes", "2147483648"),
        ({**WITH_GRPC, "limits": {"grpc_message_bytes": 0}}, "limits.grpc_message_bytes", "2147483648"),
    ],
)
def test_a_wrong_key_names_the_place_and_the_remedy(raw, place, remedy):
    with pytest.raises(ConfigError) as caught:
        config_from(raw)
    assert place in caught.value.place
    assert remedy in caught.value.remedy


def test_without_grpcio_the_remedy_is_what_to_install(tmp_path):
    """In a process in which it cannot be imported, as where it is not installed."""
    (tmp_path / "c.yaml").write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ngrpc_listen: 127.0.0.1:0\n"
        'backends: [{url: "http://127.0.0.1:9", grpc_url: "127.0.0.1:9"}]\n'
    )
    code = (
        "import sys; sys.modules['grpc'] = None; sys.argv[0] = 'tailrace'\n"
        "from tailrace.cli import main; sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "-c", str(tmp_path / "c.yaml")],
        env=child_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'tailrace[grpc]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_methods():
    assert method_of(SERVICE + "ModelInfer").shape is Shape.UNARY
    assert method_of(SERVICE + "ModelStreamInfer").shape is Shape.STREAM
    for name in ("ModelInfer", "ModelStreamInfer"):
        assert method_of(SERVICE + name).route.kind is RouteKind.READ
    for name in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig"):
        assert method_of(SERVICE + name).route == (RouteKind.RELAY, SERVICE + name)


@pytest.mark.parametrize(
    "name",
    [
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    ],
)
def test_administration_is_denied_whatever_is_listed(name):
    for passthrough in ([], ["/inference.*"], [SERVICE + name], ["*"]):
        assert method_of(SERVICE + name, passthrough).route.kind is RouteKind.DENIED


def test_other_methods_need_to_be_listed():
    assert method_of("/a.B/C").route.kind is RouteKind.UNKNOWN
    assert method_of("/a.B/C", ["/a.B/D"]).route.kind is RouteKind.UNKNOWN
    found = method_of("/a.B/C", ["/a.B/*"])
    assert (found.route, found.shape) == ((RouteKind.RELAY, "/a.B/*"), Shape.TUNNEL)
    assert method_of(SERVICE + "ModelInferX").route.kind is RouteKind.UNKNOWN
    assert all(method.route.endpoint == name for name, method in METHODS.items())


def test_metadata_onward():
    pairs = [
        ("user-agent", "grpc-python"),
        ("x-request-id", "theirs"),
        ("traceparent", "theirs"),
        ("grpc-previous-rpc-attempts", "1"),
        ("authorization", "Bearer theirs"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("x-b-bin", b"\0"),
    ]
    sent = metadata.onward(pairs, request_id="ours", traceparent=b"00-t-s-01", api_key=None)
    assert sent == (
        ("authorization", "Bearer theirs"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("x-b-bin", b"\0"),
        ("x-request-id", "ours"),
        ("traceparent", "00-t-s-01"),
    )
    keyed = metadata.onward(pairs, request_id="ours", traceparent=b"t", api_key="k")
    assert [value for key, value in keyed if key == "authorization"] == ["Bearer k"]


def test_metadata_back_carry_only_what_grpc_allows():
    ledger = RequestLedger(request_id="r", start_unix_ns=0, received=0, parsed=5, client_request_id="a\nb\u20acc")
    ours = metadata.own(ledger, "l\u00e4ne", 10)
    assert dict(ours)["x-client-request-id"] == "a?b?c"
    assert dict(ours)["x-tailrace-lane"] == "l?ne"
    theirs = [("x-request-id", "engine"), ("x-e", "1"), ("grpc-status", "0"), ("grpc-status-details-bin", b"d")]
    assert metadata.back(theirs, ours) == (("x-e", "1"), ("grpc-status-details-bin", b"d"), *ours)
    assert metadata.back(None, ours) == tuple(ours)


def test_a_refusals_status_details_are_what_google_defines():
    """Checked by protobuf's own reading of the two messages, described here."""
    from google.protobuf import any_pb2, duration_pb2

    refusal = Refusal(status=429, message="full: " + "x" * 200, reason="queue_full", stage="queue", retry_after_s=300)
    details = dict(metadata.of_refusal(refusal, 8))["grpc-status-details-bin"]
    # Status: 1 code, 2 message, 3 details. Each field by hand, the inner messages by protobuf.
    assert details[:2] == b"\x08\x08"
    at = details.index(b"\x1a", 4 + len(refusal.message))
    packed = any_pb2.Any.FromString(details[at + 2 :])
    assert details[at + 1] == len(details) - at - 2
    assert packed.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    assert packed.value[:1] == b"\x0a"
    assert duration_pb2.Duration.FromString(packed.value[2:]).seconds == 300
    assert "grpc-status-details-bin" not in dict(
        metadata.of_refusal(Refusal(status=504, message="m", reason="idle_timeout"), 4)
    )

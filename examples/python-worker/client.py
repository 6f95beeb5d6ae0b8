"""Calls a routine of a worker in any language: `python client.py ADDRESS ROUTINE [ARGUMENT…]`.

Arguments are JSON. Each result is a line of JSON: one for a function, any number for a stream. `ADDRESS` is the address of a worker, as
`raddle pool workers` shows it: HOST:PORT, unix:/PATH or unix-abstract:NAME.
"""

import argparse
import json
import pathlib
import sys

import grpc
from raddle.v1 import worker_pb2 as pb
from raddle.v1 import worker_pb2_grpc

LARGEST = 256 * 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", LARGEST)]


class RoutineError(Exception):
    """A call that was accepted and failed. `kind` is the kind of failure, and `value` the declared error, if any."""

    def __init__(self, exception):
        self.kind = pb.Exception.Kind.Name(exception.kind)
        self.value = json.loads(exception.value) if exception.value else None
        super().__init__(f"{self.kind}: {exception.message}")


def call(channel, routine, *arguments, timeout=None, context={}):
    """Calls a routine. Yields one result, or the items of a stream. Closing the generator cancels the call."""
    request = pb.Call(
        protocol=1,
        routine=routine,
        arguments=json.dumps(arguments, allow_nan=False).encode(),
        encoding=pb.ENCODING_JSON,
        timeout_ms=int(timeout * 1000) if timeout else 0,
        context={name: json.dumps(value).encode() for name, value in context.items()},
    )
    # A refused call raises `grpc.RpcError`; the .proto describes its codes.
    replies = worker_pb2_grpc.WorkerStub(channel).Dispatch(request)
    try:
        for reply in replies:
            if reply.WhichOneof("what") == "result":
                yield json.loads(reply.result)
            elif reply.WhichOneof("what") == "exception":
                raise RoutineError(reply.exception)
    finally:
        replies.cancel()


def connect(address, ca=None, cert=None, key=None):
    """A channel to a worker, with mutual TLS if there are certificates."""
    if ca is None:
        return grpc.insecure_channel(address, OPTIONS)
    read = lambda path: path.read_bytes() if path else None
    credentials = grpc.ssl_channel_credentials(read(ca), private_key=read(key), certificate_chain=read(cert))
    return grpc.secure_channel(address, credentials, OPTIONS)


def main():
    parser = argparse.ArgumentParser(description="Calls a routine.")
    parser.add_argument("address")
    parser.add_argument("routine")
    parser.add_argument("arguments", nargs="*", type=json.loads, metavar="ARGUMENT", help="as JSON")
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    parser.add_argument("--context", action="append", default=[], metavar="NAME=JSON", help="a context value of the call")
    parser.add_argument("--first", type=int, metavar="N", help="stop after N results")
    for name in "ca", "cert", "key":
        parser.add_argument(f"--{name}", type=pathlib.Path, metavar="FILE", help="PEM")
    options = parser.parse_args()
    pairs = (pair.split("=", 1) for pair in options.context)
    context = {name: json.loads(value) for name, value in pairs}
    with connect(options.address, options.ca, options.cert, options.key) as channel:
        results = call(channel, options.routine, *options.arguments, timeout=options.timeout, context=context)
        try:
            for number, result in enumerate(results, 1):
                print(json.dumps(result), flush=True)
                if number == options.first:
                    break
        except RoutineError as error:
            print(error, file=sys.stderr)
            if error.value is not None:
                print(json.dumps(error.value), file=sys.stderr)
            return 1
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 2
        finally:
            results.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`spotlight serve-reward`: any scorer over HTTP, in a process that may load what it needs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from spotlight.errors import UserError


def serve_reward(
    scorer: Annotated[
        str,
        typer.Argument(
            help="package.module:function, package.module:Class, an entry point of"
            " `spotlight.rewards`, `ocr`, `compositional`, `clip`, `pickscore`, `hpsv2`,"
            " `hpsv3` or `aesthetic`."
        ),
    ],
    options: Annotated[
        str,
        typer.Option(
            help="Keyword arguments of it, as a JSON object; of a CLIP model `checkpoint`,"
            " `processor` and `device`."
        ),
    ] = "{}",
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to bind; 0 picks a free one.")
    ] = 8200,
    batch: Annotated[
        int, typer.Option(min=1, max=4096, help="Maximum of images per call of the scorer.")
    ] = 32,
    waiting: Annotated[
        int,
        typer.Option(min=1, help="Maximum of waiting images; further requests get status 503."),
    ] = 1024,
    request_mb: Annotated[int, typer.Option(min=1, max=4096, help="Largest request, in MiB.")] = 64,
    authorization_file: Annotated[
        str | None,
        typer.Option(help="File with the value of the Authorization header to ask for."),
    ] = None,
    authorization_variable: Annotated[
        str | None, typer.Option(help="Environment variable with that value, instead of a file.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(help="File with the certificate to speak TLS with.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="File with the certificate's key.")] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Serve other machines without TLS: their network is private, or a proxy encrypts.",
        ),
    ] = False,
) -> None:
    """Serve a scorer over HTTP, for jobs with a reward of `kind: http`. Ends on SIGTERM."""
    import msgspec

    from spotlight.rewards.serving.settings import ServingSettings

    try:
        arguments = msgspec.json.decode(options, type=dict)
    except msgspec.DecodeError as error:
        raise UserError(f"--options is not a JSON object: {error}") from error
    if authorization_file is not None and authorization_variable is not None:
        raise UserError("give --authorization-file or --authorization-variable, not both")
    settings = ServingSettings(
        scorer=scorer,
        options=arguments,
        host=host,
        port=port,
        largest_batch=batch,
        most_waiting=waiting,
        largest_request_mb=request_mb,
        authorization_file=authorization_file,
        authorization_variable=authorization_variable,
        certificate=certificate,
        key=key,
        plain=plain,
    )
    argv = [sys.executable, "-m", "spotlight.rewards.serving"]
    # This process becomes the server: a signal to it reaches the server, and nobody stands between.
    os.execv(sys.executable, [*argv, msgspec.json.encode(settings).decode()])
